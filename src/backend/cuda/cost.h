#pragma once
// Predicted times on an H200. The kernels of this backend are compared with each other only, so
// the figures of another GPU would give nearly the same plans.
#include "plan/kernel_desc.h"

namespace tokamak::cuda {

// Seconds: arithmetic or traffic, whichever takes longer, and a launch.
double rows_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);
double linear_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);
double attend_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);

}  // namespace tokamak::cuda
