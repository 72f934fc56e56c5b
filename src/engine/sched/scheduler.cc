#include "engine/sched/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tokamak {
namespace {

int64_t rows_of(const Sequence& seq) { return seq.shadow != nullptr ? 2 : 1; }

// Rows of kLayersFunction that a sequence needs when it chooses a token.
int64_t layer_rows_of(const Sequence& seq) { return std::ssize(seq.sample().dola_layers); }

// A sequence that failed this often is run alone, to find the one that makes steps fail.
constexpr int kSuspectFailures = 2;

}  // namespace

Scheduler::Scheduler(const EngineConfig& config, KvCache& kv, Drafter* drafter, EngineStats& stats)
    : config_(config),
      kv_(kv),
      stats_(stats),
      drafts_(config, drafter, stats),
      budget_(config.max_batched_tokens, config.tpot_target, config.stream_pace),
      queue_(config.policy),
      adapters_(config.adapter_slots) {
  for (int64_t r = config.max_num_seqs; r-- > 0;) free_rows_.push_back(static_cast<int32_t>(r));
  running_.reserve(static_cast<size_t>(config.max_num_seqs));
}

bool Scheduler::schedule(Nanos now, PendingStep& step) {
  std::vector<StepEntry>& entries = step.entries;
  entries.clear();
  short_of_blocks_ = false;
  bool prompts_first = config_.batching == Batching::kPrefillFirst;
  Decodes decoding = decodes();
  Budget budget = new_budget(decoding);
  Sequence* alone = suspect();
  if (alone == nullptr || !take(*alone, budget, entries)) {
    if (!prompts_first) take_decodes(budget, entries);
    bool whole = !budget_.measure_pace(decoding.tokens) || entries.empty();
    if (whole) {
      take_prefills(budget, entries);
      admit(now, budget, entries);
    }
    if (prompts_first && entries.empty()) take_decodes(budget, entries);
    while (entries.empty() && stuck()) {
      preempt(*last_running());
      std::erase_if(running_, [](Sequence* s) { return s->phase == Sequence::Phase::kWaiting; });
      short_of_blocks_ = false;
      admit(now, budget, entries);
    }
  }
  std::erase_if(running_, [](Sequence* s) { return s->phase == Sequence::Phase::kWaiting; });
  note_limit(budget.prompts, step);
  return !entries.empty();
}

Sequence* Scheduler::suspect() const {
  for (Sequence* s : running_)
    if (s->failures >= kSuspectFailures && s->schedulable() > 0) return s;
  return nullptr;
}

// Only beams wait for each other, so only they can run and have nothing to do.
bool Scheduler::stuck() const {
  if (queue_.size() == 0 || running_.empty()) return false;
  return std::all_of(running_.begin(), running_.end(), [](const Sequence* s) {
    return s->phase == Sequence::Phase::kRunning && s->in_flight == 0 && s->schedulable() == 0;
  });
}

const Sequence* Scheduler::in_row(int32_t row) const {
  for (const Sequence* s : running_)
    if (s->row == row) return s;
  return nullptr;
}

Scheduler::Decodes Scheduler::decodes() const {
  Decodes found;
  for (const Sequence* s : running_) {
    if (s->schedulable() != 1) continue;
    found.tokens += rows_of(*s);
    found.streamed = found.streamed || s->request->spec.streamed;
  }
  return found;
}

Scheduler::Budget Scheduler::new_budget(const Decodes& decoding) const {
  return {config_.max_batched_tokens, config_.max_out_rows, config_.layer_rows,
          StepPrompts(budget_, decoding.tokens, decoding.streamed)};
}

void Scheduler::note_limit(const StepPrompts& prompts, PendingStep& step) {
  step.limit = step.predicted = 0;
  bool decodes = std::any_of(step.entries.begin(), step.entries.end(),
                             [](const StepEntry& e) { return !e.prompt; });
  if (!budget_.bounded() || prompts.taken().tokens == 0) return;
  step.predicted = prompts.predicted();
  if (!decodes) return;
  step.limit = prompts.limit();
  if (step.predicted > step.limit) ++stats_.steps_over_limit;
}

