#include "serve/openai/trace_exporter.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"

namespace tokamak::openai {
namespace {

using std::chrono::seconds;

constexpr size_t kMostAtOnce = 512;
constexpr seconds kCollect{1};                // spans that end within this time are sent together
constexpr seconds kLimit{10}, kLastLimit{2};  // of an attempt; of the one at exit
constexpr seconds kLongestPause{60};
constexpr int kServerSpan = 2, kErrorStatus = 2;

// Integers of 64 bits are strings in OTLP's JSON.
Value attribute(const char* key, const Value& value) {
  Value typed = value.is_string() ? Value(Value::Object{{"stringValue", value}})
                : value.is_bool() ? Value(Value::Object{{"boolValue", value}})
                : value.is_int()
                    ? Value(Value::Object{{"intValue", fmt::to_string(value.as_int())}})
                    : Value(Value::Object{{"doubleValue", value}});
  return Value::Object{{"key", key}, {"value", std::move(typed)}};
}

const char* operation_of(std::string_view route) {
  if (route.find("embed") != std::string_view::npos) return "embeddings";
  bool text = route.ends_with("/completions") && route.find("chat") == std::string_view::npos;
  return text || route == "/completion" || route == "/infill" || route == "/api/generate"
             ? "text_completion"
             : "chat";
}

}  // namespace

Value span_of(const Value& line, int64_t end) {
  auto start = end - static_cast<int64_t>(line.at("duration_ms").as_double() * 1e6);
  std::string route = line.get_string("route", "");
  Value attributes = Value::array();
  auto add = [&](const char* key, const Value& value) { attributes.push(attribute(key, value)); };
  add("http.request.method", "POST");
  add("http.route", route);
  add("http.response.status_code", line.at("status"));
  add("client.address", line.at("remote"));
  add("gen_ai.operation.name", operation_of(route));
  // The names of OpenTelemetry's conventions, then those that vLLM's spans have.
  struct Name {
    const char *field, *key;
  };
  for (auto [field, key] :
       {Name{"model", "gen_ai.request.model"}, Name{"id", "gen_ai.response.id"},
        Name{"prompt_tokens", "gen_ai.usage.input_tokens"},
        Name{"completion_tokens", "gen_ai.usage.output_tokens"}, Name{"id", "gen_ai.request.id"},
        Name{"n", "gen_ai.request.n"}, Name{"prompt_tokens", "gen_ai.usage.prompt_tokens"},
        Name{"completion_tokens", "gen_ai.usage.completion_tokens"},
        Name{"cached_tokens", "gen_ai.usage.cached_tokens"}})
    if (const Value* value = line.find(field)) add(key, *value);
  add("gen_ai.latency.e2e", line.at("duration_ms").as_double() * 1e-3);
  Value span = Value::Object{{"traceId", line.at("trace_id")},
                             {"spanId", line.at("span_id")},
                             {"name", "POST " + route},
                             {"kind", kServerSpan},
                             {"startTimeUnixNano", fmt::to_string(start)},
                             {"endTimeUnixNano", fmt::to_string(end)}};
  if (const Value* parent = line.find("parent_id")) span.set("parentSpanId", *parent);
  if (const Value* first = line.find("ttft_ms")) {
    double ms = first->as_double();
    add("gen_ai.latency.time_to_first_token", ms * 1e-3);
    span.set("events",
             Value::Array{Value::Object{
                 {"name", "first token"},
                 {"timeUnixNano", fmt::to_string(start + static_cast<int64_t>(ms * 1e6))}}});
  }
  if (const Value* error = line.find("error")) {
    add("error.type", fmt::to_string(line.at("status").as_int()));
    span.set("status", Value::Object{{"code", kErrorStatus}, {"message", *error}});
  }
  span.set("attributes", std::move(attributes));
  return span;
}

TraceExporter::TraceExporter(const std::string& endpoint, const std::string& service)
    : url_(http::parse_url(endpoint)), service_(service) {
  if (url_.path.empty() || url_.path == "/") url_.path = "/v1/traces";
  thread_ = std::thread([this] { loop(); });
}

TraceExporter::~TraceExporter() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void TraceExporter::add(Value span) {
  std::lock_guard lock(mutex_);
  if (waiting_.size() >= kMostWaiting) {
    ++discarded_;
    return;
  }
  waiting_.push_back(std::move(span));
  if (waiting_.size() == 1 || waiting_.size() == kMostAtOnce) changed_.notify_all();
}

void TraceExporter::loop() {
  seconds pause = kCollect;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
    auto enough = [&] { return stop_ || (!failed_ && waiting_.size() >= kMostAtOnce); };
    changed_.wait_for(lock, pause, enough);
    if (waiting_.empty()) return;  // and stop_
    auto count = static_cast<std::ptrdiff_t>(std::min(waiting_.size(), kMostAtOnce));
    std::vector<Value> batch(waiting_.begin(), waiting_.begin() + count);
    bool last = stop_;
    lock.unlock();
    bool done = send(batch, last ? kLastLimit : kLimit);
    lock.lock();
    if (done) waiting_.erase(waiting_.begin(), waiting_.begin() + count);
    if (!done && last) return;
    pause = done ? kCollect : std::min(2 * pause, kLongestPause);
  }
}

// False: try again later.
bool TraceExporter::send(const std::vector<Value>& spans, seconds limit) {
  Value scope = Value::Object{{"scope", Value::Object{{"name", "tokamak"}}},
                              {"spans", Value::Array(spans.begin(), spans.end())}};
  Value resource = Value::Object{
      {"resource",
       Value::Object{{"attributes", Value::Array{attribute("service.name", service_)}}}},
      {"scopeSpans", Value::Array{std::move(scope)}}};
  std::string body = dump_json(Value::Object{{"resourceSpans", Value::Array{std::move(resource)}}});
  auto count = static_cast<int64_t>(spans.size());
  std::string problem;
  bool again = true;
  try {
    int status = http::post_json(url_, body, limit);
    if (status >= 200 && status < 300) {
      sent_ += count;
      if (std::exchange(failed_, false)) log::info("the trace collector answers again");
      return true;
    }
    problem = fmt::format("it answers {}", status);
    // The statuses that OTLP defines as temporary.
    again = status == 429 || status == 502 || status == 503 || status == 504;
  } catch (const Error& e) {
    problem = e.what();
  }
  if (!again) discarded_ += count;
  if (!std::exchange(failed_, true))
    log::warn("the trace collector at http://{}:{}{} takes no spans: {}", url_.host, url_.port,
              url_.path, problem);
  return !again;
}

}  // namespace tokamak::openai
