// What the threads do in one step of a loaded model, measured while the server runs.
#include <algorithm>
#include <chrono>
#include <future>
#include <mutex>

#include "base/rng.h"
#include "serve/openai/api.h"
#include "serve/openai/api_error.h"

namespace tokamak::openai {
namespace {

constexpr int64_t kPromptTokens = 64;         // of the request that makes an idle engine run
constexpr int32_t kAnswerTokens = 8;          // for a step of an answer
constexpr int kWarmUp = 2;                    // steps of answers before the one that is measured
constexpr std::chrono::seconds kPatience{5};  // on a busy server the next step comes sooner

Value micros(int64_t nanos) { return Value(static_cast<double>(nanos / 10) / 100); }

Value trace_value(const ServedModel& model, const StepTrace& trace) {
  Value calls = Value::array(), threads = Value::array();
  for (const StepTrace::Call& call : trace.calls)
    calls.push(Value::Object{{"name", call.name}, {"kernel", call.kernel}});
  for (const auto& lane : trace.threads) {
    Value spans = Value::array();
    int64_t busy = 0;
    for (const StepTrace::Span& span : lane) {
      spans.push(Value::Array{Value(int64_t{span.call}), Value(int64_t{span.stage}),
                              micros(span.begin), micros(span.end)});
      busy += span.end - span.begin;
    }
    threads.push(Value::Object{{"busy_us", micros(busy)}, {"spans", std::move(spans)}});
  }
  return Value::Object{{"model", model.name},          {"function", trace.function},
                       {"tokens", trace.tokens},       {"sequences", trace.sequences},
                       {"us", micros(trace.nanos)},    {"calls", std::move(calls)},
                       {"threads", std::move(threads)}};
}

// A short request with arbitrary tokens, whose blocks no other request finds.
RequestSpec probe_request(const ServedModel& model, bool prompts) {
  const EngineInfo info = model.client->info();
  RequestSpec spec;
  const int64_t length = std::clamp<int64_t>(info.max_model_len / 2, 1, kPromptTokens);
  for (int64_t i = 0; i < length; ++i)
    spec.prompt.push_back(static_cast<int32_t>(i % std::max<int64_t>(1, info.vocab)));
  spec.pool = !model.embedding.generates();
  spec.max_tokens = spec.pool ? 0 : prompts ? 1 : kAnswerTokens;
  spec.draft_tokens = 0;
  spec.cache_salt = fmt::format("timeline {}", fresh_number());
  return spec;
}

}  // namespace

// "decode", or "decode/NAME" for one of several models. One request at a time: it waits for a step.
http::Response Api::timeline(const std::string& which) {
  const size_t slash = which.find('/');
  const std::string function = which.substr(0, slash);
  auto served = model(slash == std::string::npos ? "" : which.substr(slash + 1));
  const bool prompts = function == "step";
  if ((!prompts && function != "decode") || (!prompts && !served->embedding.generates()))
    throw ApiError(404, "Steps of 'decode' (answers) and 'step' (prompts) are measured.",
                   "function", "no_timeline");
  std::unique_lock waiting(timeline_mutex_, std::try_to_lock);
  if (!waiting)
    throw ApiError(429, "Another request is measuring a step: try again.", "", "busy")
        .with_retry_after(1);
  auto traced = std::make_shared<std::promise<StepTrace>>();
  auto result = traced->get_future();
  if (!served->client->trace_step(prompts, prompts ? 0 : kWarmUp, [traced](StepTrace&& trace) {
        traced->set_value(std::move(trace));
      }))
    throw ApiError(404, "This backend does not measure its threads.", "", "no_timeline");
  const RequestId id = served->client->submit(probe_request(*served, prompts), [](Delta&&) {});
  const bool ready = result.wait_for(kPatience) == std::future_status::ready;
  served->client->cancel(id);
  if (!ready)
    throw ApiError(503, "The engine ran no such step: try again.", "", "busy").with_retry_after(1);
  return http::json_response(trace_value(*served, result.get()));
}

}  // namespace tokamak::openai
