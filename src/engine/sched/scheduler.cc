#include "engine/sched/scheduler.h"

#include <algorithm>

#include "base/error.h"

namespace tokamak {
namespace {

bool by_order(const Sequence* a, const Sequence* b) { return a->order < b->order; }

// A sequence that failed this often is run alone, to find out who makes the steps fail.
constexpr int kSuspectFailures = 2;

}  // namespace

Scheduler::Scheduler(const EngineConfig& config, KvCache& kv, Drafter* drafter)
    : config_(config), kv_(kv), drafter_(drafter) {
  for (int64_t r = config.max_num_seqs; r-- > 0;) free_rows_.push_back(static_cast<int32_t>(r));
  running_.reserve(static_cast<size_t>(config.max_num_seqs));
}

void Scheduler::enqueue(Sequence* seq) {
  waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), seq, by_order), seq);
}

void Scheduler::remove_waiting(Sequence* seq) {
  auto it = std::lower_bound(waiting_.begin(), waiting_.end(), seq, by_order);
  TK_CHECK(it != waiting_.end() && *it == seq, "sequence {} does not wait", seq->order);
  waiting_.erase(it);
}

bool Scheduler::schedule(std::vector<StepEntry>& entries) {
  entries.clear();
  short_of_blocks_ = false;
  Budget budget{config_.max_batched_tokens, config_.max_out_rows};
  Sequence* alone = suspect();
  if (alone == nullptr || !take(*alone, budget, entries)) {
    take_decodes(budget, entries);
    take_prefills(budget, entries);
    admit(budget, entries);
  }
  std::erase_if(running_, [](Sequence* s) { return s->phase == Sequence::Phase::kWaiting; });
  return !entries.empty();
}

Sequence* Scheduler::suspect() const {
  for (Sequence* s : running_)
    if (s->failures >= kSuspectFailures && s->schedulable() > 0) return s;
  return nullptr;
}

void Scheduler::take_decodes(Budget& budget, std::vector<StepEntry>& entries) {
  for (Sequence* s : running_) {
    if (s->schedulable() != 1) continue;
    if (drafter_ != nullptr && s->in_flight > 0) continue;  // drafts continue committed tokens
    if (budget.tokens == 0 || budget.rows == 0) return;
    draft(*s, budget);
    take(*s, budget, entries);
  }
}

void Scheduler::take_prefills(Budget& budget, std::vector<StepEntry>& entries) {
  for (Sequence* s : running_) {
    if (budget.tokens == 0 || budget.rows == 0) return;
    if (s->schedulable() > 1) take(*s, budget, entries);
  }
}

void Scheduler::admit(Budget& budget, std::vector<StepEntry>& entries) {
  while (!waiting_.empty() && !short_of_blocks_ && budget.tokens > 0 && budget.rows > 0) {
    Sequence* seq = waiting_.front();
    if (free_rows_.empty() || !can_admit(*seq)) return;
    waiting_.pop_front();
    seq->row = free_rows_.back();
    free_rows_.pop_back();
    seq->phase = Sequence::Phase::kRunning;
    seq->reset_row = true;
    seq->reserve_ids();
    kv_.open(seq->blocks, seq->prompt_length() + seq->limit);
    running_.insert(std::upper_bound(running_.begin(), running_.end(), seq, by_order), seq);
    take(*seq, budget, entries);
  }
}

// Room for all that is known of it plus one token, beside what the running ones still need for
// theirs: a sequence that would be preempted at once is not let in.
bool Scheduler::can_admit(const Sequence& seq) const {
  for (size_t g = 0; g < kv_.groups(); ++g) {
    int64_t need = kv_.most_blocks(g, seq.length() + 1, config_.max_batched_tokens);
    for (const Sequence* s : running_) {
      if (s->phase != Sequence::Phase::kRunning) continue;
      int64_t most = kv_.most_blocks(g, s->expected() + 1, config_.max_batched_tokens);
      need += std::max<int64_t>(0, most - KvCache::held(s->blocks, g));
    }
    if (running_.empty()) need = std::min(need, kv_.pool(g).total());
    if (need > kv_.pool(g).free_blocks()) return false;
  }
  return true;
}

