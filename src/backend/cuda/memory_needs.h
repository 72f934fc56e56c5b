#pragma once
// The device memory that a model will take, known before any of it is allocated.
#include <cstdint>
#include <vector>

#include "backend/cuda/driver.h"
#include "plan/plan.h"

namespace tokamak::cuda {

// A table of blocks on the device. Rows are as long as the longest sequence needs, so that launches
// do not depend on the step.
struct TableSize {
  int64_t rows = 0;
  int32_t stride = 0;
  static TableSize of(const PlanSet& plans, uint32_t group);
  size_t bytes() const { return static_cast<size_t>(rows * stride) * sizeof(int32_t); }
};
int32_t padded_stride(int64_t blocks);

struct MemoryNeeds {
  uint64_t weights = 0, values = 0;  // values: between ops, and scratch
  uint64_t fast_paths = 0;           // at most: what steps can do without, more slowly
  static MemoryNeeds of(const PlanSet& plans);
  uint64_t total() const { return weights + values + fast_paths; }
};

// Throws Error(kResourceExhausted) with the numbers where the model cannot fit.
void check_memory(const Device& device, const PlanSet& plans, const std::vector<int64_t>& blocks);

// Bytes for the KV cache where this program may use `share` of the device's memory, all else that
// the model takes subtracted. Throws Error(kResourceExhausted) where nothing is left.
uint64_t kv_bytes_within(const Device& device, const PlanSet& plans, double share);

}  // namespace tokamak::cuda
