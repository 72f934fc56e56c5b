#pragma once
// One batch: a file of requests to one endpoint, answered in the background.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/value.h"

namespace tokamak::openai {

enum class BatchStatus {
  kValidating,
  kInProgress,
  kFinalizing,
  kCancelling,
  // final
  kCompleted,
  kFailed,
  kExpired,
  kCancelled
};

bool is_final(BatchStatus status);

struct Batch {
  std::string id, owner, endpoint, input_file, completion_window;
  BatchStatus status = BatchStatus::kValidating;
  BatchStatus ending = BatchStatus::kCompleted;  // the final status, while finalizing
  Value metadata;
  int64_t created = 0, expires = 0;
  int64_t output_lifetime = 0;    // seconds until the results expire; 0: the server's
  int64_t order = 0;              // of creation, where several have the same time
  Value times = Value::object();  // "in_progress_at", "completed_at" ... -> seconds
  // Names of the results. Chosen at the beginning, listed when the files are complete.
  std::string output_file, error_file;
  bool has_output = false, has_errors = false;
  int64_t total = 0, completed = 0, failed = 0;
  Value errors;  // why the input was refused: [{code, line, message, param}]

  void enter(BatchStatus next, int64_t now);  // sets the status and its time
  int64_t changed() const;                    // when it entered its status
  Value card() const;                         // as the API shows it
  Value record() const;                       // as it is stored
  static Batch from_record(const Value& record);
};

// One line of an input file.
struct BatchRequest {
  std::string custom_id;
  std::string body;  // JSON
};

// Fills `errors` (at most a hundred) instead of returning requests if any line is wrong.
std::vector<BatchRequest> parse_batch_input(std::string_view text, const std::string& endpoint,
                                            Value& errors);

// The completion window "24h", "30m" or "2d" in seconds; nullopt if it is not one.
std::optional<int64_t> window_seconds(std::string_view text);

// One line of an output file.
std::string result_line(const std::string& custom_id, int status, const Value& body);
// One line of an error file, for a request that was not sent.
std::string not_sent_line(const std::string& custom_id, std::string_view code,
                          std::string_view message);

}  // namespace tokamak::openai
