#pragma once
// Exact packing of buffers into a capacity: depth first search over skylines.
#include <chrono>
#include <optional>

#include "compile/planner/pack.h"

namespace tokamak {

// Sizes and capacity in one unit; every offset is a sum of sizes or counted from the capacity.
struct SearchBuffer {
  uint32_t first, last;  // sections of time, [first, last)
  int64_t size;          // > 0
  double lifetime;       // in time, for the order in which branches are tried
};

struct SearchLimits {
  uint64_t work = UINT64_MAX;
  std::chrono::steady_clock::time_point deadline;
  const std::atomic<bool>* cancel = nullptr;
};

struct SearchResult {
  enum class Status : uint8_t { kFits, kImpossible, kUnknown };
  Status status = Status::kUnknown;
  std::vector<int64_t> offsets;
  uint64_t nodes = 0, work = 0;
};

// More buffers than this are not tried: memory and stack grow with the square.
constexpr size_t kMaxSearchBuffers = 768;

// Looks for offsets below `capacity`, restarting in other orders with growing budgets. What failed
// once is remembered across restarts. `threads` searches run side by side in rounds; of two that
// succeed in one round the earlier order wins, so that the result does not depend on timing.
SearchResult search_packing(std::span<const SearchBuffer> buffers, uint32_t sections,
                            int64_t capacity, const SearchLimits& limits, unsigned threads,
                            uint64_t seed);

}  // namespace tokamak
