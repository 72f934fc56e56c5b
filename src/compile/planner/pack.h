#pragma once
// Static memory packing: gives every buffer an offset so that buffers alive at the same time share
// no byte and the highest end is as low as possible. A pure function of its arguments; knows
// nothing of graphs.
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tokamak {

struct PackBuffer {
  uint64_t lower = 0, upper = 0;  // alive in [lower, upper)
  uint64_t size = 0;
  uint64_t alignment = 1;  // of the offset; a power of two
};

struct PackOptions {
  uint64_t capacity = 0;   // stop at the first packing that fits; 0: as low as the budget allows
  double time_limit = 10;  // seconds; if it is reached, the result depends on the machine
  uint64_t work_limit = UINT64_MAX;  // steps of the search, a few ns each: the repeatable limit
  unsigned threads = 1;              // 1 or 2
  uint64_t seed = 1;
  const std::atomic<bool>* cancel = nullptr;  // stops early with the best packing so far
};

struct PackResult {
  std::vector<uint64_t> offsets;  // per buffer
  uint64_t peak = 0;              // highest offset + size
  uint64_t lower_bound = 0;       // no packing has a lower peak
  std::string method;             // what found this packing, e.g. "first-fit by size"
  uint64_t nodes = 0;             // of the exact search
  double seconds = 0;
  double gap() const {
    return lower_bound == 0
               ? 0
               : static_cast<double>(peak - lower_bound) / static_cast<double>(lower_bound);
  }
};

// The same arguments give the same packing, unless the time limit or `cancel` ends the search.
// Sizes must sum to less than 2^62. Runs a portfolio of greedy orders, then local search, then
// exact branch and bound, and stops as soon as the goal (capacity, or else the lower bound) is
// reached.
PackResult pack(std::span<const PackBuffer> buffers, const PackOptions& options);

// Checks a packing, however it was found: "" or what is wrong.
std::string packing_error(std::span<const PackBuffer> buffers, std::span<const uint64_t> offsets);

}  // namespace tokamak
