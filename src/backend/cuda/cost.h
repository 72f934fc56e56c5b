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
// Weights that are decoded in registers: no tensor cores.
double decoded_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);
double attend_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);
double gather_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);

// A step of a decoder as a whole, without what it reads of the KV cache.
struct DecoderWork {
  double weight_bytes = 0;    // of all products, each read once
  double flops = 0;           // of all products
  double expanded_bytes = 0;  // that fused layers write as bf16 and read again
  double decoded = 0;         // weights that products of few rows make bf16 in registers
  double layers = 0, rows = 0;
  double few_rows = 0;   // up to which the products are those of few rows, beside decode attention
  double row_bytes = 0;  // that fused kernels read and write for one row of one layer
};
double stream_seconds(const DecoderWork& work, const Machine& machine);  // persistent kernel
double layers_seconds(const DecoderWork& work, const Machine& machine);  // fused layers

}  // namespace tokamak::cuda
