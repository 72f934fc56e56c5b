#pragma once
// Products of up to kThinRows rows with bf16 weights (ops/op_thin.cu): how they are cut into
// blocks.
#include "backend/cuda/launch.h"
#include "backend/cuda/ops/args.h"

namespace tokamak::cuda {

constexpr int kMostParts = 8;
struct ThinPlan {
  int batch = 0;            // rows, padded; 0: the kernel does not take this product
  int chunk = 0, tile = 0;  // see ops/op_thin.cu
  int parts = 1;            // of k; several leave f32 sums that the reader adds
  double seconds = 0;       // predicted
  int shared_bytes() const;
};

enum class ThinResult { kParts, kBf16, kF32, kGated };
// The fastest way to multiply on a GPU of so many multiprocessors. Only kParts may be cut along k.
ThinPlan plan_thin(int64_t rows, int64_t n, int64_t k, int multiprocessors, ThinResult result);
void emit_thin(const ThinPlan& plan, ThinArgs args, ThinResult result, LaunchList& list);

}  // namespace tokamak::cuda