void Scheduler::observe(const PendingStep& step, Nanos ended, Nanos duration) {
  TokenBudget::Prompts prompts;
  StepReport report{ended, duration, step.predicted, step.limit};
  int64_t rows = 0;
  for (const StepEntry& e : step.entries) {
    rows += e.count;
    if (e.prompt) prompts.add(e.count, e.start);
    ++(e.prompt ? report.chunks : report.decodes);
  }
  budget_.observe(prompts, report.decodes, duration);
  if (config_.on_step) {
    report.prompt_tokens = prompts.tokens;
    report.depth = prompts.depth;
    config_.on_step(report);
  }
  if (step.limit > 0) stats_.step_limit_ratio.add(seconds(duration) / step.limit);
  if (prompts.tokens == 0) drafts_.observe(rows, duration);
}

int64_t Scheduler::token_budget() const {
  return std::min(config_.max_batched_tokens, 1 + StepPrompts(budget_, 1, true).fit(0));
}

void Scheduler::take_decodes(Budget& budget, std::vector<StepEntry>& entries) {
  // Every decode gets a row; drafts get the rest.
  int64_t left = decodes().tokens;
  drafts_.propose(running_, std::min(budget.tokens, budget.rows) - left);
  for (Sequence* s : running_) {
    if (s->schedulable() != 1) continue;
    int64_t spare = std::min(budget.tokens, budget.rows) - std::exchange(left, left - rows_of(*s));
    if (s->in_flight > 0 && drafts_.drafts(*s)) continue;  // drafts continue committed tokens
    if (budget.tokens == 0 || budget.rows == 0) return;
    drafts_.assign(*s, spare);
    take(*s, budget, entries);
  }
}

void Scheduler::forget(const Sequence& seq) {
  drafts_.finish(seq);
  queue_.leave(seq);
}

void Scheduler::take_prefills(Budget& budget, std::vector<StepEntry>& entries) {
  for (Sequence* s : running_) {
    if (budget.tokens == 0 || budget.rows == 0) return;
    if (s->schedulable() > 1) take(*s, budget, entries);
  }
}

// The number of tokens that fit into the budget of tokens and of rows with logits.
int32_t Scheduler::chunk_size(const Sequence& seq, const Budget& budget) const {
  int32_t start = seq.scheduled, all = seq.left();
  if (seq.shadow != nullptr || seq.leader != nullptr) --all;  // the last ones in one step
  int64_t most = budget.tokens;
  if (all > 1 && config_.chunked_prefill) most = std::min(most, budget.prompts.fit(start));
  auto n = static_cast<int32_t>(std::min<int64_t>(all, most));
  if (!config_.chunked_prefill && n < all && all <= config_.max_batched_tokens) return 0;
  while (n > 0) {
    bool last = seq.chooses_at(start + n) || seq.pools_at(start + n);
    int64_t rows = seq.score_rows(start, start + n) + (last ? 1 : 0);
    bool layers_fit = !seq.chooses_at(start + n) || layer_rows_of(seq) <= budget.layer_rows;
    if (rows <= budget.rows && layers_fit) break;
    n -= static_cast<int32_t>(std::min<int64_t>(n, std::max<int64_t>(1, rows - budget.rows)));
  }
  return n;
}

bool Scheduler::take(Sequence& seq, Budget& budget, std::vector<StepEntry>& entries) {
  if (seq.shadow != nullptr) return take_pair(seq, budget, entries);
  // No sequence is preempted to make room for drafts.
  if (!seq.drafts.empty() && !kv_.reserve(seq.blocks, seq.scheduled + 1 + std::ssize(seq.drafts)))
    seq.drafts.clear();
  auto drafts = static_cast<int32_t>(seq.drafts.size());
  int32_t n = drafts > 0 ? 1 + drafts : chunk_size(seq, budget);
  if (n == 0 || !reserve(seq, seq.blocks, seq.scheduled + n)) {
    seq.drafts.clear();
    return false;
  }
  feed(seq, n, budget, entries);
  return true;
}

