#pragma once
// Decides how many tokens each sequence gets in the next step: decodes first, so that no prompt
// stalls a stream, then prompts in chunks up to the token budget, then waiting sequences in the
// order of the policy. When blocks run out, the last sequence is preempted: it keeps its tokens,
// and what is not cached is computed again later.
#include <cstdint>
#include <span>
#include <vector>

#include "engine/adapter_slots.h"
#include "engine/config.h"
#include "engine/draft/draft_planner.h"
#include "engine/kv/kv_cache.h"
#include "engine/sched/pending_step.h"
#include "engine/sched/token_budget.h"
#include "engine/sched/waiting_queue.h"
#include "engine/sequence.h"

namespace tokamak {

// Owned by EngineCore, engine thread only. It knows sequences, rows and blocks, and no device, text
// or clock: the same calls give the same schedule. O(running) per step, and a lookup in the prefix
// index per sequence that could start.
class Scheduler {
 public:
  // The scheduler updates `stats`.
  Scheduler(const EngineConfig& config, KvCache& kv, Drafter* drafter, EngineStats& stats);

  void join(Sequence& sequence) { queue_.join(sequence); }  // before anything else
  void wait(Sequence& sequence) { queue_.push(&sequence); }
  // Releases row and blocks of a sequence that will compute something else. It is not queued.
  void give_up(Sequence& sequence);
  void remove_waiting(Sequence* sequence);
  void forget(const Sequence& sequence);  // before it is retired
  // DraftPlanner::note_accepted
  void note_accepted(Sequence& sequence, int32_t last, int32_t accepted,
                     std::span<const int32_t> choices) {
    drafts_.note_accepted(sequence, last, accepted, choices);
  }
  // Chooses the tokens of a step, reserves rows and blocks, and marks the sequences as in flight.
  // False: there is nothing to do before a step commits or a request arrives.
  bool schedule(Nanos now, PendingStep& step);
  // Releases rows and blocks of sequences that ended, were preempted or rewound, once no step in
  // flight uses them. Those that ended are appended to `retired`.
  void settle(std::vector<Sequence*>& retired);
  void observe(const PendingStep& step, Nanos ended, Nanos duration);

  size_t waiting() const { return queue_.size(); }
  size_t running() const { return running_.size(); }
  const Sequence* in_row(int32_t row) const;  // nullptr: the row is free
  int64_t token_budget() const;
  AdapterSlots& adapters() { return adapters_; }

 private:
  struct Budget {
    int64_t tokens, rows, layer_rows;  // layer_rows: of kLayersFunction
    StepPrompts prompts;
  };
  enum class Verdict { kStart, kWait, kNoRoom };

  // scheduler.cc: running sequences
  Sequence* suspect() const;
  bool stuck() const;  // no running sequence can continue before a waiting one has started
  struct Decodes {
    int64_t tokens = 0;
    bool streamed = false;  // some of them
  };
  Decodes decodes() const;  // of the running sequences
  Budget new_budget(const Decodes& decoding) const;
  void note_limit(const StepPrompts& prompts, PendingStep& step);
  void take_decodes(Budget& budget, std::vector<StepEntry>& entries);
  void take_prefills(Budget& budget, std::vector<StepEntry>& entries);
  bool take(Sequence& seq, Budget& budget, std::vector<StepEntry>& entries);
  int32_t chunk_size(const Sequence& seq, const Budget& budget) const;
  void feed(Sequence& seq, int32_t count, Budget& budget, std::vector<StepEntry>& entries);
  bool reserve(Sequence& seq, SequenceBlocks& blocks, int64_t slots);  // of it or its shadow
  Sequence* last_running() const;
  void preempt(Sequence& seq);
  void wait_again(Sequence& seq);
  void stop_running(Sequence& seq);  // releases row and blocks

  // guidance.cc: sequences with shadows
  bool take_pair(Sequence& seq, Budget& budget, std::vector<StepEntry>& entries);
  void find_shadow_hit(const Sequence& shadow);
  void start_shadow(Sequence& shadow);
  void stop_shadow(Sequence& shadow);

  // admission.cc: waiting sequences
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
  EngineStats& stats_;
  DraftPlanner drafts_;
  TokenBudget budget_;
  WaitingQueue queue_;
  AdapterSlots adapters_;
  std::vector<Sequence*> running_;  // by queue_.before(); also preempting and finished ones
  std::vector<int32_t> free_rows_;
  bool short_of_blocks_ = false;  // in the step being scheduled
  std::vector<Sequence*> candidates_;
  int64_t rounds_ = 0;    // of line_up
  PrefixHit hit_, fork_;  // of the candidate being judged
  PrefixHit shadow_hit_;  // of its shadow
};

}  // namespace tokamak
