#pragma once
// The wire format of an answer: the only difference between the generation routes, of this API and
// of the others (serve/compat).
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/value.h"
#include "engine/client.h"
#include "serve/http/message.h"
#include "text/output/call.h"
#include "text/tokenizer.h"

namespace tokamak::openai {

// A token whose log-probability is reported.
struct ScoredToken {
  int32_t id = 0;
  std::optional<float> logprob;  // absent: the first prompt token
  std::vector<TokenLogprob> top;
  size_t text_offset = 0;  // characters of the choice's text before it
};

// Log-probabilities of a prompt's tokens 1.., with alternatives.
struct PromptScores {
  std::vector<int32_t> ids;  // of the whole prompt
  std::vector<float> logprobs;
  std::vector<std::vector<TokenLogprob>> top;  // parallel to logprobs, or empty
};

// A part of one choice's answer: one chunk of a stream, or all of it.
struct Piece {
  int index = 0;
  std::string text, reasoning;
  std::vector<ScoredToken> scored;
  std::vector<int32_t> ids;
  std::vector<ToolCall> calls;   // in a stream also parts of calls
  const char* finish = nullptr;  // "stop", "length", "tool_calls"; nullptr: not finished
  Value stop_reason;             // with finish: the client's stop string or id that matched
  const std::vector<int32_t>* prompt_ids = nullptr;  // with return_token_ids, on the first piece
  const PromptScores* prompt_scores = nullptr;       // with prompt_logprobs, never in a stream
};

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  int64_t negative_tokens = 0;                      // part of prompt_tokens: negative prompts
  int64_t drafted_tokens = 0, accepted_tokens = 0;  // speculation: tried, and those that held
  int64_t reasoning_tokens = 0;            // part of completion_tokens; only for reasoning models
  Nanos prompt_time = 0, answer_time = 0;  // to the first token, and from it until now
  bool truncated = false;                  // the context was full
};

// How much of a prompt is computed.
struct PromptProgress {
  int64_t total = 0, cached = 0, done = 0;
  Nanos time = 0;  // since the request came
};

struct ShapeOptions {
  std::string model, fingerprint;
  int64_t created = 0;
  bool logprobs = false;
  int top_logprobs = 0;
  int prompt_logprobs = -1;
  bool include_usage = false, continuous_usage = false;  // in a stream
  bool token_ids = false;
  bool spell_ids = false;      // log-probabilities name tokens "token_id:N"
  bool timings = false;        // llama.cpp's, with usage
  bool sampled_probs = false;  // log-probabilities are those after sampling
  Value settings = {};         // llama.cpp's generation_settings
};

// Owner: one generation, on one thread at a time. The functions for streams append framed bytes.
class Shape {
 public:
  explicit Shape(ShapeOptions options) : options_(std::move(options)) {}
  virtual ~Shape() = default;

  const std::string& id() const { return id_; }
  virtual http::StreamHead head() const { return {}; }
  virtual bool counts() const { return false; }  // piece() needs the usage
  virtual void started() {}                      // the first token has come
  virtual Value queued() const { return {}; }    // the answer before it is computed
  // prompt_ids: nullptr unless requested.
  virtual void begin(std::string& out, int choices, const std::vector<int32_t>* prompt_ids,
                     const Usage& usage) = 0;
  virtual void progress(std::string& out, const PromptProgress& progress) {
    (void)out, (void)progress;
  }
  virtual void piece(std::string& out, const Piece& piece, const Usage& usage) = 0;
  virtual void end(std::string& out, const Usage& usage) = 0;
  virtual void broken(std::string& out, const http::Response& error) = 0;
  virtual std::string whole(const std::vector<Piece>& choices, const Usage& usage) = 0;
  // An error in this API's form, from one in OpenAI's.
  virtual http::Response error(http::Response response) const { return response; }

 protected:
  const ShapeOptions options_;
  std::string id_;
};

// What the two routes of OpenAI have in common.
class OpenaiShape : public Shape {
 public:
  OpenaiShape(ShapeOptions options, const Tokenizer& tokenizer)
      : Shape(std::move(options)), tokenizer_(tokenizer) {}

  bool counts() const override { return options_.continuous_usage; }
  void begin(std::string& out, int choices, const std::vector<int32_t>* prompt_ids,
             const Usage& usage) override;
  void progress(std::string& out, const PromptProgress& progress) override;
  void piece(std::string& out, const Piece& piece, const Usage& usage) override;
  void end(std::string& out, const Usage& usage) override;
  void broken(std::string& out, const http::Response& error) override;
  std::string whole(const std::vector<Piece>& choices, const Usage& usage) override;

 protected:
  // "": none for this shape. prompt_ids: nullptr unless requested; usage likewise.
  virtual std::string first_chunk(int index, const std::vector<int32_t>* prompt_ids,
                                  const Usage* usage) = 0;
  // The end of a choice is sent in its own chunk.
  virtual bool separate_finish() const = 0;
  virtual std::string stream_choice(const Piece& piece) = 0;  // JSON of choices[i]
  virtual Value whole_choice(const Piece& piece) = 0;
  virtual Value top_level_ids(const std::vector<Piece>&) { return {}; }
  virtual Value top_level_scores(const std::vector<Piece>&) { return {}; }
  void set_names(std::string id_prefix, std::string whole_object, std::string chunk_object);
  // [null, {"id": {"logprob", "rank", "decoded_token"}}, ...], as in vLLM.
  Value prompt_logprobs(const std::vector<int32_t>& ids, const PromptScores& scores) const;
  std::string wrap_chunk(std::string_view choices, const Usage* usage,
                         std::string_view more = {}) const;

  const Tokenizer& tokenizer_;

 private:
  std::string whole_object_, chunk_head_;
};

std::unique_ptr<Shape> make_chat_shape(ShapeOptions options, const Tokenizer& tokenizer);
std::unique_ptr<Shape> make_completion_shape(ShapeOptions options, const Tokenizer& tokenizer);

// "data: JSON", or with a name "event: NAME" before it.
void add_event(std::string& out, std::string_view json, std::string_view name = {});
std::string new_id(std::string_view prefix);  // prefix and 32 hexadecimal digits
Value ids_value(const std::vector<int32_t>& ids);
Value usage_value(const Usage& usage);
// [{"token", "logprob", "bytes", "top_logprobs"}, ...] of a piece's tokens; with_ids: also "id".
Value logprobs_value(const Piece& piece, const ShapeOptions& options, const Tokenizer& tokenizer,
                     bool with_ids = false);
Value timings_value(const Usage& usage);  // as in llama.cpp
// llama.cpp's members of a chunk: prompt_progress and, if wanted, timings.
Value progress_value(const PromptProgress& progress, bool timings);
size_t count_characters(std::string_view utf8);

}  // namespace tokamak::openai
