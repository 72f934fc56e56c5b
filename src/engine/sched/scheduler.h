#pragma once
// Which sequences get how many tokens of the next step: decodes first, so that no prompt stalls a
// stream, then prompts in chunks up to the token budget, then who waits, as the policy says. When
// blocks run out, the last sequence is preempted: it keeps its tokens and computes those that are
// not cached any more again later.
#include <cstdint>
#include <vector>

#include "engine/config.h"
#include "engine/draft/drafter.h"
#include "engine/kv/kv_cache.h"
#include "engine/sched/pending_step.h"
#include "engine/sched/token_budget.h"
#include "engine/sched/waiting_queue.h"
#include "engine/sequence.h"

namespace tokamak {

// Owned by EngineCore, engine thread only. Knows sequences, rows and blocks; no device, no text, no
// clock: the same calls give the same schedule. O(running) per step, and a lookup of the prefix
// index per sequence that could start.
class Scheduler {
 public:
  // `stats` is the core's; the scheduler counts into it.
  Scheduler(const EngineConfig& config, KvCache& kv, Drafter* drafter, EngineStats& stats);

  void join(Sequence& sequence) { queue_.join(sequence); }  // before anything else
  void wait(Sequence& sequence) { queue_.push(&sequence); }
  // It computes something else from here on: row and blocks are given back, nobody queues it.
  void give_up(Sequence& sequence);
  void remove_waiting(Sequence* sequence);
  void forget(const Sequence& sequence) { queue_.leave(sequence); }  // before it is retired
  // Takes tokens for a step: rows and blocks are reserved and the sequences are marked as in
  // flight. False: there is nothing to do before a step commits or a request arrives.
  bool schedule(Nanos now, std::vector<StepEntry>& entries);
  // Sequences that ended, were preempted or rewound give back what nothing in flight refers to.
  // Those that are done for good are appended to `retired`.
  void settle(std::vector<Sequence*>& retired);
  // A step with these entries took this long.
  void observe(const std::vector<StepEntry>& entries, Nanos duration);

  size_t waiting() const { return queue_.size(); }
  size_t running() const { return running_.size(); }
  const Sequence* in_row(int32_t row) const;  // nullptr: nobody
  int64_t token_budget() const { return budget_.tokens(1); }

 private:
  struct Budget {
    int64_t tokens, rows;
  };
  enum class Verdict { kStart, kWait, kNoRoom };

  // scheduler.cc: the running ones
  Sequence* suspect() const;
  bool stuck() const;  // nobody can go on before somebody who waits has started
  int64_t decodes() const;
  void take_decodes(Budget& budget, std::vector<StepEntry>& entries);
  void take_prefills(Budget& budget, std::vector<StepEntry>& entries);
  bool take(Sequence& seq, Budget& budget, std::vector<StepEntry>& entries);
  int32_t chunk_size(const Sequence& seq, const Budget& budget) const;
  void draft(Sequence& seq, const Budget& budget);
  bool is_valid_draft(const std::vector<DraftToken>& drafts, size_t at) const;
  bool reserve(Sequence& seq, int64_t slots);
  Sequence* last_running() const;
  void preempt(Sequence& seq);
  void wait_again(Sequence& seq);
  void stop_running(Sequence& seq);  // gives back row and blocks

  // admission.cc: the waiting ones
  void admit(Nanos now, Budget& budget, std::vector<StepEntry>& entries);
  void line_up();  // candidates_
  Verdict judge(Sequence& seq);
  void find_hit(Sequence& seq, int64_t most);
  bool fits(const Sequence& seq) const;
  int64_t wanted_slots(const Sequence& seq) const;
  void start(Sequence& seq, Nanos now);
  bool make_room(const Sequence& seq);
  void note_passed_over(const Sequence& started);

  const EngineConfig& config_;
  KvCache& kv_;
  Drafter* drafter_;
  EngineStats& stats_;
  TokenBudget budget_;
  WaitingQueue queue_;
  std::vector<Sequence*> running_;  // by queue_.before(); also preempting and finished ones
  std::vector<int32_t> free_rows_;
  bool short_of_blocks_ = false;  // in the step being scheduled
  std::vector<Sequence*> candidates_;
  int64_t rounds_ = 0;    // of line_up
  PrefixHit hit_, fork_;  // of the candidate being judged
};

}  // namespace tokamak
