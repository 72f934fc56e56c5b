#include "engine/event_log.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "base/error.h"
#include "base/json.h"

namespace tokamak {
namespace {

// Each list of fields below is used by a Writer and by a Reader. Members that have their default
// value are left out of the log.
class Writer {
 public:
  template <class T>
  void field(std::string_view key, const T& value, const T& fallback) {
    if (value != fallback) out_.set(key, as_value(value));
  }
  template <class T>
  void field(std::string_view key, const std::vector<T>& values) {
    if (values.empty()) return;
    Value list = Value::array();
    for (const T& v : values) list.push(as_value(v));
    out_.set(key, std::move(list));
  }
  void field(std::string_view key, const std::string& bytes) {  // any bytes: JSON has text only
    field(key, std::vector<uint8_t>(bytes.begin(), bytes.end()));
  }
  void set(std::string_view key, Value value) { out_.set(key, std::move(value)); }
  Value take() { return std::move(out_); }

 private:
  template <class T>
  static Value as_value(const T& v) {
    if constexpr (requires { v.first; })  // logit_bias
      return Value::Array{as_value(v.first), as_value(v.second)};
    else if constexpr (requires { v.logprob; })
      return Value::Array{as_value(v.id), as_value(v.logprob)};
    else if constexpr (std::is_floating_point_v<T>)
      return static_cast<double>(v);
    else
      return static_cast<int64_t>(v);
  }
  Value out_ = Value::object();
};

class Reader {
 public:
  explicit Reader(const Value& in) : in_(in) {}
  template <class T>
  void field(std::string_view key, T& value, const T& /*fallback*/) {
    if (const Value* v = in_.find(key)) read(*v, value);
  }
  template <class T>
  void field(std::string_view key, std::vector<T>& values) {
    const Value* list = in_.find(key);
    if (list == nullptr) return;
    for (const Value& v : list->as_array()) read(v, values.emplace_back());
  }
  void field(std::string_view key, std::string& bytes) {
    std::vector<uint8_t> list;
    field(key, list);
    bytes.assign(list.begin(), list.end());
  }