void Scheduler::draft(Sequence& seq, const Budget& budget) {
  if (drafter_ == nullptr || seq.pending > 0) return;
  int64_t k = config_.draft_tokens;
  k = std::min<int64_t>(k, seq.limit - seq.generated() - 1);
  k = std::min({k, budget.tokens - 1, budget.rows - 1});
  if (k <= 0) return;
  drafter_->propose(seq.ids(), static_cast<int32_t>(k), seq.drafts);
  if (seq.drafts.size() > static_cast<size_t>(k)) seq.drafts.resize(static_cast<size_t>(k));
}

// As many tokens as the budget has, with no more logits rows than it has.
int32_t Scheduler::chunk_size(const Sequence& seq, const Budget& budget) const {
  int32_t start = seq.scheduled;
  auto n = static_cast<int32_t>(std::min<int64_t>(seq.expected() - start, budget.tokens));
  while (n > 0) {
    int64_t rows = seq.score_rows(start, start + n) + (seq.chooses_at(start + n) ? 1 : 0);
    if (rows <= budget.rows) break;
    n -= static_cast<int32_t>(std::min<int64_t>(n, rows - budget.rows));
  }
  return n;
}

bool Scheduler::take(Sequence& seq, Budget& budget, std::vector<StepEntry>& entries) {
  auto drafts = static_cast<int32_t>(seq.drafts.size());
  int32_t n = drafts > 0 ? 1 + drafts : chunk_size(seq, budget);
  if (n == 0 || !reserve(seq, seq.scheduled + n)) {
    seq.drafts.clear();
    return false;
  }
  StepEntry e;
  e.sequence = &seq;
  e.epoch = seq.epoch;
  e.start = seq.scheduled;
  e.count = n;
  e.drafts = drafts;
  e.chooses = drafts > 0 || seq.chooses_at(e.start + n);
  e.scores = seq.score_rows(e.start, e.start + n);
  entries.push_back(e);
  seq.scheduled += n;
  seq.pending += e.chooses ? 1 : 0;
  ++seq.in_flight;
  budget.tokens -= n;
  budget.rows -= e.scores + (drafts > 0 ? n : e.chooses ? 1 : 0);
  return true;
}

bool Scheduler::reserve(Sequence& seq, int64_t slots) {
  while (!kv_.reserve(seq.blocks, slots)) {
    short_of_blocks_ = true;
    // Steps in flight may give blocks back (windows, sequences that ended): wait for them first.
    if (seq.in_flight > 0) return false;
    for (const Sequence* s : running_)
      if (s->in_flight > 0 && s->phase != Sequence::Phase::kRunning) return false;
    Sequence* victim = youngest_idle();
    if (victim == nullptr) return false;
    preempt(*victim);
    if (victim == &seq) return false;
    if (victim->phase == Sequence::Phase::kPreempting) return false;
  }
  return true;
}

// The youngest that is not part of the step being scheduled. One that older steps refer to gives
// its blocks back only when they are done.
Sequence* Scheduler::youngest_idle() const {
  for (auto it = running_.rbegin(); it != running_.rend(); ++it)
    if ((*it)->phase == Sequence::Phase::kRunning) return *it;
  return nullptr;
}

void Scheduler::preempt(Sequence& seq) {
  ++preemptions_;
  if (seq.in_flight > 0) {
    seq.phase = Sequence::Phase::kPreempting;
    return;
  }
  stop_running(seq);
  seq.drop_kv();
  seq.phase = Sequence::Phase::kWaiting;
  enqueue(&seq);
}

void Scheduler::stop_running(Sequence& seq) {
  TK_CHECK(seq.in_flight == 0, "sequence {} is in flight", seq.order);
  kv_.release(seq.blocks);
  free_rows_.push_back(seq.row);
  seq.row = -1;
}

void Scheduler::settle(std::vector<Sequence*>& retired) {
  for (Sequence* s : running_) {
    if (s->in_flight > 0) continue;
    if (s->settling) {
      kv_.truncate(s->blocks, s->computed);
      s->settling = false;
    }
    if (s->phase == Sequence::Phase::kFinished) {
      stop_running(*s);
      retired.push_back(s);
    } else if (s->phase == Sequence::Phase::kPreempting) {
      stop_running(*s);
      s->drop_kv();
      s->phase = Sequence::Phase::kWaiting;
      enqueue(s);
    }
  }
  std::erase_if(running_, [](Sequence* s) { return s->row < 0; });
}

}  // namespace tokamak
