#include "serve/batch/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "serve/openai/shape.h"

namespace tokamak::openai {
namespace {

constexpr size_t kMaxRequests = 50'000, kMaxErrors = 100;

// In the order of the enum.
constexpr std::array<std::string_view, 8> kStatusNames = {"validating", "in_progress", "finalizing",
                                                          "cancelling", "completed",   "failed",
                                                          "expired",    "cancelled"};

std::string_view name_of(BatchStatus status) { return kStatusNames[static_cast<size_t>(status)]; }

BatchStatus status_of(const std::string& name) {
  auto it = std::find(kStatusNames.begin(), kStatusNames.end(), name);
  if (it == kStatusNames.end()) fail(ErrorCode::kInvalidArgument, "no batch status '{}'", name);
  return static_cast<BatchStatus>(it - kStatusNames.begin());
}

// Throws Error if the line is not a request to this endpoint.
BatchRequest parse_line(std::string_view line, const std::string& endpoint) {
  Value value = parse_json(line, "the line");
  if (!value.is_object()) fail(ErrorCode::kInvalidArgument, "the line is not an object");
  const Value* id = value.find("custom_id");
  if (id == nullptr || !id->is_string() || id->size() == 0)
    fail(ErrorCode::kInvalidArgument, "custom_id is missing or not a string");
  if (value.get_string("method", "") != "POST")
    fail(ErrorCode::kInvalidArgument, "method must be POST");
  if (std::string url = value.get_string("url", ""); url != endpoint)
    fail(ErrorCode::kInvalidArgument, "url is '{}', but the batch's endpoint is {}", url, endpoint);
  const Value* body = value.find("body");
  if (body == nullptr || !body->is_object())
    fail(ErrorCode::kInvalidArgument, "body is missing or not an object");
  if (body->get_bool("stream", false))
    fail(ErrorCode::kInvalidArgument, "answers of a batch cannot be streamed");
  if (body->get_bool("background", false))
    fail(ErrorCode::kInvalidArgument, "a batch is in the background already; leave out background");
  return {id->as_string(), dump_json(*body)};
}

Value input_error(std::string_view code, Value line, std::string_view message) {
  return Value::Object{
      {"code", code}, {"line", std::move(line)}, {"message", message}, {"param", Value()}};
}

}  // namespace

bool is_final(BatchStatus status) { return status >= BatchStatus::kCompleted; }

void Batch::enter(BatchStatus next, int64_t now) {
  status = next;
  times.set(fmt::format("{}_at", name_of(next)), now);
}

int64_t Batch::changed() const {
  const Value* time = times.find(fmt::format("{}_at", name_of(status)));
  return time == nullptr ? created : time->as_int();
}

Value Batch::card() const {
  Value value = Value::object();
  value.set("id", id);
  value.set("object", "batch");
  value.set("endpoint", endpoint);
  value.set("errors", errors.is_null()
                          ? Value()
                          : Value(Value::Object{{"object", "list"}, {"data", errors}}));
  value.set("input_file_id", input_file);
  value.set("completion_window", completion_window);
  value.set("status", name_of(status));
  bool listed = is_final(status);
  value.set("output_file_id", listed && has_output ? Value(output_file) : Value());
  value.set("error_file_id", listed && has_errors ? Value(error_file) : Value());
  value.set("created_at", created);
  value.set("expires_at", expires);
  for (BatchStatus s : {BatchStatus::kInProgress, BatchStatus::kFinalizing, BatchStatus::kCompleted,
                        BatchStatus::kFailed, BatchStatus::kExpired, BatchStatus::kCancelling,
                        BatchStatus::kCancelled}) {
    std::string key = fmt::format("{}_at", name_of(s));
    const Value* time = times.find(key);
    value.set(key, time == nullptr ? Value() : *time);
  }
  value.set("request_counts",
            Value::Object{{"total", total}, {"completed", completed}, {"failed", failed}});
  value.set("metadata", metadata);
  return value;
}

Value Batch::record() const {
  Value value = card();
  value.set("owner", owner);
  value.set("order", order);
  value.set("output_lifetime", output_lifetime);
  value.set("ending", name_of(ending));
  value.set("times", times);
  value.set("error_list", errors);
  value.set("output_file", output_file);
  value.set("error_file", error_file);
  value.set("has_output", has_output);
  value.set("has_errors", has_errors);
  return value;
}

Batch Batch::from_record(const Value& record) {
  Batch batch;
  batch.id = record.at("id").as_string();
  batch.owner = record.at("owner").as_string();
  batch.endpoint = record.at("endpoint").as_string();
  batch.input_file = record.at("input_file_id").as_string();
  batch.completion_window = record.at("completion_window").as_string();
  batch.status = status_of(record.at("status").as_string());
  batch.ending = status_of(record.at("ending").as_string());
  batch.metadata = record.at("metadata");
  batch.created = record.at("created_at").as_int();
  batch.expires = record.at("expires_at").as_int();
  if (const Value* order = record.find("order")) batch.order = order->as_int();
  if (const Value* lifetime = record.find("output_lifetime"))
    batch.output_lifetime = lifetime->as_int();
  batch.times = record.at("times");
  for (const auto& [name, time] : batch.times.as_object()) (void)time.as_int();
  batch.output_file = record.at("output_file").as_string();
  batch.error_file = record.at("error_file").as_string();
  batch.has_output = record.at("has_output").as_bool();
  batch.has_errors = record.at("has_errors").as_bool();
  const Value& counts = record.at("request_counts");
  batch.total = counts.at("total").as_int();
  batch.completed = counts.at("completed").as_int();
  batch.failed = counts.at("failed").as_int();
  batch.errors = record.at("error_list");
  return batch;
}

std::vector<BatchRequest> parse_batch_input(std::string_view text, const std::string& endpoint,
                                            Value& errors) {
  std::vector<BatchRequest> requests;
  std::set<std::string> ids;
  errors = Value::array();
  int64_t number = 0;
  while (!text.empty() && errors.size() < kMaxErrors) {
    size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      if (requests.size() == kMaxRequests)
        fail(ErrorCode::kInvalidArgument, "a batch has at most {} requests", kMaxRequests);
      requests.push_back(parse_line(line, endpoint));
      if (!ids.insert(requests.back().custom_id).second)
        fail(ErrorCode::kInvalidArgument, "custom_id '{}' is used twice",
             requests.back().custom_id);
    } catch (const Error& e) {
      errors.push(input_error("invalid_request", number, e.what()));
      if (requests.size() == kMaxRequests) break;
    }
  }
  if (errors.size() == 0 && requests.empty())
    errors.push(input_error("empty_file", Value(), "The input file has no requests."));
  if (errors.size() == 0) errors = Value();
  return errors.is_null() ? std::move(requests) : std::vector<BatchRequest>{};
}

std::optional<int64_t> window_seconds(std::string_view text) {
  int64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  int64_t scale = unit == "m" ? 60 : unit == "h" ? 3600 : unit == "d" ? 86400 : 0;
  if (error != std::errc{} || scale == 0 || number < 1 || number > 1000) return std::nullopt;
  return number * scale;
}

std::string result_line(const std::string& custom_id, int status, const Value& body) {
  Value response = Value::object();
  response.set("status_code", status);
  response.set("request_id", new_id("req_"));
  response.set("body", body);
  Value line = Value::object();
  line.set("id", new_id("batch_req_"));
  line.set("custom_id", custom_id);
  line.set("response", std::move(response));
  line.set("error", Value());
  return dump_json(line) + "\n";
}

std::string not_sent_line(const std::string& custom_id, std::string_view code,
                          std::string_view message) {
  Value line = Value::object();
  line.set("id", new_id("batch_req_"));
  line.set("custom_id", custom_id);
  line.set("response", Value());
  line.set("error", Value::Object{{"code", code}, {"message", message}});
  return dump_json(line) + "\n";
}

}  // namespace tokamak::openai
