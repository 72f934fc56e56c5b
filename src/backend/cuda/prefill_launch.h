#pragma once
// Host side of the attention kernel for many rows on Hopper (prefill_attention.h).
#include "backend/cuda/ops/args.h"
#include "backend/cuda/prefill_attention.h"

namespace tokamak::cuda {

// Whether the kernel computes this: one 16-bit plane of keys and one of values, heads of 64 or 128,
// no mask, window or cap. The rows have to be causal (StepView::causal).
bool takes_prefill(const AttendArgs& a);
// The parameters of a launch. kv_blocks: blocks of the cache.
PrefillLaunch prefill_launch(const AttendArgs& a, int64_t kv_blocks);

}  // namespace tokamak::cuda