void Scheduler::feed(Sequence& seq, int32_t n, Budget& budget, std::vector<StepEntry>& entries) {
  auto drafts = static_cast<int32_t>(seq.drafts.size());
  StepEntry e;
  e.sequence = &seq;
  e.epoch = seq.epoch;
  e.start = seq.scheduled;
  e.count = n;
  e.drafts = drafts;
  e.prompt = drafts == 0 && seq.left() > 1;
  e.chooses = drafts > 0 || seq.chooses_at(e.start + n);
  e.guides = seq.leader != nullptr && e.start + n == seq.expected();
  e.scores = seq.score_rows(e.start, e.start + n);
  e.pools = seq.pools_at(e.start + n);
  entries.push_back(e);
  int32_t prompt = std::clamp(seq.prompt_length() - e.start, 0, n);
  stats_.prefill_tokens += prompt;
  queue_.charge(seq.owner(), n, e.chooses ? 1 : 0);
  seq.scheduled += n;
  seq.pending += e.chooses || e.guides ? 1 : 0;
  ++seq.owner().in_flight;
  budget.tokens -= n;
  if (e.prompt) {
    budget.prompts.add(n, e.start);
    if (budget.prompts.full()) budget.tokens = 0;
  }
  if (e.chooses) budget.layer_rows -= layer_rows_of(seq);
  budget.rows -= e.scores + (drafts > 0 ? n : e.chooses || e.guides || e.pools ? 1 : 0);
}

bool Scheduler::reserve(Sequence& seq, SequenceBlocks& blocks, int64_t slots) {
  while (!kv_.reserve(blocks, slots)) {
    short_of_blocks_ = true;
    // Steps in flight may release blocks (windows, sequences that ended): wait for them first.
    if (seq.in_flight > 0) return false;
    for (const Sequence* s : running_)
      if (s->in_flight > 0 && s->phase != Sequence::Phase::kRunning) return false;
    Sequence* victim = last_running();
    if (victim == nullptr) return false;
    preempt(*victim);
    if (victim == &seq) return false;
    if (victim->phase == Sequence::Phase::kPreempting) return false;
  }
  return true;
}

// If steps in flight refer to it, its blocks are released when they are done.
Sequence* Scheduler::last_running() const {
  for (auto it = running_.rbegin(); it != running_.rend(); ++it)
    if ((*it)->phase == Sequence::Phase::kRunning) return *it;
  return nullptr;
}

void Scheduler::preempt(Sequence& seq) {
  ++stats_.preemptions;
  if (seq.in_flight > 0)
    seq.phase = Sequence::Phase::kPreempting;
  else
    wait_again(seq);
}

void Scheduler::wait_again(Sequence& seq) {
  stop_running(seq);
  seq.drop_kv();
  seq.phase = Sequence::Phase::kWaiting;
  if (!seq.held) queue_.push(&seq);
}

void Scheduler::give_up(Sequence& seq) {
  if (seq.phase == Sequence::Phase::kWaiting) return;
  stop_running(seq);
  seq.drop_kv();
  seq.phase = Sequence::Phase::kWaiting;
  std::erase(running_, &seq);
}

void Scheduler::stop_running(Sequence& seq) {
  TK_CHECK(seq.in_flight == 0, "sequence {} is in flight", seq.order);
  kv_.release(seq.blocks);
  free_rows_.push_back(seq.row);
  seq.row = -1;
  adapters_.release(std::exchange(seq.adapter_slot, -1));
  if (seq.shadow != nullptr) stop_shadow(*seq.shadow);
}

void Scheduler::settle(std::vector<Sequence*>& retired) {
  for (Sequence* s : running_) {
    if (s->in_flight > 0) continue;
    for (Sequence* part : {s, s->shadow}) {
      if (part == nullptr || !part->settling) continue;
      kv_.truncate(part->blocks, part->computed);
      part->blocks.copies_sent = false;  // the remaining ones may not have been done
      part->settling = false;
      // Its states may be ahead of what is committed: it starts again from nothing.
      if (config_.recurrent && s->phase == Sequence::Phase::kRunning)
        s->phase = Sequence::Phase::kPreempting;
    }
    if (s->phase == Sequence::Phase::kFinished) {
      stop_running(*s);
      retired.push_back(s);
    } else if (s->phase == Sequence::Phase::kPreempting) {
      wait_again(*s);
    }
  }
  std::erase_if(running_, [](Sequence* s) { return s->row < 0; });
}

}  // namespace tokamak