 private:
  template <class T>
  static void read(const Value& in, T& out) {
    if constexpr (requires { out.first; }) {
      read(in.as_array().at(0), out.first);
      read(in.as_array().at(1), out.second);
    } else if constexpr (requires { out.logprob; }) {
      read(in.as_array().at(0), out.id);
      read(in.as_array().at(1), out.logprob);
    } else if constexpr (std::is_floating_point_v<T>) {
      out = in.is_null() ? NAN : static_cast<T>(in.as_double());  // JSON has no NaN
    } else {
      out = static_cast<T>(in.as_int());
    }
  }
  const Value& in_;
};

template <class Io, class Spec>
void sample_fields(Io& io, Spec& s) {
  static const SampleSpec d;
  io.field("temperature", s.temperature, d.temperature);
  io.field("top_k", s.top_k, d.top_k);
  io.field("top_p", s.top_p, d.top_p);
  io.field("min_p", s.min_p, d.min_p);
  io.field("typical_p", s.typical_p, d.typical_p);
  io.field("top_n_sigma", s.top_n_sigma, d.top_n_sigma);
  io.field("dynatemp_range", s.dynatemp_range, d.dynatemp_range);
  io.field("dynatemp_exponent", s.dynatemp_exponent, d.dynatemp_exponent);
  io.field("dry_multiplier", s.dry_multiplier, d.dry_multiplier);
  io.field("dry_base", s.dry_base, d.dry_base);
  io.field("dry_allowed_length", s.dry_allowed_length, d.dry_allowed_length);
  io.field("dry_last_n", s.dry_last_n, d.dry_last_n);
  io.field("dry_breakers", s.dry_breakers);
  io.field("xtc_probability", s.xtc_probability, d.xtc_probability);
  io.field("xtc_threshold", s.xtc_threshold, d.xtc_threshold);
  io.field("rejection", s.rejection, d.rejection);
  io.field("mirostat", s.mirostat, d.mirostat);
  io.field("mirostat_tau", s.mirostat_tau, d.mirostat_tau);
  io.field("mirostat_eta", s.mirostat_eta, d.mirostat_eta);
  io.field("order", s.order);
  io.field("repetition_penalty", s.repetition_penalty, d.repetition_penalty);
  io.field("presence_penalty", s.presence_penalty, d.presence_penalty);
  io.field("frequency_penalty", s.frequency_penalty, d.frequency_penalty);
  io.field("penalty_last_n", s.penalty_last_n, d.penalty_last_n);
  io.field("penalize_prompt", s.penalize_prompt, d.penalize_prompt);
  io.field("logit_bias", s.logit_bias);
  io.field("banned_until_min", s.banned_until_min);
  io.field("min_tokens", s.min_tokens, d.min_tokens);
  io.field("top_logprobs", s.top_logprobs, d.top_logprobs);
  io.field("report_sampled", s.report_sampled, d.report_sampled);
  io.field("seed", s.seed, d.seed);
  io.field("guidance_scale", s.guidance_scale, d.guidance_scale);
  io.field("dola_layers", s.dola_layers);
  io.field("penalty_alpha", s.penalty_alpha, d.penalty_alpha);
}

template <class Io, class Spec>
void request_fields(Io& io, Spec& s) {
  static const RequestSpec d;
  io.field("prompt", s.prompt);
  io.field("max_tokens", s.max_tokens, d.max_tokens);
  io.field("stop_ids", s.stop_ids);
  io.field("jump_forward", s.jump_forward, d.jump_forward);
  io.field("n", s.n, d.n);
  io.field("beams", s.beams, d.beams);
  io.field("length_penalty", s.length_penalty, d.length_penalty);
  io.field("early_stopping", s.early_stopping, d.early_stopping);
  io.field("score_prompt", s.score_prompt, d.score_prompt);
  io.field("score_from", s.score_from, d.score_from);
  io.field("pool", s.pool, d.pool);
  io.field("second_text", s.second_text, d.second_text);
  io.field("priority", s.priority, d.priority);
  io.field("cache_salt", s.cache_salt);
  io.field("tenant", s.tenant);
  io.field("deadline", s.deadline, d.deadline);
  io.field("queue_deadline", s.queue_deadline, d.queue_deadline);
  io.field("cache_priority", s.cache_priority, d.cache_priority);
  io.field("cache_ttl", s.cache_ttl, d.cache_ttl);
  io.field("draft_tokens", s.draft_tokens, d.draft_tokens);
  io.field("prediction", s.prediction);
  io.field("negative_prompt", s.negative_prompt);
}

template <class Io, class Result>
void result_fields(Io& io, Result& r) {
  io.field("seconds", r.seconds, 0.0);
  io.field("ids", r.ids);
  io.field("logprobs", r.logprobs);
  io.field("path", r.path);
  io.field("path_start", r.path_start);
  io.field("failed", r.failed);
  io.field("top", r.top);
  io.field("mirostat_mu", r.mirostat_mu);
  io.field("hidden", r.hidden);
}

Value event_value(const Event& e) {
  Writer out;
  switch (e.kind) {
    case Event::Kind::kArrival:
      out.set("arrival", e.request);
      request_fields(out, e.spec);
      if (e.spec.adapter) out.set("adapter", e.spec.adapter->id);
      if (e.spec.sample) {
        Writer sample;
        sample_fields(sample, *e.spec.sample);
        out.set("sample", sample.take());
      }
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
      result_fields(out, *e.result);
      break;
    case Event::Kind::kStepFailed:
      out.set("failed", e.ticket);
      out.set("error", e.error);
      break;
  }
  return out.take();
}

RequestSpec read_request(const Value& in) {
  RequestSpec s;
  Reader reader(in);
  request_fields(reader, s);
  if (const Value* sample = in.find("sample")) {
    auto spec = std::make_shared<SampleSpec>();
    Reader fields(*sample);
    sample_fields(fields, *spec);
    s.sample = std::move(spec);
  }
  if (const Value* id = in.find("adapter")) {  // without its matrices
    auto adapter = std::make_shared<Adapter>();
    adapter->id = static_cast<uint64_t>(id->as_int());
    s.adapter = std::move(adapter);
  }
  return s;
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
  Reader reader(in);
  result_fields(reader, result);
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
    for (const StepPhase& p : in.phases)
      fmt::format_to(at, " phase={}:{}:{}:{}", p.function, p.tokens, p.sequences, p.outputs);
    put_list(out, "ids", in.ids);
    put_list(out, "pos", in.pos);
    put_list(out, "slot", in.slot);
    put_list(out, "q_start", in.q_start);
    put_list(out, "kv_len", in.kv_len);
    put_list(out, "row", in.row);
    put_list(out, "out_rows", in.out_rows);
    for (const AdapterAction& a : actions.adapters)
      fmt::format_to(at, " adapter={}:{}", a.slot, a.adapter->id);
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
    put_list(out, "vector", d.vector);
    if (d.cached_tokens > 0) fmt::format_to(at, " cached={}", d.cached_tokens);
    if (d.drafted > 0) fmt::format_to(at, " drafted={} accepted={}", d.drafted, d.accepted);
    if (d.forced > 0) fmt::format_to(at, " forced={}", d.forced);
    if (!d.error.empty()) fmt::format_to(at, " error={}", d.error);
    out += '\n';
  }
  for (RequestId id : actions.finished) fmt::format_to(at, "finished {}\n", id);
  return out;
}

}  // namespace tokamak
