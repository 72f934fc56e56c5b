#include "compile/planner/pack.h"
#include "compile/planner/planner.h"

namespace tokamak {

// Sizes are rounded up, so that peak and lower bound count the same bytes.
Packing pack_arena(std::span<const Lifetime> values) {
  std::vector<PackBuffer> buffers;
  for (const Lifetime& v : values)
    buffers.push_back({v.first, uint64_t{v.last} + 1,
                       (v.bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment,
                       kArenaAlignment});
  PackOptions options;
  // Greedy orders alone miss the bound on some models (Gemma 3n, Mamba-2, mixtures of experts).
  // About 50 ms; a limit in time would make plans differ.
  options.work_limit = 20'000'000;
  options.time_limit = 1e6;
  PackResult packed = pack(buffers, options);
  return {std::move(packed.offsets), packed.peak, packed.lower_bound, std::move(packed.method)};
}

}  // namespace tokamak
