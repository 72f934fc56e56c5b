#include "backend/cuda/cost.h"

#include <algorithm>

namespace tokamak::cuda {
namespace {

constexpr double kLaunchSeconds = 2.5e-6;
constexpr double kMemory = 4.5e12;  // bytes per second that reads reach
constexpr double kCache = 8e12;     // of values that stay in the 50 MB cache
constexpr double kCacheBytes = 30e6;
constexpr double kVectorOps = 1.5e13;  // element-wise operations per second
constexpr double kF32Flops = 2e13;     // of the dot products in f32
constexpr double kI8Ops = 6e13;
constexpr double kAttendFlops = 4e12;

double traffic(const KernelWork& work) {
  double seconds = 0;
  for (const auto* list : {&work.in, &work.out})
    for (const ValueWork& v : *list)
      seconds += v.bytes / (v.weight || v.bytes > kCacheBytes ? kMemory : kCache);
  return seconds;
}

double cost_of(const KernelWork& work, double arithmetic) {
  return kLaunchSeconds + std::max(arithmetic, traffic(work));
}

}  // namespace

double rows_cost(const KernelDesc&, const KernelWork& work, const Machine&) {
  double ops = 0;
  for (const OpWork& op : work.ops) ops += op.vector_ops;
  return cost_of(work, ops / kVectorOps);
}

double linear_cost(const KernelDesc&, const KernelWork& work, const Machine&) {
  double seconds = 0;
  for (const OpWork& op : work.ops)
    seconds += op.flops / (op.activations == DType::kQ8A ? kI8Ops : kF32Flops);
  return cost_of(work, seconds);
}

double attend_cost(const KernelDesc&, const KernelWork& work, const Machine&) {
  double flops = 0;
  for (const OpWork& op : work.ops) flops += op.flops;
  return cost_of(work, flops / kAttendFlops);
}

}  // namespace tokamak::cuda
