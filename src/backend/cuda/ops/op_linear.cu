// Products with weights: tiles of linear_tile.cuh.
#include "backend/cuda/ops/linear_tile.cuh"

namespace tokamak::cuda {

template <WeightKind kind, int rows, int columns>
TK_DEVICE void linear(const LinearArgs& a) {
  linear_tile<kind, rows, columns>(a, int64_t{blockIdx.y} * rows, a.n);
}
template <WeightKind kind, int rows, int columns>
TK_DEVICE void linear_bytes(const LinearArgs& a) {
  linear_bytes_tile<kind, rows, columns>(a, int64_t{blockIdx.y} * rows, a.n);
}

#define TK_LINEAR(name, kind)                                                          \
  TK_KERNEL(op_linear_##name##_1, LinearArgs, kTileThreads) { linear<kind, 1, 2>(a); } \
  TK_KERNEL(op_linear_##name##_4, LinearArgs, kTileThreads) { linear<kind, 4, 4>(a); } \
  TK_KERNEL(op_linear_##name##_8, LinearArgs, kTileThreads) { linear<kind, 8, 4>(a); }

#define TK_LINEAR_BYTES(name, kind)                                                                \
  TK_KERNEL(op_linear_##name##_bytes_1, LinearArgs, kTileThreads) { linear_bytes<kind, 1, 2>(a); } \
  TK_KERNEL(op_linear_##name##_bytes_4, LinearArgs, kTileThreads) { linear_bytes<kind, 4, 4>(a); } \
  TK_KERNEL(op_linear_##name##_bytes_8, LinearArgs, kTileThreads) { linear_bytes<kind, 8, 4>(a); }

TK_LINEAR_BYTES(q8_0, WeightKind::kQ8_0)
TK_LINEAR_BYTES(q4_0, WeightKind::kQ4_0)
TK_LINEAR(f32, WeightKind::kF32)
TK_LINEAR(f16, WeightKind::kF16)
TK_LINEAR(bf16, WeightKind::kBF16)
TK_LINEAR(q8_0, WeightKind::kQ8_0)
TK_LINEAR(q4_0, WeightKind::kQ4_0)
TK_LINEAR(blocks, WeightKind::kBlocks)

}  // namespace tokamak::cuda
