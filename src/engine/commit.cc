// The third moment of a step: what came back decides what holds.
#include <algorithm>

#include "base/error.h"
#include "engine/core.h"

namespace tokamak {
namespace {

// A backend that returns nonsense costs a step, not the engine.
const char* what_is_wrong(const Step& step, const StepResult& result) {
  size_t rows = step.inputs.out_rows.size();
  if (result.ids.size() != rows || result.logprobs.size() != rows)
    return "the backend returned a wrong number of rows";
  if (result.accepted.size() != step.entries.size() || result.failed.size() != step.entries.size())
    return "the backend returned a wrong number of sequences";
  for (size_t b = 0; b < step.entries.size(); ++b) {
    const StepEntry& e = step.entries[b];
    int32_t lo = e.chooses ? 1 : 0, hi = e.chooses ? 1 + e.drafts : 0;
    if (!result.failed[b] && (result.accepted[b] < lo || result.accepted[b] > hi))
      return "the backend accepted an impossible number of tokens";
  }
  return nullptr;
}

}  // namespace

void EngineCore::commit(Ticket ticket, const StepResult& result, Actions& actions) {
  TK_CHECK(ticket == completed_ && ticket < submitted_, "step {} is not the oldest", ticket);
  Step& step = step_slot(ticket);
  if (const char* wrong = what_is_wrong(step, result)) return rewind(ticket, wrong, actions);
  ++completed_;
  Nanos duration = now_ - std::max(step.submitted, last_done_);
  last_done_ = now_;
  stats_.step_seconds.add(seconds(duration));
  scheduler_.observe(step.entries, duration);
  for (size_t b = 0; b < step.entries.size(); ++b)
    commit_entry(step.entries[b], b, result, actions);
}

void EngineCore::commit_entry(const StepEntry& e, size_t index, const StepResult& result,
                              Actions& actions) {
  Sequence& seq = *e.sequence;
  --seq.in_flight;
  if (e.epoch != seq.epoch || seq.phase == Sequence::Phase::kFinished) {
    stats_.tokens_discarded += result.accepted[index];
    return;
  }
  if (result.failed[index])
    return finish(seq, Finish::kError, "the model's output was not a finite number", actions);
  seq.failures = 0;
  int32_t accepted = result.accepted[index];
  auto first_out = static_cast<size_t>(e.first_out);
  auto scores = static_cast<size_t>(e.scores);
  note_scores(seq, e, result);
  Commit commit;
  commit.accepted = {result.ids.data() + first_out + scores, static_cast<size_t>(accepted)};
  commit.truncate_to = e.drafts > 0 ? e.start + accepted : e.start + e.count;
  seq.computed = commit.truncate_to;
  if (e.chooses) --seq.pending;
  if (e.drafts > 0) {
    seq.scheduled = seq.computed;
    seq.drafts.clear();
    kv_.truncate(seq.blocks, seq.computed);  // nothing else of it is in flight
  }
  if (seq.request->beam) {
    kv_.commit(seq.blocks, seq.computed, seq.ids());
    if (e.chooses) commit_beam(seq, e.first_out, result, actions);
    return;
  }
  emit(seq, commit, e.first_out + e.scores, result, actions);
  kv_.commit(seq.blocks, seq.computed, seq.ids());
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
  // Tokens that come together came one after the other, for whoever reads them.
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
  if (seq.first_token == kNever) return;
  stats_.decode_seconds.add(seconds(seq.last_token - seq.first_token));
  stats_.inference_seconds.add(seconds(seq.last_token - seq.started));
  if (seq.generated() > 1)
    stats_.tpot_seconds.add(seconds(seq.last_token - seq.first_token) / (seq.generated() - 1));
}

void EngineCore::emit(Sequence& seq, const Commit& commit, int32_t first_out,
                      const StepResult& result, Actions& actions) {
  bool prompt_only = seq.limit == 0 && seq.computed == seq.prompt_length();
  if (commit.accepted.empty() && !prompt_only) return;
  Delta& d = actions.add_delta(seq.request->id, seq.choice, seq.generated());
  if (!seq.first_delta_sent) {
    d.prompt_logprobs.assign(seq.prompt_logprobs.begin(), seq.prompt_logprobs.end());
    d.prompt_top.assign(seq.prompt_top.begin(), seq.prompt_top.end());
    d.cached_tokens = seq.cached_tokens;
  }
  seq.first_delta_sent = true;
  Finish how = prompt_only ? Finish::kLength : Finish::kNone;
  int32_t wanted = seq.sample().top_logprobs;
  auto top = std::lower_bound(result.top.begin(), result.top.end(), first_out,
                              [](const auto& t, int32_t row) { return t.first < row; });
  for (size_t i = 0; i < commit.accepted.size(); ++i) {
    int32_t id = commit.accepted[i], row = first_out + static_cast<int32_t>(i);
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
  note_tokens(seq, d.ids.size());
  if (how != Finish::kNone) close(seq, how, d, actions);
}

// The step never happened: its sequences go back to what is committed and are tried again.
void EngineCore::rewind(Ticket ticket, std::string_view error, Actions& actions) {
  TK_CHECK(ticket == completed_ && ticket < submitted_, "step {} is not the oldest", ticket);
  ++completed_;
  ++stats_.failed_steps;
  last_done_ = now_;
  for (const StepEntry& e : step_slot(ticket).entries) {
    Sequence& seq = *e.sequence;
    --seq.in_flight;
    if (e.epoch != seq.epoch || seq.phase == Sequence::Phase::kFinished) continue;
    seq.rewind();
    if (++seq.failures > config_.max_step_failures) finish(seq, Finish::kError, error, actions);
  }
}

void EngineCore::finish(Sequence& seq, Finish how, std::string_view error, Actions& actions) {
  if (seq.request->beam) return end_beams(*seq.request, how, error, actions);
  int32_t position = seq.generated();
  if (how == Finish::kStop) position = std::min(position, seq.limit);
  Delta& d = actions.add_delta(seq.request->id, seq.choice, position);
  d.error.assign(error);
  close(seq, how, d, actions);
}

void EngineCore::close(Sequence& seq, Finish how, Delta& last, Actions& actions) {
  last.finish = how;
  note_end(seq, how);
  if (--seq.request->unfinished == 0) actions.finished.push_back(seq.request->id);
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
