// Which waiting sequences start: the order of the policy, cached prefixes, and available blocks.
#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "engine/sched/scheduler.h"

namespace tokamak {
namespace {

// Sequences examined per step. Those that must wait for blocks of another sequence are skipped.
constexpr size_t kCandidates = 64;
// The lookup of a long prompt costs as much as a small step, so the cache-aware order is refreshed
// only after this many steps. A sequence that starts is always looked up again.
constexpr int64_t kLookAgain = 16;

// The common prefix of two choices of a request: the prompt, and more with beam search.
int64_t common_tokens(const Sequence& a, const Sequence& b) {
  if (!a.request->beam) return a.prompt_length();
  auto [end, other] = std::mismatch(a.ids().begin(), a.ids().end(), b.ids().begin(), b.ids().end());
  return end - a.ids().begin();
}

// The number of sequences that this one will become: a beam search has one until the prompt is
// computed.
int64_t heads(const Sequence& s) {
  int64_t later = s.request->spec.beams - std::ssize(s.request->choices);
  return 1 + (s.request->beam && s.choice == 0 ? std::max<int64_t>(0, later) : 0);
}

}  // namespace

void Scheduler::remove_waiting(Sequence* seq) { queue_.remove(seq); }

void Scheduler::admit(Nanos now, Budget& budget, std::vector<StepEntry>& entries) {
  bool whole_batch = config_.batching == Batching::kStatic;
  if (whole_batch && !running_.empty()) return;
  if (queue_.size() == 0 || free_rows_.empty() || budget.tokens == 0 || budget.rows == 0) {
    // With priorities, running sequences may be preempted.
    if (queue_.size() == 0 || config_.policy != SchedPolicy::kPriority || !free_rows_.empty())
      return;
  }
  line_up();
  for (Sequence* seq : candidates_) {
    bool out_of_budget = budget.tokens == 0 || budget.rows == 0;
    if (short_of_blocks_ || (out_of_budget && !whole_batch)) return;
    Verdict verdict = free_rows_.empty() ? Verdict::kNoRoom : judge(*seq);
    while (verdict == Verdict::kNoRoom && make_room(*seq)) verdict = judge(*seq);
    if (verdict == Verdict::kNoRoom) return;
    if (verdict == Verdict::kWait) continue;
    queue_.remove(seq);
    start(*seq, now);
    note_passed_over(*seq);
    if (!out_of_budget) take(*seq, budget, entries);
  }
}

void Scheduler::line_up() {
  queue_.front(kCandidates, candidates_);
  if (config_.policy != SchedPolicy::kCache) return;
  ++rounds_;
  for (Sequence* s : candidates_) {
    if (s->looked_at != 0 && rounds_ - s->looked_at < kLookAgain) continue;
    s->looked_at = rounds_;
    kv_.find_prefix(s->request->spec.cache_salt, s->ids(), s->reusable(), hit_);
    s->cached_now = hit_.tokens;
  }
  auto key = [this](const Sequence* s) {
    bool starved = s->passed_over >= config_.starvation_bound;
    return std::tuple(!starved, starved ? 0 : -s->cached_now, s->order);
  };
  std::sort(candidates_.begin(), candidates_.end(),
            [&](const Sequence* a, const Sequence* b) { return key(a) < key(b); });
}

void Scheduler::note_passed_over(const Sequence& started) {
  if (config_.policy != SchedPolicy::kCache) return;
  for (Sequence* s : candidates_)
    if (s->phase == Sequence::Phase::kWaiting && s->order < started.order) ++s->passed_over;
}

// Sets hit_: cached blocks, or those of another choice of the same request. A block that a choice
// copies is valid once its step is committed.
void Scheduler::find_hit(Sequence& seq, int64_t most) {
  kv_.find_prefix(seq.request->spec.cache_salt, seq.ids(), most, hit_);
  if (config_.recurrent) return;  // the other's state is ahead of what both have in common
  int64_t coming = 0;
  for (const Sequence* s : seq.request->choices) {
    if (s == nullptr || s == &seq || s->phase != Sequence::Phase::kRunning) continue;
    int64_t common = std::min(most, common_tokens(seq, *s));
    if (hit_.tokens >= common) continue;
    if (s->computed < common || !s->blocks.copies.empty()) {
      coming = std::max(coming, common);
      continue;
    }
    kv_.find_fork(s->blocks, common, fork_);
    if (fork_.tokens > hit_.tokens) std::swap(hit_, fork_);
  }
  if (coming > hit_.tokens) hit_.wait = true;
}

Scheduler::Verdict Scheduler::judge(Sequence& seq) {
  // Others may start before it, but not for ever: in the end all wait until a slot is free.
  if (!adapters_.has_room(seq.request->spec.adapter.get()))
    return ++seq.slot_waits > config_.starvation_bound ? Verdict::kNoRoom : Verdict::kWait;
  find_hit(seq, seq.reusable());
  if (seq.shadow != nullptr) {
    if (free_rows_.size() < 2) return Verdict::kNoRoom;
    find_shadow_hit(*seq.shadow);
    hit_.wait = hit_.wait || shadow_hit_.wait;
  }
  if (hit_.wait) return Verdict::kWait;
  if (fits(seq)) return Verdict::kStart;
  // A copy needs one more block for a short time.
  int64_t partial = hit_.tokens % kv_.unit();
  if (partial == 0) return Verdict::kNoRoom;
  kv_.find_prefix(seq.request->spec.cache_salt, seq.ids(), hit_.tokens - partial, hit_);
  return fits(seq) ? Verdict::kStart : Verdict::kNoRoom;
}

// Slots that must be available to a sequence.
int64_t Scheduler::wanted_slots(const Sequence& seq) const {
  if (config_.kv_policy == KvPolicy::kGuaranteedNoEvict)
    return std::max(seq.prompt_length() + seq.limit, seq.expected());
  return seq.expected() + 1;
}

// There is room for it in addition to what the running sequences still need: a sequence that would
// be preempted at once is not started.
bool Scheduler::fits(const Sequence& seq) const {
  for (size_t g = 0; g < kv_.groups(); ++g) {
    const PrefixHit::Group& hit = hit_.groups[g];
    int64_t chunk = config_.max_batched_tokens;
    bool to_the_end = config_.kv_policy == KvPolicy::kGuaranteedNoEvict;
    auto most = [&](const Sequence& s) {
      int64_t own = kv_.most_blocks(g, wanted_slots(s), chunk) * (to_the_end ? heads(s) : 1);
      return own + (s.shadow ? kv_.most_blocks(g, wanted_slots(*s.shadow), chunk) : 0);
    };
    auto held = [&](const Sequence& s) {
      return KvCache::held(s.blocks, g) + (s.shadow ? KvCache::held(s.shadow->blocks, g) : 0);
    };
    int64_t need = most(seq) - hit.shared, cached = hit.cached;
    if (seq.shadow != nullptr) {
      need -= shadow_hit_.groups[g].shared;
      cached += shadow_hit_.groups[g].cached;  // some may be counted twice
    }
    for (const Sequence* s : running_) {
      if (s->phase != Sequence::Phase::kRunning) continue;
      need += std::max<int64_t>(0, most(*s) - held(*s));
    }
    int64_t left = std::max<int64_t>(0, kv_.pool(g).available() - cached);
    bool copies = hit.shared < std::ssize(hit.blocks);
    if (running_.empty() && !copies) need = std::min(need, left);
    if (std::max<int64_t>(need, copies ? 1 : 0) > left) return false;
  }
  return true;
}

void Scheduler::start(Sequence& seq, Nanos now) {
  seq.row = free_rows_.back();
  free_rows_.pop_back();
  seq.adapter_slot = adapters_.take(seq.request->spec.adapter);
  seq.phase = Sequence::Phase::kRunning;
  seq.reset_row = true;
  seq.reserve_ids();
  const RequestSpec& spec = seq.request->spec;
  seq.blocks.priority = spec.cache_priority;
  seq.blocks.ttl = spec.cache_ttl;
  kv_.open(seq.blocks, seq.prompt_length() + seq.limit);
  kv_.start(seq.blocks, spec.cache_salt, seq.ids(), hit_);
  seq.computed = seq.scheduled = static_cast<int32_t>(hit_.tokens);
  if (seq.shadow != nullptr) start_shadow(*seq.shadow);
  auto order = [this](const Sequence* a, const Sequence* b) { return queue_.before(a, b); };
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &seq, order), &seq);
  if (seq.started != kNever) return;  // it was preempted before
  seq.started = now;
  seq.cached_tokens = static_cast<int32_t>(std::min<int64_t>(hit_.tokens, seq.prompt_length()));
  if (seq.choice == 0) seq.request->cached_tokens = seq.cached_tokens;
  stats_.prompt_tokens += seq.prompt_length();
  stats_.prompt_length.add(seq.prompt_length());
  stats_.queue_seconds.add(seconds(now - seq.arrived));
  if (config_.prefix_cache) stats_.prefix_queries += seq.prompt_length();
  stats_.prefix_hits += seq.cached_tokens;
}

// Preempts a running sequence of lower priority. True: judge again.
bool Scheduler::make_room(const Sequence& seq) {
  if (config_.policy != SchedPolicy::kPriority) return false;
  for (const Sequence* s : running_)
    if (s->phase == Sequence::Phase::kPreempting) return false;  // one at a time
  Sequence* victim = last_running();
  if (victim == nullptr || victim->request->spec.priority <= seq.request->spec.priority)
    return false;
  preempt(*victim);
  bool now = victim->phase == Sequence::Phase::kWaiting;
  if (now) std::erase(running_, victim);
  return now && !free_rows_.empty();
}

}  // namespace tokamak
