// What happens when a step has completed: its result decides which tokens are kept.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/core.h"

namespace tokamak {
namespace {

// The first choice of the entry, and then outputs that continue each other.
bool is_right_path(const StepEntry& e, std::span<const int32_t> path,
                   const std::vector<SampleRow>& samples) {
  if (!e.chooses || path.empty()) return path.empty() && !e.chooses;
  int32_t first = e.first_choice(), end = first + 1 + e.drafts;
  if (path[0] != first) return false;
  for (size_t i = 1; i < path.size(); ++i)
    if (path[i] <= path[i - 1] || path[i] >= end ||
        samples[static_cast<size_t>(path[i])].parent != path[i - 1])
      return false;
  return true;
}

// A backend that returns nonsense makes the step fail, not the engine.
const char* what_is_wrong(const PendingStep& step, const StepResult& result) {
  size_t rows = step.inputs.out_rows.size(), sequences = step.owners.size();
  if (result.ids.size() != rows || result.logprobs.size() != rows)
    return "the backend returned a wrong number of rows";
  if (result.path_start.size() != sequences + 1 || result.failed.size() != sequences ||
      result.path_start[0] != 0 || result.path_start.back() != std::ssize(result.path) ||
      !std::is_sorted(result.path_start.begin(), result.path_start.end()))
    return "the backend returned a wrong number of sequences";
  if (!vectors_complete(step, result)) return "the backend returned no vectors";
  for (size_t i = 0; i < step.entries.size(); ++i)
    if (result.failed[step.sequence_of(i)] == StepFailure::kNone &&
        !is_right_path(step.entries[i], result.path_of(step.sequence_of(i)), step.inputs.samples))
      return "the backend accepted tokens that do not continue each other";
  return nullptr;
}

const char* failure_text(StepFailure failure) {
  return failure == StepFailure::kNotFinite
             ? "the model's output was not a finite number"
             : "the token mask of the request allows no token at this position";
}

}  // namespace

void EngineCore::commit(Ticket ticket, const StepResult& result, Actions& actions) {
  TK_CHECK(ticket == completed_ && ticket < submitted_, "step {} is not the oldest", ticket);
  PendingStep& step = step_slot(ticket);
  if (const char* wrong = what_is_wrong(step, result)) return rewind(ticket, wrong, actions);
  ++completed_;
  Nanos duration = now_ - std::max(step.submitted, last_done_);
  last_done_ = now_;
  stats_.step_seconds.add(seconds(duration));
  scheduler_.observe(step, now_, duration);
  for (size_t i = 0; i < step.entries.size(); ++i) commit_entry(step, i, result, actions);
}

void EngineCore::commit_entry(const PendingStep& step, size_t entry, const StepResult& result,
                              Actions& actions) {
  const StepEntry& e = step.entries[entry];
  size_t index = step.sequence_of(entry);
  Sequence& seq = *e.sequence;
  if (seq.leader != nullptr) return commit_shadow(e);
  std::span<const int32_t> path = result.path_of(index);
  --seq.in_flight;
  if (e.epoch != seq.epoch || seq.phase == Sequence::Phase::kFinished) {
    stats_.tokens_discarded += std::ssize(path);
    return;
  }
  if (result.failed[index] != StepFailure::kNone)
    return finish(seq, Finish::kError, failure_text(result.failed[index]), actions);
  note_scores(seq, e, result);
  if (seq.request->spec.pool) note_vectors(seq, e, result, step);
  if (e.chooses) --seq.pending;
  seq.computed = e.start + e.count;
  if (e.pools) return commit_vector(seq, e.first_choice(), result, step, actions);
  if (e.drafts > 0) {
    path = path.first(kept_before_jump(seq, path, result));
    keep_path(seq, e, path, result);
  }
  if (seq.computed > seq.furthest) {  // not while a sequence that started again repeats its work
    seq.furthest = seq.computed;
    seq.failures = 0;
  }
  if (!path.empty() && static_cast<size_t>(path.back()) < result.mirostat_mu.size())
    seq.mirostat_mu = result.mirostat_mu[static_cast<size_t>(path.back())];
  if (seq.request->beam) {
    kv_.commit(seq.blocks, seq.computed, seq.ids());
    bool contrasts = seq.request->beam->contrast != nullptr;
    if (contrasts) note_states(seq, e, result, step);
    if (e.chooses && contrasts)
      commit_candidate(seq, e.first_choice(), result, step, actions);
    else if (e.chooses)
      commit_beam(seq, e.first_out, result, actions);
    return;
  }
  emit(seq, path, result, actions);
  kv_.commit(seq.blocks, seq.computed, seq.ids());
}

void EngineCore::commit_shadow(const StepEntry& e) {
  Sequence &seq = *e.sequence, &leader = *seq.leader;
  --leader.in_flight;
  if (e.epoch != seq.epoch || leader.phase == Sequence::Phase::kFinished) return;
  if (e.guides) --seq.pending;
  seq.computed = e.start + e.count;
  kv_.commit(seq.blocks, seq.computed, seq.ids());
}

// Keeps the slots of the path. If they are not the first slots of the entry, the next step moves
// them. No other step of the sequence is in flight.
void EngineCore::keep_path(Sequence& seq, const StepEntry& e, std::span<const int32_t> path,
                           const StepResult& result) {
  auto row = [&](size_t i) { return path[i] - e.first_choice(); };  // of the entry
  choices_.clear();
  for (auto out = static_cast<size_t>(e.first_choice()); std::ssize(choices_) <= e.drafts; ++out) {
    bool guessed = result.ids[out] < 0 && out < result.guesses.size();
    choices_.push_back(guessed ? result.guesses[out] : result.ids[out]);
  }
  scheduler_.note_accepted(seq, row(path.size() - 1) - 1, static_cast<int32_t>(path.size()) - 1,
                           choices_);
  seq.drafts.clear();
  seq.scheduled = e.start + static_cast<int32_t>(path.size());
  seq.computed = seq.scheduled;
  for (size_t i = path.size(); i-- > 0;) {
    auto to = static_cast<int32_t>(i);
    if (row(i) == to) break;
    seq.moves.emplace_back(e.start + row(i), e.start + to);
    seq.computed = e.start + to;
  }
  std::reverse(seq.moves.begin(),
               seq.moves.end());  // in order, no move overwrites the source of a later one
  kv_.truncate(seq.blocks, e.start + row(path.size() - 1) + 1);
}

void EngineCore::note_scores(Sequence& seq, const StepEntry& e, const StepResult& result) {
  bool tops = seq.sample().top_logprobs > 0 && e.scores > 0;
  auto top = tops ? std::lower_bound(result.top.begin(), result.top.end(), e.first_out,
                                     [](const auto& t, int32_t row) { return t.first < row; })
                  : result.top.end();
  for (int32_t row = e.first_out; row < e.first_out + e.scores; ++row) {
    seq.prompt_logprobs.push_back(result.logprobs[static_cast<size_t>(row)]);
    if (tops) seq.prompt_top.emplace_back();
    for (; top != result.top.end() && top->first <= row; ++top)
      if (top->first == row) seq.prompt_top.back().push_back(top->second);
  }
}

// `count` more tokens of it are known.
void EngineCore::note_tokens(Sequence& seq, size_t count) {
  if (count == 0) return;
  stats_.tokens_emitted += static_cast<int64_t>(count);
  if (seq.first_token == kNever) {
    seq.first_token = now_;
    stats_.ttft_seconds.add(seconds(now_ - seq.arrived));
    stats_.prefill_seconds.add(seconds(now_ - seq.started));
    --count;
  }
  // Tokens that were accepted together share the time since the last one.
  if (count > 0) {
    Nanos gap = now_ - (seq.last_token == kNever ? now_ : seq.last_token);
    stats_.itl_seconds.add(seconds(gap) / static_cast<double>(count), count);
  }
  seq.last_token = now_;
}

void EngineCore::note_end(const Sequence& seq, Finish how) {
  ++stats_.finished[static_cast<size_t>(how)];
  stats_.e2e_seconds.add(seconds(now_ - seq.arrived));
  stats_.answer_length.add(seq.generated());
  const RequestSpec& spec = seq.request->spec;
  if (spec.slot >= 0 && seq.choice == 0) slots_.note(spec.slot, spec.cache_salt, seq.ids());
  if (seq.first_token == kNever) return;
  stats_.decode_seconds.add(seconds(seq.last_token - seq.first_token));
  stats_.inference_seconds.add(seconds(seq.last_token - seq.started));
  if (seq.generated() > 1)
    stats_.tpot_seconds.add(seconds(seq.last_token - seq.first_token) / (seq.generated() - 1));
}

void EngineCore::emit(Sequence& seq, std::span<const int32_t> path, const StepResult& result,
                      Actions& actions) {
  bool prompt_only = seq.limit == 0 && seq.computed == seq.prompt_length();
  const bool waited_for = seq.request->spec.progress && seq.choice == 0 && !seq.first_delta_sent;
  if (path.empty() && !prompt_only && !waited_for) return;
  Delta& d = actions.add_delta(seq.request->id, seq.choice, seq.generated() - seq.unsent);
  if (waited_for) {
    d.prompt_done = std::min(seq.computed, seq.prompt_length());
    d.prompt_cached = seq.cached_tokens;
    if (path.empty() && !prompt_only) return;
  }
  d.forced = std::exchange(seq.unsent, 0);
  d.ids.assign(seq.ids().end() - d.forced, seq.ids().end());
  if (!seq.first_delta_sent) {
    d.prompt_logprobs.assign(seq.prompt_logprobs.begin(), seq.prompt_logprobs.end());
    d.prompt_top.assign(seq.prompt_top.begin(), seq.prompt_top.end());
    d.cached_tokens = seq.cached_tokens;
  }
  seq.first_delta_sent = true;
  d.drafted = std::exchange(seq.draft.drafted, 0);
  d.accepted = std::exchange(seq.draft.accepted, 0);
  Finish how = prompt_only ? Finish::kLength : Finish::kNone;
  int32_t wanted = seq.sample().top_logprobs;
  auto top = path.empty()
                 ? result.top.end()
                 : std::lower_bound(result.top.begin(), result.top.end(), path[0],
                                    [](const auto& t, int32_t row) { return t.first < row; });
  for (int32_t row : path) {
    int32_t id = result.ids[static_cast<size_t>(row)];
    if (how != Finish::kNone) {
      ++stats_.tokens_discarded;
      continue;
    }
    if (seq.stops_at(id)) {
      how = Finish::kStop;
      d.stop_id = id;
      continue;
    }
    seq.extend(id);
    d.ids.push_back(id);
    if (wanted >= 0) d.logprobs.push_back(result.logprobs[static_cast<size_t>(row)]);
    if (wanted > 0) d.top.emplace_back();
    for (; top != result.top.end() && top->first <= row; ++top)
      if (wanted > 0 && top->first == row) d.top.back().push_back(top->second);
    if (seq.generated() >= seq.limit) how = seq.limit_is_stop ? Finish::kStop : Finish::kLength;
  }
  if (how == Finish::kNone) how = jump(seq, d);
  note_tokens(seq, d.ids.size());
  if (how != Finish::kNone) close(seq, how, d, actions);
}

// The step has no effect: its sequences go back to what is committed and are tried again.
void EngineCore::rewind(Ticket ticket, std::string_view error, Actions& actions) {
  TK_CHECK(ticket == completed_ && ticket < submitted_, "step {} is not the oldest", ticket);
  ++completed_;
  ++stats_.failed_steps;
  last_done_ = now_;
  for (const StepEntry& e : step_slot(ticket).entries) {
    Sequence& seq = e.sequence->owner();
    --seq.in_flight;
    if (e.epoch != e.sequence->epoch || seq.phase == Sequence::Phase::kFinished) continue;
    seq.rewind();
    if (++seq.failures > config_.max_step_failures) finish(seq, Finish::kError, error, actions);
  }
}

void EngineCore::finish(Sequence& seq, Finish how, std::string_view error, Actions& actions) {
  if (seq.request->beam) return end_beams(*seq.request, how, error, actions);
  int32_t position = seq.generated() - seq.unsent;
  if (how == Finish::kStop) position = std::min(position, seq.limit);
  Delta& d = actions.add_delta(seq.request->id, seq.choice, position);
  d.error.assign(error);
  close(seq, how, d, actions);
}

void EngineCore::close(Sequence& seq, Finish how, Delta& last, Actions& actions) {
  last.finish = how;
  note_end(seq, how);
  Request& request = *seq.request;
  request.longest_answer = std::max(request.longest_answer, seq.generated());
  if (--request.unfinished == 0) {
    stats_.longest_answer.add(request.longest_answer);
    actions.finished.push_back(request.id);
  }
  drop(seq);
}

void EngineCore::drop(Sequence& seq) {
  bool waiting = seq.phase == Sequence::Phase::kWaiting;
  seq.phase = Sequence::Phase::kFinished;
  if (!waiting) return;  // the scheduler retires it when nothing in flight refers to it
  if (!seq.held) scheduler_.remove_waiting(&seq);
  retire(&seq);
}

}  // namespace tokamak
