// The statements of a program that ask the engine for something.
#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "base/rng.h"
#include "serve/grammar_mask.h"
#include "serve/program/branch.h"
#include "serve/program/mailbox.h"
#include "serve/program/run.h"

namespace tokamak::program {
namespace {

constexpr size_t kMostChoices = 256;

std::vector<int32_t> end_ids(const Tokenizer& tokenizer) {
  std::vector<int32_t> ids = tokenizer.spec().eog_ids;
  if (int32_t eos = tokenizer.eos_id(); eos >= 0) ids.push_back(eos);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

// JSON has no infinities.
Value number(double x) { return std::isfinite(x) ? Value(x) : Value(); }

}  // namespace

const Host& Run::host_of(const Statement& s) const {
  return s.model.empty() ? host_ : *host_.models.at(s.model);
}

// What the branch has written, in the ids of the statement's model.
Context& Run::context_of(Branch& branch, const Statement& s) const {
  if (s.model.empty()) return branch.context;
  const Host& host = host_of(s);
  auto [it, is_new] = branch.others.try_emplace(s.model, host.tokenizer,
                                                program_->chat ? host.chat_template : nullptr);
  it->second.follow(branch.context);
  return it->second;
}

void Run::write(Branch& branch, const Statement& s, const std::vector<int32_t>& ids,
                const std::string& text, bool cut) {
  if (s.model.empty()) return branch.context.add_ids(ids, text, cut);
  branch.others.at(s.model).add_ids(ids, text, cut);
  branch.context.add_text(text);
}

RequestSpec Run::spec_for(const std::vector<int32_t>& ids) const {
  RequestSpec spec;
  spec.prompt = ids;
  spec.cache_salt = host_.cache_salt;
  spec.tenant = host_.tenant;
  spec.deadline = deadline_;
  return spec;
}

SampleSpec Run::sampling_of(Branch& branch, const Statement& s) const {
  SampleSpec sample = host_of(s).defaults;
  for (const auto& [setting, value] : s.gen.sampling)
    set_sample_param(sample, setting->name, value);
  normalize_sampling(sample);
  auto bits = philox(branch.key, branch.events++, 0);
  sample.seed = uint64_t{bits[0]} << 32 | bits[1];
  if (!s.score_name.empty()) sample.top_logprobs = 0;
  return sample;
}

void Run::constrain(const Statement& s, RequestSpec& spec) const {
  const Host& host = host_of(s);
  GrammarMaskOptions options;
  options.grammar = host.grammars->get(*s.gen.grammar);
  options.tokenizer = host.tokenizer;
  options.end_ids = grammar_end_ids(*host.tokenizer, {});
  spec.stop_ids = options.end_ids;
  spec.mask = std::make_shared<GrammarMask>(std::move(options));
}

void Run::reserve(Branch& branch, int64_t tokens) {
  tokens_ += tokens;
  branch.pending->reserved += tokens;
  if (tokens_ > program_->limits.tokens)
    throw ProgramError(branch.pending->statement->path,
                       fmt::format("it could make the program generate {} tokens, the limit is {} "
                                   "(limits.tokens)",
                                   tokens_, program_->limits.tokens),
                       true);
}

void Run::submit(Branch& branch, RequestSpec spec, size_t part) {
  size_t request = next_request_++;
  const Statement& s = *branch.pending->statement;
  Client* client = host_of(s).client.get();
  usage_.requests++;
  usage_.prompt_tokens += static_cast<int64_t>(spec.prompt.size());
  try {
    RequestId id = client->submit(std::move(spec), [box = mailbox_, request](Delta&& delta) {
      box->push(request, std::move(delta));
    });
    sent_.emplace(request, Sent{&branch, part, id, client});
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kOutOfRange && e.code() != ErrorCode::kInvalidArgument) throw;
    throw ProgramError(s.path, e.what());
  }
  ++branch.pending->open;
}

void Run::start_gen(Branch& branch, const Statement& s) {
  const Host& host = host_of(s);
  Context& context = context_of(branch, s);
  RequestSpec spec = spec_for(context.ids());
  int64_t room = host.max_model_len - static_cast<int64_t>(spec.prompt.size());
  if (room < 1) wrong(s.path, "the context of {} tokens is full", host.max_model_len);
  auto limit = static_cast<int32_t>(std::min<int64_t>(s.gen.max_tokens, room));
  if (!s.gen.ignore_eos) spec.stop_ids = end_ids(*host.tokenizer);
  SampleSpec sample = sampling_of(branch, s);
  if (s.gen.grammar) {
    constrain(s, spec);
    sample.min_tokens = 0;  // up to the grammar
  } else if (sample.min_tokens > 0) {
    sample.banned_until_min = spec.stop_ids;
  }
  spec.sample = std::make_shared<const SampleSpec>(std::move(sample));
  branch.pending = std::make_unique<Pending>(Pending{.statement = &s});
  branch.pending->detokenizer = std::make_unique<Detokenizer>(context.continuation());
  branch.pending->stops = StopStrings(s.gen.stops);
  branch.pending->limit = limit;
  branch.pending->prompt = spec.prompt;
  branch.pending->sample = spec.sample;
  std::vector<int32_t> given = take_run_on(branch);
  spec.max_tokens = static_cast<int32_t>(std::min<int64_t>(int64_t{limit} + s.gen.run_on, room));
  spec.max_tokens -= static_cast<int32_t>(given.size());
  spec.prompt.insert(spec.prompt.end(), given.begin(), given.end());
  reserve(branch, spec.max_tokens);
  if (!given.empty()) {
    Delta delta;
    delta.ids = std::move(given);
    take_generated(branch, {&branch, 0, 0, nullptr}, std::move(delta));
    if (branch.pending != nullptr && branch.pending->complete()) end_gen(branch);
    if (branch.pending == nullptr) return;
  }
  submit(branch, std::move(spec), 0);
}

// A request per choice scores its tokens after the context, which is computed once.
void Run::start_select(Branch& branch, const Statement& s) {
  auto pending = std::make_unique<Pending>(Pending{.statement = &s});
  for (const Expression& choice : s.choices)
    pending->choices.push_back(value_of(branch, choice, s.path).as_string());
  if (s.choices.empty()) {
    Value list = value_of(branch, s.value, s.path);
    if (!list.is_array() || list.size() == 0 || list.size() > kMostChoices)
      wrong(s.path, "'choices' is not a list of 1 to {} texts", kMostChoices);
    for (const Value& item : list.as_array()) {
      if (!item.is_string()) wrong(s.path, "a choice is not a string, but {}", item.type_name());
      pending->choices.push_back(item.as_string());
    }
  }
  Context& context = context_of(branch, s);
  const std::vector<int32_t>& ids = context.ids();
  for (const std::string& choice : pending->choices) {
    pending->choice_ids.push_back(context.encode(choice));
    if (pending->choice_ids.back().empty()) wrong(s.path, "a choice is empty");
  }
  pending->scores.assign(pending->choices.size(), 0);
  branch.pending = std::move(pending);
  for (size_t i = 0; i < branch.pending->choices.size(); ++i) {
    const std::vector<int32_t>& choice = branch.pending->choice_ids[i];
    RequestSpec spec = spec_for(ids);
    spec.score_from = static_cast<int32_t>(ids.size());
    spec.prompt.insert(spec.prompt.end(), choice.begin(), choice.end());
    spec.max_tokens = 0;
    spec.score_prompt = true;
    reserve(branch, static_cast<int64_t>(choice.size()));
    submit(branch, std::move(spec), i);
  }
}

void Run::take(size_t request, Delta&& delta) {
  auto found = sent_.find(request);
  if (found == sent_.end()) return;  // a stop string has ended it
  Sent sent = found->second;
  const std::string& path = sent.branch->pending->statement->path;
  if (delta.finish == Finish::kTimeout)
    throw ProgramError(
        path, fmt::format("the program ran for more than {} s (limits.seconds)", seconds_), true);
  if (delta.finish == Finish::kError) throw Error(delta.error_code, path + ": " + delta.error);
  if (delta.finish == Finish::kCancelled)
    fail(ErrorCode::kUnavailable, "{}: the engine has stopped the request", path);
  if (delta.finish != Finish::kNone) sent_.erase(found);
  usage_.cached_tokens += delta.cached_tokens;
  take_generated(*sent.branch, sent, std::move(delta));
  if (sent.branch->pending == nullptr) ready_.push_back(sent.branch);
}

void Run::take_generated(Branch& branch, const Sent& sent, Delta&& delta) {
  Pending& p = *branch.pending;
  if (!p.choices.empty()) {
    size_t n = std::min(p.choice_ids[sent.part].size(), delta.prompt_logprobs.size());
    for (size_t i = delta.prompt_logprobs.size() - n; i < delta.prompt_logprobs.size(); ++i)
      p.scores[sent.part] += delta.prompt_logprobs[i] / static_cast<double>(n);
    if (delta.finish != Finish::kNone && --p.open == 0) end_select(branch);
    return;
  }
  std::string piece;
  for (size_t i = 0; i < delta.ids.size(); ++i) {
    if (p.complete()) {
      if (std::ssize(p.run_on) < p.statement->gen.run_on) p.run_on.push_back(delta.ids[i]);
      continue;
    }
    p.ids.push_back(delta.ids[i]);
    if (i < delta.logprobs.size()) p.logprob += delta.logprobs[i];
    piece += p.stops.push(p.detokenizer->push(delta.ids[i])).text;
  }
  bool ended = delta.finish != Finish::kNone;
  bool over = ended || (p.complete() && std::ssize(p.run_on) == p.statement->gen.run_on);
  if ((over || p.complete()) && !p.stops.stopped() && !std::exchange(p.flushed, true)) {
    piece += p.stops.push(p.detokenizer->finish()).text;
    piece += p.stops.finish();
  }
  for (auto it = sent_.begin(); over && !ended && it != sent_.end(); ++it)
    if (it->second.branch == &branch) {
      sent.client->stop_at(it->second.id, 0, static_cast<int32_t>(p.ids.size() + p.run_on.size()));
      sent_.erase(it);
      break;
    }
  p.text += piece;
  if (!piece.empty())
    event(branch, "text", {{"name", p.statement->name}, {"text", std::move(piece)}});
  if (over) end_gen(branch);
}

void Run::end_gen(Branch& branch) {
  std::unique_ptr<Pending> p = std::move(branch.pending);
  const Statement& s = *p->statement;
  int64_t generated = std::max<int64_t>(0, std::ssize(p->ids) + std::ssize(p->run_on) - p->given);
  tokens_ -= p->reserved - generated;
  usage_.completion_tokens += generated;
  keep_run_on(branch, *p);
  write(branch, s, p->ids, p->text, p->stops.stopped());
  Value value = p->text;
  if (s.gen.parse_json) {
    try {
      value = parse_json(p->text, s.name, {.max_depth = 64});
    } catch (const Error&) {
      value = Value();
    }
  }
  if (!s.score_name.empty())
    set(branch, s.path, s.score_name,
        number(p->ids.empty() ? 0 : p->logprob / static_cast<double>(p->ids.size())));
  event(branch, "value", {{"name", s.name}, {"value", value}});
  set(branch, s.path, s.name, std::move(value));
}

void Run::end_select(Branch& branch) {
  std::unique_ptr<Pending> p = std::move(branch.pending);
  const Statement& s = *p->statement;
  auto best =
      static_cast<size_t>(std::max_element(p->scores.begin(), p->scores.end()) - p->scores.begin());
  write(branch, s, p->choice_ids[best], p->choices[best]);
  Value scores = Value::array();
  for (double score : p->scores) scores.push(number(score));
  if (!s.score_name.empty()) set(branch, s.path, s.score_name, scores);
  event(branch, "value",
        {{"name", s.name}, {"value", p->choices[best]}, {"scores", std::move(scores)}});
  set(branch, s.path, s.name, p->choices[best]);
}

}  // namespace tokamak::program
