#pragma once
// Predicted times of the cpu backend's kernels: the thresholds and work splits of the kernels
// themselves. docs/fusion.md has the formulas.
#include "plan/kernel_desc.h"

namespace tokamak::cpu {

KernelCost matrix_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);
// Several matrices with what precedes and follows them (region_linears.cc).
KernelCost linears_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);
// Element-wise work and rows, hand-written.
KernelCost rows_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);
// The interpreter of Loop IR.
KernelCost loop_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);
// Attention: always on all threads.
KernelCost attend_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);
// From logits to tokens in one kernel.
KernelCost sample_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);
// Ops that run as they are defined.
KernelCost defined_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);

}  // namespace tokamak::cpu
