#pragma once
// Which sequences get how many tokens of the next step. First come first served: decodes first, so
// that no prompt stalls a stream, then prompts in chunks up to the token budget. When blocks run
// out, the youngest sequence is preempted: it keeps its tokens and computes them again later.
#include <cstdint>
#include <deque>
#include <vector>

#include "engine/config.h"
#include "engine/draft/drafter.h"
#include "engine/kv/kv_cache.h"
#include "engine/sched/step_plan.h"
#include "engine/sequence.h"

namespace tokamak {

// Owned by EngineCore, engine thread only. Knows sequences, rows and blocks; no device, no text, no
// time. O(running) per step.
class Scheduler {
 public:
  Scheduler(const EngineConfig& config, KvCache& kv, Drafter* drafter);

  void enqueue(Sequence* sequence);  // keeps the order of arrival
  void remove_waiting(Sequence* sequence);
  // Takes tokens for a step: rows and blocks are reserved and the sequences are marked as in
  // flight. False: there is nothing to do before a step commits or a request arrives.
  bool schedule(std::vector<StepEntry>& entries);
  // Sequences that ended, were preempted or rewound give back what nothing in flight refers to.
  // Those that are done for good are appended to `retired`.
  void settle(std::vector<Sequence*>& retired);

  size_t waiting() const { return waiting_.size(); }
  size_t running() const { return running_.size(); }
  int64_t preemptions() const { return preemptions_; }

 private:
  struct Budget {
    int64_t tokens, rows;
  };
  Sequence* suspect() const;
  void take_decodes(Budget& budget, std::vector<StepEntry>& entries);
  void take_prefills(Budget& budget, std::vector<StepEntry>& entries);
  void admit(Budget& budget, std::vector<StepEntry>& entries);
  bool take(Sequence& seq, Budget& budget, std::vector<StepEntry>& entries);
  int32_t chunk_size(const Sequence& seq, const Budget& budget) const;
  void draft(Sequence& seq, const Budget& budget);
  bool reserve(Sequence& seq, int64_t slots);
  bool can_admit(const Sequence& seq) const;
  Sequence* youngest_idle() const;
  void preempt(Sequence& seq);
  void stop_running(Sequence& seq);  // gives back row and blocks

  const EngineConfig& config_;
  KvCache& kv_;
  Drafter* drafter_;
  std::deque<Sequence*> waiting_;   // by order of arrival
  std::vector<Sequence*> running_;  // by order of arrival; also preempting and finished ones
  std::vector<int32_t> free_rows_;
  bool short_of_blocks_ = false;  // in the step being scheduled
  int64_t preemptions_ = 0;
};

}  // namespace tokamak
