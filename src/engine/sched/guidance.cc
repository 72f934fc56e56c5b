// Classifier-free guidance: a sequence and its shadow compute their prompts independently of each
// other, all but the last token. After that every step takes one token of both: the shadow's output
// guides the choice of the leader's next token.
#include <algorithm>

#include "engine/sched/scheduler.h"

namespace tokamak {

bool Scheduler::take_pair(Sequence& seq, Budget& budget, std::vector<StepEntry>& entries) {
  Sequence& shadow = *seq.shadow;
  if (seq.schedulable() == 1) {
    if (std::min(budget.tokens, budget.rows) < 2 ||
        !reserve(seq, shadow.blocks, shadow.scheduled + 1) ||
        !reserve(seq, seq.blocks, seq.scheduled + 1))
      return false;
    feed(shadow, 1, budget, entries);  // batch.cc relies on the order
    feed(seq, 1, budget, entries);
    return true;
  }
  bool taken = false;
  for (Sequence* part : {&shadow, &seq}) {
    if (budget.tokens == 0 || budget.rows == 0) break;
    int32_t n = chunk_size(*part, budget);
    if (n <= 0) continue;
    if (!reserve(seq, part->blocks, part->scheduled + n)) break;  // it may have been preempted
    feed(*part, n, budget, entries);
    taken = true;
  }
  return taken;
}

// Whole units only: no block is copied.
void Scheduler::find_shadow_hit(const Sequence& shadow) {
  const std::string& salt = shadow.request->spec.cache_salt;
  kv_.find_prefix(salt, shadow.ids(), shadow.reusable(), shadow_hit_);
  if (int64_t partial = shadow_hit_.tokens % kv_.unit(); partial > 0) {
    bool wait = shadow_hit_.wait;
    kv_.find_prefix(salt, shadow.ids(), shadow_hit_.tokens - partial, shadow_hit_);
    shadow_hit_.wait = wait;
  }
}

// After its leader, whose start may have evicted blocks of the hit.
void Scheduler::start_shadow(Sequence& shadow) {
  const Sequence& leader = *shadow.leader;
  shadow.row = free_rows_.back();
  free_rows_.pop_back();
  shadow.adapter_slot = leader.adapter_slot;
  shadow.reserve_ids();
  shadow.blocks.priority = leader.blocks.priority;
  shadow.blocks.ttl = leader.blocks.ttl;
  find_shadow_hit(shadow);
  kv_.open(shadow.blocks, shadow.prompt_length() + shadow.limit);
  kv_.start(shadow.blocks, shadow.request->spec.cache_salt, shadow.ids(), shadow_hit_);
  shadow.computed = shadow.scheduled = static_cast<int32_t>(shadow_hit_.tokens);
}

void Scheduler::stop_shadow(Sequence& shadow) {
  kv_.release(shadow.blocks);
  free_rows_.push_back(shadow.row);
  shadow.row = shadow.adapter_slot = -1;
}

}  // namespace tokamak
