#include <algorithm>
#include <numeric>

#include "compile/planner/planner.h"

namespace tokamak {

// Largest first; each value takes the lowest gap that no value alive at the same time occupies.
Packing pack_arena(std::span<const Lifetime> values) {
  Packing packing;
  packing.offsets.resize(values.size());
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return values[a].bytes > values[b].bytes; });

  std::vector<size_t> placed;  // by offset
  for (size_t v : order) {
    uint64_t bytes = (values[v].bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
    uint64_t offset = 0;
    for (size_t other : placed) {
      bool together =
          values[other].first <= values[v].last && values[v].first <= values[other].last;
      if (!together) continue;
      if (packing.offsets[other] >= offset + bytes) break;  // the gap before `other` is wide enough
      uint64_t other_bytes =
          (values[other].bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
      offset = std::max(offset, packing.offsets[other] + other_bytes);
    }
    packing.offsets[v] = offset;
    packing.peak = std::max(packing.peak, offset + bytes);
    placed.insert(std::upper_bound(
                      placed.begin(), placed.end(), v,
                      [&](size_t a, size_t b) { return packing.offsets[a] < packing.offsets[b]; }),
                  v);
  }
  return packing;
}

}  // namespace tokamak
