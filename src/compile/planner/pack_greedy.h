#pragma once
// Packing by placing one buffer after the other: fast, but not optimal.
#include <functional>

#include "compile/planner/pack.h"

namespace tokamak {

struct GreedyResult {
  std::vector<uint64_t> offsets;
  uint64_t peak = UINT64_MAX;
  std::string method;
  uint64_t work = 0;  // steps taken, in the unit of PackOptions::work_limit
};

using StopSign = std::function<bool()>;  // asked now and then; true ends the work

// Every order with both fits, the best of them; ends early at `goal`. The first order is always
// finished, so that there is a packing: the square of the number of buffers in steps.
GreedyResult pack_greedily(std::span<const PackBuffer> buffers, uint64_t goal,
                           const StopSign& stop);

// Changes the order of the buffers that hold up the peak and keeps what is not worse, for about
// `work` steps or until `goal` is reached. Returns the best packing it saw.
GreedyResult improve_order(std::span<const PackBuffer> buffers, uint64_t goal, uint64_t work,
                           uint64_t seed, const StopSign& stop);

}  // namespace tokamak
