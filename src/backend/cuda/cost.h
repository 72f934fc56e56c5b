#pragma once
// Predicted times on an H200. The kernels of this backend are compared with each other only, so
// the figures of another GPU would give nearly the same plans.
#include "plan/kernel_desc.h"

namespace tokamak::cuda {

// Arithmetic or traffic, whichever takes longer, and a launch.
KernelCost rows_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);
KernelCost linear_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);
KernelCost attend_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);

}  // namespace tokamak::cuda
