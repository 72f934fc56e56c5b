#pragma once
// Statistics of an engine as plain data: counters and histograms, which only grow, and gauges.
// Reading does not reset them.
#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "base/clock.h"
#include "plan/dispatch.h"

namespace tokamak {

// Counts per bucket (not cumulative).
class Histogram {
 public:
  static constexpr size_t kBuckets = 32;
  enum class Unit : uint8_t { kSeconds, kTokens, kRatio };
  Histogram(Unit unit = Unit::kSeconds) : unit_(unit) {}

  void add(double value, uint64_t times = 1);
  // Upper bounds of the buckets; a last bucket has no upper bound.
  std::span<const double> bounds() const;
  // bounds().size() + 1 numbers.
  std::span<const uint64_t> counts() const { return {counts_.data(), bounds().size() + 1}; }
  uint64_t count() const { return count_; }
  double sum() const { return sum_; }
  double mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }

 private:
  Unit unit_;
  uint64_t count_ = 0;
  double sum_ = 0;
  std::array<uint64_t, kBuckets> counts_{};
};

struct EngineStats {
  // Counters.
  int64_t steps = 0, failed_steps = 0;
  int64_t steps_over_limit = 0;  // so predicted: a prompt takes at least a few tokens
  int64_t tokens_scheduled = 0;  // rows of submitted steps
  int64_t prefill_tokens = 0;    // of them: prompt tokens (counted again after a preemption)
  int64_t tokens_emitted = 0;
  int64_t tokens_discarded = 0;  // chosen and not used: after the end of an answer, or rewound
  int64_t preemptions = 0;
  int64_t prompt_tokens = 0;      // of sequences that started
  int64_t prefix_queries = 0;     // tokens looked up in the prefix index (prompts that started)
  int64_t prefix_hits = 0;        // of them: found, not computed
  int64_t blocks_evicted = 0;     // cached blocks that were reused
  int64_t blocks_copied = 0;      // partly shared blocks
  int64_t requests_rejected = 0;  // the queue was full, or the request can never fit
  // Drafts: proposals that were verified, their tokens, and those that were accepted.
  int64_t drafts = 0, draft_tokens = 0, draft_accepted = 0;
  int64_t draft_fallbacks = 0;         // times that drafting was paused because it did not pay
  int64_t jumps = 0, jump_tokens = 0;  // jump-forward: runs of forced tokens, and their tokens
  int64_t context_shifts = 0, shifted_tokens = 0;  // ContextShift: shifts, and tokens dropped
  static constexpr int32_t kDraftPositions = 32;
  std::array<int64_t, kDraftPositions> draft_accepted_at{};  // by position in the proposal
  int32_t draft_limit = 0;                                   // most tokens of a proposal; 0: off
  std::array<int64_t, 8> finished{};                         // requests' choices by Finish

  // Gauges.
  int64_t running = 0, waiting = 0;
  int64_t kv_blocks_total = 0, kv_blocks_used = 0, kv_blocks_cached = 0, kv_blocks_free = 0;
  int64_t kv_block_size = 0, kv_tokens = 0;        // kv_tokens: capacity without windows
  int64_t token_budget = 0;                        // of the next step
  int64_t adapter_slots = 0, adapter_loads = 0;    // adapter_loads: slots that were filled
  std::string running_adapters, waiting_adapters;  // names, separated by commas

  // One sample per sequence (a choice of a request) ...
  Histogram queue_seconds, prefill_seconds, decode_seconds, ttft_seconds, tpot_seconds, e2e_seconds;
  Histogram inference_seconds;  // from its first step to its last token
  Histogram prompt_length{Histogram::Unit::kTokens}, answer_length{Histogram::Unit::kTokens};
  // ... per accepted request: what it asked for ...
  Histogram asked_tokens{Histogram::Unit::kTokens}, asked_choices{Histogram::Unit::kTokens};
  Histogram longest_answer{Histogram::Unit::kTokens};  // ... and the longest of its answers ...
  // ... per token after the first ...
  Histogram itl_seconds;
  // ... and per step.
  Histogram step_seconds, step_tokens{Histogram::Unit::kTokens},
      step_sequences{Histogram::Unit::kTokens};
  Histogram step_limit_ratio{Histogram::Unit::kRatio};  // of those with decodes and prompts

  DispatchStats dispatch;  // of the executable
};

// Bytes, exactly as allocated. `other` is on the heap.
struct EngineMemory {
  uint64_t weights = 0, kv = 0, arena = 0, scratch = 0, other = 0;  // of the executable
  uint64_t mapped = 0;                                              // of weights: pages of a file
  uint64_t untouched = 0;  // of all: reserved, not resident
  uint64_t total() const { return weights + kv + arena + scratch + other; }
};

}  // namespace tokamak
