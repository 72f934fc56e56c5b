#include "engine/event_log.h"

#include <fmt/format.h>

#include <charconv>
#include <iterator>

#include "base/error.h"

namespace tokamak {
namespace {

// --- writing

template <class T>
void put_list(std::string& out, std::string_view key, const T& values) {
  if (values.empty()) return;
  fmt::format_to(std::back_inserter(out), " {}={}", key, fmt::join(values, ","));
}

std::string hex(std::string_view bytes) {
  std::string out = "x";
  for (unsigned char c : bytes) fmt::format_to(std::back_inserter(out), "{:02x}", c);
  return out;
}

void put_sample(std::string& out, const SampleSpec& s) {
  fmt::format_to(std::back_inserter(out), " sample={},{},{},{},{},{},{},{},{},{}", s.temperature,
                 s.top_k, s.top_p, s.min_p, s.repetition_penalty, s.presence_penalty,
                 s.frequency_penalty, s.min_tokens, s.top_logprobs, s.seed);
  if (s.typical_p != 1.0f || s.xtc_probability > 0 || s.dry_multiplier > 0)
    fmt::format_to(std::back_inserter(out), " filters={},{},{},{},{},{},{}", s.typical_p,
                   s.xtc_probability, s.xtc_threshold, s.dry_multiplier, s.dry_base,
                   s.dry_allowed_length, s.dry_last_n);
  put_list(out, "breakers", s.dry_breakers);
  std::vector<int> order;
  for (SampleStage stage : s.order) order.push_back(static_cast<int>(stage));
  put_list(out, "order", order);
  put_list(out, "banned", s.banned_until_min);
  std::vector<std::string> bias;
  for (auto [id, b] : s.logit_bias) bias.push_back(fmt::format("{}:{}", id, b));
  put_list(out, "bias", bias);
}

void put_arrival(std::string& out, const Event& e) {
  const RequestSpec& s = e.spec;
  fmt::format_to(std::back_inserter(out),
                 "arrival {} max={} n={} score={} score_from={} priority={} deadline={}", e.request,
                 s.max_tokens, s.n, s.score_prompt ? 1 : 0, s.score_from, s.priority, s.deadline);
  put_list(out, "prompt", s.prompt);
  put_list(out, "stop", s.stop_ids);
  if (!s.cache_salt.empty()) out += " salt=" + hex(s.cache_salt);
  if (!s.tenant.empty()) out += " tenant=" + hex(s.tenant);
  if (s.queue_deadline != kNever)
    fmt::format_to(std::back_inserter(out), " queue_deadline={}", s.queue_deadline);
  if (s.cache_priority != 0 || s.cache_ttl != kNever)
    fmt::format_to(std::back_inserter(out), " keep={},{}", s.cache_priority, s.cache_ttl);
  if (s.beams != 0)
    fmt::format_to(std::back_inserter(out), " beams={},{},{}", s.beams, s.length_penalty,
                   s.early_stopping ? 1 : 0);
  if (s.sample) put_sample(out, *s.sample);
}

void put_done(std::string& out, const Event& e) {
  const StepResult& r = *e.result;
  fmt::format_to(std::back_inserter(out), "done {} seconds={}", e.ticket, r.seconds);
  put_list(out, "ids", r.ids);
  put_list(out, "logprobs", r.logprobs);
  put_list(out, "accepted", r.accepted);
  put_list(out, "failed", std::vector<int>(r.failed.begin(), r.failed.end()));
  std::vector<std::string> top;
  for (const auto& [row, t] : r.top) top.push_back(fmt::format("{}:{}:{}", row, t.id, t.logprob));
  put_list(out, "top", top);
}

// --- reading

[[noreturn]] void bad(int line, std::string_view what) {
  fail(ErrorCode::kCorrupt, "event log, line {}: {}", line, what);
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    size_t end = std::min(text.find(at), text.size());
    if (end > 0) out.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

template <class T>
T number(std::string_view text, int line) {
  T value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    bad(line, fmt::format("\"{}\" is not a number", text));
  return value;
}

template <class T>
std::vector<T> numbers(std::string_view text, int line) {
  std::vector<T> out;
  for (std::string_view part : split(text, ',')) out.push_back(number<T>(part, line));
  return out;
}

std::string unhex(std::string_view text, int line) {
  if (!text.starts_with('x') || text.size() % 2 == 0) bad(line, "bytes are not in hex");
  std::string out;
  for (size_t i = 1; i < text.size(); i += 2) {
    int value = 0;
    auto [end, error] = std::from_chars(text.data() + i, text.data() + i + 2, value, 16);
    if (error != std::errc() || end != text.data() + i + 2) bad(line, "bytes are not in hex");
    out.push_back(static_cast<char>(value));
  }
  return out;
}

void read_sample(std::string_view text, SampleSpec& s, int line) {
  auto f = split(text, ',');
  if (f.size() != 10) bad(line, "a sample has ten fields");
  s.temperature = number<float>(f[0], line);
  s.top_k = number<int32_t>(f[1], line);
  s.top_p = number<float>(f[2], line);
  s.min_p = number<float>(f[3], line);
  s.repetition_penalty = number<float>(f[4], line);
  s.presence_penalty = number<float>(f[5], line);
  s.frequency_penalty = number<float>(f[6], line);
  s.min_tokens = number<int32_t>(f[7], line);
  s.top_logprobs = number<int32_t>(f[8], line);
  s.seed = number<uint64_t>(f[9], line);
}

void read_filters(std::string_view text, SampleSpec& s, int line) {
  auto f = split(text, ',');
  if (f.size() != 7) bad(line, "filters have seven fields");
  s.typical_p = number<float>(f[0], line);
  s.xtc_probability = number<float>(f[1], line);
  s.xtc_threshold = number<float>(f[2], line);
  s.dry_multiplier = number<float>(f[3], line);
  s.dry_base = number<float>(f[4], line);
  s.dry_allowed_length = number<int32_t>(f[5], line);
  s.dry_last_n = number<int32_t>(f[6], line);
}

void read_keep(std::string_view text, RequestSpec& spec, int line) {
  auto keep = numbers<int64_t>(text, line);
  if (keep.size() != 2) bad(line, "keep is priority,ttl");
  spec.cache_priority = static_cast<int32_t>(keep[0]);
  spec.cache_ttl = keep[1];
}

void read_beams(std::string_view text, RequestSpec& spec, int line) {
  auto beams = split(text, ',');
  if (beams.size() != 3) bad(line, "beams is width,length_penalty,early_stopping");
  spec.beams = number<int32_t>(beams[0], line);
  spec.length_penalty = number<float>(beams[1], line);
  spec.early_stopping = beams[2] == "1";
}

struct Field {
  std::string_view key, value;
};

Field field(std::string_view word, int line) {
  size_t at = word.find('=');
  if (at == std::string_view::npos) bad(line, fmt::format("\"{}\" is not key=value", word));
  return {word.substr(0, at), word.substr(at + 1)};
}

Event read_arrival(std::span<const std::string_view> words, int line) {
  RequestSpec spec;
  SampleSpec sample;
  bool sampled = false;
  for (std::string_view word : words.subspan(2)) {
    auto [key, v] = field(word, line);
    if (key == "max")
      spec.max_tokens = number<int32_t>(v, line);
    else if (key == "n")
      spec.n = number<int32_t>(v, line);
    else if (key == "score")
      spec.score_prompt = v == "1";
    else if (key == "score_from")
      spec.score_from = number<int32_t>(v, line);
    else if (key == "priority")
      spec.priority = number<int32_t>(v, line);
    else if (key == "deadline")
      spec.deadline = number<Nanos>(v, line);
    else if (key == "prompt")
      spec.prompt = numbers<int32_t>(v, line);
    else if (key == "stop")
      spec.stop_ids = numbers<int32_t>(v, line);
    else if (key == "salt")
      spec.cache_salt = unhex(v, line);
    else if (key == "tenant")
      spec.tenant = unhex(v, line);
    else if (key == "queue_deadline")
      spec.queue_deadline = number<Nanos>(v, line);
    else if (key == "keep")
      read_keep(v, spec, line);
    else if (key == "beams")
      read_beams(v, spec, line);
    else if (key == "filters")
      read_filters(v, sample, line);
    else if (key == "breakers")
      sample.dry_breakers = numbers<int32_t>(v, line);
    else if (key == "order")
      for (int stage : numbers<int>(v, line))
        sample.order.push_back(static_cast<SampleStage>(stage));
    else if (key == "banned")
      sample.banned_until_min = numbers<int32_t>(v, line);
    else if (key == "bias") {
      for (std::string_view pair : split(v, ',')) {
        auto parts = split(pair, ':');
        if (parts.size() != 2) bad(line, "a bias is id:value");
        sample.logit_bias.emplace_back(number<int32_t>(parts[0], line),
                                       number<float>(parts[1], line));
      }
    } else if (key == "sample") {
      read_sample(v, sample, line);
      sampled = true;
    } else {
      bad(line, fmt::format("unknown field {}", key));
    }
  }
  if (sampled) spec.sample = std::make_shared<const SampleSpec>(std::move(sample));
  return Event::arrival(number<RequestId>(words[1], line), std::move(spec));
}

Event read_done(std::span<const std::string_view> words, StepResult& r, int line) {
  for (std::string_view word : words.subspan(2)) {
    auto [key, v] = field(word, line);
    if (key == "seconds")
      r.seconds = number<double>(v, line);
    else if (key == "ids")
      r.ids = numbers<int32_t>(v, line);
    else if (key == "logprobs")
      r.logprobs = numbers<float>(v, line);
    else if (key == "accepted")
      r.accepted = numbers<int32_t>(v, line);
    else if (key == "failed")
      r.failed = numbers<uint8_t>(v, line);
    else if (key == "top") {
      for (std::string_view t : split(v, ',')) {
        auto parts = split(t, ':');
        if (parts.size() != 3) bad(line, "an alternative is row:id:logprob");
        r.top.push_back({number<int32_t>(parts[0], line),
                         {number<int32_t>(parts[1], line), number<float>(parts[2], line)}});
      }
    } else {
      bad(line, fmt::format("unknown field {}", key));
    }
  }
  return Event::step_done(number<Ticket>(words[1], line), &r);
}

Event read_event(std::string_view text, StepResult& result, int line) {
  auto words = split(text, ' ');
  if (words.size() < 2) bad(line, "an event is missing");
  if (words[0] == "arrival") return read_arrival(words, line);
  if (words[0] == "done") return read_done(words, result, line);
  if (words[0] == "cancel") return Event::cancel(number<RequestId>(words[1], line));
  if (words[0] == "failed" && words.size() == 3)
    return Event::step_failed(number<Ticket>(words[1], line), unhex(words[2], line));
  if (words[0] == "stop_at" && words.size() == 4)
    return Event::stop_at(number<RequestId>(words[1], line), number<int32_t>(words[2], line),
                          number<int32_t>(words[3], line));
  bad(line, fmt::format("\"{}\" is not an event", words[0]));
}

}  // namespace

void EventLog::record(Nanos now, std::span<const Event> events) {
  full_ = full_ || text_.size() >= most_bytes_;
  if (full_) return;
  fmt::format_to(std::back_inserter(text_), "advance {} {}\n", now, events.size());
  for (const Event& e : events) {
    auto out = std::back_inserter(text_);
    switch (e.kind) {
      case Event::Kind::kArrival:
        put_arrival(text_, e);
        break;
      case Event::Kind::kCancel:
        fmt::format_to(out, "cancel {}", e.request);
        break;
      case Event::Kind::kStopAt:
        fmt::format_to(out, "stop_at {} {} {}", e.request, e.choice, e.position);
        break;
      case Event::Kind::kStepDone:
        put_done(text_, e);
        break;
      case Event::Kind::kStepFailed:
        fmt::format_to(out, "failed {} {}", e.ticket, hex(e.error));
        break;
    }
    text_ += '\n';
  }
}

void replay_events(std::string_view log, EngineCore& core,
                   const std::function<void(Nanos, const Actions&)>& observe) {
  auto lines = split(log, '\n');
  Actions actions;
  for (size_t i = 0; i < lines.size();) {
    int line = static_cast<int>(i) + 1;
    auto words = split(lines[i++], ' ');
    if (words.size() != 3 || words[0] != "advance") bad(line, "expected advance <now> <events>");
    auto now = number<Nanos>(words[1], line);
    auto count = number<size_t>(words[2], line);
    if (count > lines.size() - i) bad(line, "the log ends in the middle of a call");
    std::vector<Event> events;
    std::vector<StepResult> results(count);
    for (size_t k = 0; k < count; ++k, ++i)
      events.push_back(read_event(lines[i], results[k], static_cast<int>(i) + 1));
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
