#pragma once
// Predicted times: on the GPU that a machine file describes (calibrate.h), else on an H200. The
// kernels of this backend are compared with each other only, so most GPUs give the same plans.
#include <string_view>

#include "plan/kernel_desc.h"

namespace tokamak::cuda {

constexpr std::string_view kGpuMachine = "cuda ";  // what the name of such a machine begins with

// Seconds: arithmetic or traffic, whichever takes longer, and a launch.
double rows_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);
double linear_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);
double attend_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);

}  // namespace tokamak::cuda
