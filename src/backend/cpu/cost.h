#pragma once
// Predicted seconds and scratch of the cpu backend's kernels: the thresholds and work splits of the
// kernels themselves. docs/fusion.md has the formulas.
#include "plan/kernel_desc.h"

namespace tokamak::cpu {

double matrix_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);
// Several matrices with what precedes and follows them (region_linears.cc).
double linears_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);
// Activations that all threads share, packed.
uint64_t linears_scratch(const KernelWork& work);
// The inner values of all rows.
uint64_t lora_scratch(const KernelWork& work);
// Element-wise work and rows, hand-written.
double rows_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);
// The interpreter of Loop IR.
double loop_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);
// Attention: always on all threads.
double attend_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);
// Sums of segments that several threads compute.
constexpr int64_t kSegmentSumBytes = 2 << 20;
uint64_t attend_scratch(const KernelWork& work);
// From logits to tokens in one kernel.
double sample_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);
// Ops that run as they are defined.
double defined_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);

}  // namespace tokamak::cpu
