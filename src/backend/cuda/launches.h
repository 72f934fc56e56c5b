#pragma once
// Launches of this backend that run a decoder as a whole, for the planner: the persistent kernel
// (stream_decoder.h) and the fused layers (layer_launches.h).
#include <span>
#include <string_view>
#include <vector>

#include "plan/launch_desc.h"

namespace tokamak::cuda {

enum class LaunchKind : uint8_t {
  kStream,     // the persistent kernel
  kStreamFp8,  // the same, which reads bf16 weights as FP8
  kLayers,     // fused layers
};
struct CudaLaunch {
  LaunchDesc desc;
  LaunchKind kind;
};
std::span<const CudaLaunch> cuda_launches();
// Those that a backend lists. TOKAMAK_CUDA_STREAM=0 and TOKAMAK_CUDA_LAYERS=0 leave theirs out, for
// comparisons.
std::vector<LaunchDesc> listed_launches();

// The launch that a plan names. Throws Error(kUnsupported) with its name and what this program has.
LaunchKind planned_launch(const PlanSet& set, const Plan& plan, const PlanLaunch& launch);
// The plans that name it.
std::vector<const Plan*> plans_with(const PlanSet& set, LaunchKind kind);
// The largest value of a symbol in a plan.
int64_t most_of(const PlanSet& set, const Plan& plan, std::string_view symbol);

}  // namespace tokamak::cuda
