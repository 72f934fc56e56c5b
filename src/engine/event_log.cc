#include "engine/event_log.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "base/error.h"
#include "base/json.h"

namespace tokamak {
namespace {

// --- writing

template <class T>
Value list_value(const std::vector<T>& values) {
  Value out = Value::array();
  for (const T& v : values) {
    if constexpr (std::is_floating_point_v<T>)
      out.push(static_cast<double>(v));
    else
      out.push(static_cast<int64_t>(v));
  }
  return out;
}

// Members that have their default value are left out.
template <class T>
void set_list(Value& out, std::string_view key, const std::vector<T>& values) {
  if (!values.empty()) out.set(key, list_value(values));
}
void set_int(Value& out, std::string_view key, int64_t value, int64_t fallback) {
  if (value != fallback) out.set(key, value);
}
void set_float(Value& out, std::string_view key, float value, float fallback) {
  if (value != fallback) out.set(key, static_cast<double>(value));
}
// Any bytes: JSON has text only.
void set_bytes(Value& out, std::string_view key, const std::string& bytes) {
  if (!bytes.empty()) set_list(out, key, std::vector<uint8_t>(bytes.begin(), bytes.end()));
}

const SampleSpec kSampleDefaults;
const RequestSpec kRequestDefaults;

Value sample_value(const SampleSpec& s) {
  const SampleSpec& d = kSampleDefaults;
  Value out = Value::object();
  set_float(out, "temperature", s.temperature, d.temperature);
  set_int(out, "top_k", s.top_k, d.top_k);
  set_float(out, "top_p", s.top_p, d.top_p);
  set_float(out, "min_p", s.min_p, d.min_p);
  set_float(out, "typical_p", s.typical_p, d.typical_p);
  set_float(out, "dry_multiplier", s.dry_multiplier, d.dry_multiplier);
  set_float(out, "dry_base", s.dry_base, d.dry_base);
  set_int(out, "dry_allowed_length", s.dry_allowed_length, d.dry_allowed_length);
  set_int(out, "dry_last_n", s.dry_last_n, d.dry_last_n);
  set_list(out, "dry_breakers", s.dry_breakers);
  set_float(out, "xtc_probability", s.xtc_probability, d.xtc_probability);
  set_float(out, "xtc_threshold", s.xtc_threshold, d.xtc_threshold);
  set_list(out, "order", s.order);
  set_float(out, "repetition_penalty", s.repetition_penalty, d.repetition_penalty);
  set_float(out, "presence_penalty", s.presence_penalty, d.presence_penalty);
  set_float(out, "frequency_penalty", s.frequency_penalty, d.frequency_penalty);
  for (auto [id, bias] : s.logit_bias) {
    if (!out.has("logit_bias")) out.set("logit_bias", Value::array());
    out.find("logit_bias")->push(Value::Array{id, static_cast<double>(bias)});
  }
  set_list(out, "banned_until_min", s.banned_until_min);
  set_int(out, "min_tokens", s.min_tokens, d.min_tokens);
  set_int(out, "top_logprobs", s.top_logprobs, d.top_logprobs);
  set_int(out, "seed", static_cast<int64_t>(s.seed), 0);
  return out;
}

void add_request(Value& out, const RequestSpec& s) {
  const RequestSpec& d = kRequestDefaults;
  set_list(out, "prompt", s.prompt);
  set_int(out, "max_tokens", s.max_tokens, d.max_tokens);
  set_list(out, "stop_ids", s.stop_ids);
  set_int(out, "n", s.n, d.n);
  set_int(out, "beams", s.beams, d.beams);
  set_float(out, "length_penalty", s.length_penalty, d.length_penalty);
  set_int(out, "early_stopping", s.early_stopping, d.early_stopping);
  set_int(out, "score_prompt", s.score_prompt, d.score_prompt);
  set_int(out, "score_from", s.score_from, d.score_from);
  set_int(out, "priority", s.priority, d.priority);
  set_bytes(out, "cache_salt", s.cache_salt);
  set_bytes(out, "tenant", s.tenant);
  set_int(out, "deadline", s.deadline, d.deadline);
  set_int(out, "queue_deadline", s.queue_deadline, d.queue_deadline);
  set_int(out, "cache_priority", s.cache_priority, d.cache_priority);
  set_int(out, "cache_ttl", s.cache_ttl, d.cache_ttl);
  if (s.sample) out.set("sample", sample_value(*s.sample));
}

void add_result(Value& out, const StepResult& r) {
  out.set("seconds", r.seconds);
  set_list(out, "ids", r.ids);
  set_list(out, "logprobs", r.logprobs);
  set_list(out, "path", r.path);
  set_list(out, "path_start", r.path_start);
  set_list(out, "failed", r.failed);
  if (r.top.empty()) return;
  Value top = Value::array();
  for (const auto& [row, t] : r.top)
    top.push(Value::Array{row, t.id, static_cast<double>(t.logprob)});
  out.set("top", std::move(top));
}

Value event_value(const Event& e) {
  Value out = Value::object();
  switch (e.kind) {
    case Event::Kind::kArrival:
      out.set("arrival", e.request);
      add_request(out, e.spec);
      break;
    case Event::Kind::kCancel:
      out.set("cancel", e.request);
      break;
    case Event::Kind::kStopAt:
      out.set("stop_at", e.request);
      out.set("choice", e.choice);
      out.set("position", e.position);
      break;
    case Event::Kind::kStepDone:
      out.set("done", e.ticket);
      add_result(out, *e.result);
      break;
    case Event::Kind::kStepFailed:
      out.set("failed", e.ticket);
      out.set("error", e.error);
      break;
  }
  return out;
}

// --- reading

template <class T>
void get_list(const Value& in, std::string_view key, std::vector<T>& out) {
  const Value* list = in.find(key);
  if (list == nullptr) return;
  for (const Value& v : list->as_array()) {
    if constexpr (std::is_floating_point_v<T>)
      out.push_back(v.is_null() ? NAN : static_cast<T>(v.as_double()));
    else
      out.push_back(static_cast<T>(v.as_int()));
  }
}
template <class T>
void get_int(const Value& in, std::string_view key, T& out) {
  out = static_cast<T>(in.get_int(key, static_cast<int64_t>(out)));
}
void get_float(const Value& in, std::string_view key, float& out) {
  out = static_cast<float>(in.get_double(key, static_cast<double>(out)));
}
void get_bytes(const Value& in, std::string_view key, std::string& out) {
  std::vector<uint8_t> bytes;
  get_list(in, key, bytes);
  out.assign(bytes.begin(), bytes.end());
}

std::shared_ptr<const SampleSpec> read_sample(const Value& in) {
  auto s = std::make_shared<SampleSpec>();
  get_float(in, "temperature", s->temperature);
  get_int(in, "top_k", s->top_k);
  get_float(in, "top_p", s->top_p);
  get_float(in, "min_p", s->min_p);
  get_float(in, "typical_p", s->typical_p);
  get_float(in, "dry_multiplier", s->dry_multiplier);
  get_float(in, "dry_base", s->dry_base);
  get_int(in, "dry_allowed_length", s->dry_allowed_length);
  get_int(in, "dry_last_n", s->dry_last_n);
  get_list(in, "dry_breakers", s->dry_breakers);
  get_float(in, "xtc_probability", s->xtc_probability);
  get_float(in, "xtc_threshold", s->xtc_threshold);
  get_list(in, "order", s->order);
  get_float(in, "repetition_penalty", s->repetition_penalty);
  get_float(in, "presence_penalty", s->presence_penalty);
  get_float(in, "frequency_penalty", s->frequency_penalty);
  if (const Value* bias = in.find("logit_bias"))
    for (const Value& pair : bias->as_array())
      s->logit_bias.emplace_back(static_cast<int32_t>(pair.as_array().at(0).as_int()),
                                 static_cast<float>(pair.as_array().at(1).as_double()));
  get_list(in, "banned_until_min", s->banned_until_min);
  get_int(in, "min_tokens", s->min_tokens);
  get_int(in, "top_logprobs", s->top_logprobs);
  get_int(in, "seed", s->seed);
  return s;
}

RequestSpec read_request(const Value& in) {
  RequestSpec s;
  get_list(in, "prompt", s.prompt);
  get_int(in, "max_tokens", s.max_tokens);
  get_list(in, "stop_ids", s.stop_ids);
  get_int(in, "n", s.n);
  get_int(in, "beams", s.beams);
  get_float(in, "length_penalty", s.length_penalty);
  get_int(in, "early_stopping", s.early_stopping);
  get_int(in, "score_prompt", s.score_prompt);
  get_int(in, "score_from", s.score_from);
  get_int(in, "priority", s.priority);
  get_bytes(in, "cache_salt", s.cache_salt);
  get_bytes(in, "tenant", s.tenant);
  get_int(in, "deadline", s.deadline);
  get_int(in, "queue_deadline", s.queue_deadline);
  get_int(in, "cache_priority", s.cache_priority);
  get_int(in, "cache_ttl", s.cache_ttl);
  if (const Value* sample = in.find("sample")) s.sample = read_sample(*sample);
  return s;
}

void read_result(const Value& in, StepResult& r) {
  r.seconds = in.get_double("seconds", 0);
  get_list(in, "ids", r.ids);
  get_list(in, "logprobs", r.logprobs);
  get_list(in, "path", r.path);
  get_list(in, "path_start", r.path_start);
  get_list(in, "failed", r.failed);
  if (const Value* top = in.find("top"))
    for (const Value& t : top->as_array())
      r.top.push_back({static_cast<int32_t>(t.as_array().at(0).as_int()),
                       {static_cast<int32_t>(t.as_array().at(1).as_int()),
                        static_cast<float>(t.as_array().at(2).as_double())}});
}

Event read_event(const Value& in, StepResult& result) {
  auto number = [&](const char* key) { return static_cast<uint64_t>(in.at(key).as_int()); };
  auto small = [&](const char* key) { return static_cast<int32_t>(in.at(key).as_int()); };
  if (in.has("arrival")) return Event::arrival(number("arrival"), read_request(in));
  if (in.has("cancel")) return Event::cancel(number("cancel"));
  if (in.has("stop_at"))
    return Event::stop_at(number("stop_at"), small("choice"), small("position"));
  if (in.has("failed") && in.has("error"))
    return Event::step_failed(number("failed"), in.at("error").as_string());
  read_result(in, result);
  return Event::step_done(number("done"), &result);
}

// --- actions as text

template <class T>
void put_list(std::string& out, std::string_view key, const T& values) {
  if (values.empty()) return;
  fmt::format_to(std::back_inserter(out), " {}={}", key, fmt::join(values, ","));
}

}  // namespace

void EventLog::record(Nanos now, std::span<const Event> events) {
  full_ = full_ || text_.size() >= most_bytes_;
  if (full_) return;
  Value list = Value::array();
  for (const Event& e : events) list.push(event_value(e));
  text_ += dump_json(Value::Object{{"now", now}, {"events", std::move(list)}});
  text_ += '\n';
}

void replay_events(std::string_view log, EngineCore& core,
                   const std::function<void(Nanos, const Actions&)>& observe) {
  Actions actions;
  for (int line = 1; !log.empty(); ++line) {
    std::string_view text = log.substr(0, log.find('\n'));
    log.remove_prefix(std::min(text.size() + 1, log.size()));
    Nanos now = 0;
    std::vector<Event> events;
    std::vector<StepResult> results;
    try {
      Value call = parse_json(text, "event");
      now = call.at("now").as_int();
      const Value::Array& list = call.at("events").as_array();
      results.resize(list.size());
      for (size_t i = 0; i < list.size(); ++i) events.push_back(read_event(list[i], results[i]));
    } catch (const std::exception& e) {
      fail(ErrorCode::kCorrupt, "event log, line {}: {}", line, e.what());
    }
    core.advance(now, events, actions);
    observe(now, actions);
  }
}

std::string actions_text(const Actions& actions) {
  std::string out;
  auto at = std::back_inserter(out);
  for (const SubmitAction& s : actions.submits) {
    const StepInputs& in = *s.inputs;
    fmt::format_to(at, "submit {} {}", s.ticket, in.function);
    put_list(out, "ids", in.ids);
    put_list(out, "pos", in.pos);
    put_list(out, "slot", in.slot);
    put_list(out, "q_start", in.q_start);
    put_list(out, "kv_len", in.kv_len);
    put_list(out, "row", in.row);
    put_list(out, "out_rows", in.out_rows);
    for (const StepInputs::Table& t : in.tables) put_list(out, "table", t.blocks);
    for (const BlockCopy& c : in.copies)
      fmt::format_to(at, " copy={}:{}:{}", c.group, c.from, c.to);
    for (const SlotMove& m : in.moves) fmt::format_to(at, " move={}:{}:{}", m.group, m.from, m.to);
    out += '\n';
  }
  for (const Delta& d : actions.deltas()) {
    fmt::format_to(at, "delta {} {} {} {}", d.request, d.choice, d.position, finish_name(d.finish));
    put_list(out, "ids", d.ids);
    put_list(out, "logprobs", d.logprobs);
    put_list(out, "prompt_logprobs", d.prompt_logprobs);
    if (d.cached_tokens > 0) fmt::format_to(at, " cached={}", d.cached_tokens);
    if (!d.error.empty()) fmt::format_to(at, " error={}", d.error);
    out += '\n';
  }
  for (RequestId id : actions.finished) fmt::format_to(at, "finished {}\n", id);
  return out;
}

}  // namespace tokamak
