// Products with weights: tiles of linear_tile.cuh.
#include "backend/cuda/ops/linear_tile.cuh"

namespace tokamak::cuda {

#define TK_LINEAR(name, kind)                                 \
  TK_KERNEL(op_linear_##name##_1, LinearArgs, kTileThreads) { \
    linear_tile<kind, 1, 2>(a, WholeMatrix());                \
  }                                                           \
  TK_KERNEL(op_linear_##name##_4, LinearArgs, kTileThreads) { \
    linear_tile<kind, 4, 4>(a, WholeMatrix());                \
  }                                                           \
  TK_KERNEL(op_linear_##name##_8, LinearArgs, kTileThreads) { \
    linear_tile<kind, 8, 4>(a, WholeMatrix());                \
  }

#define TK_LINEAR_BYTES(name, kind)                                 \
  TK_KERNEL(op_linear_##name##_bytes_1, LinearArgs, kTileThreads) { \
    linear_bytes_tile<kind, 1, 2>(a, WholeMatrix());                \
  }                                                                 \
  TK_KERNEL(op_linear_##name##_bytes_4, LinearArgs, kTileThreads) { \
    linear_bytes_tile<kind, 4, 4>(a, WholeMatrix());                \
  }                                                                 \
  TK_KERNEL(op_linear_##name##_bytes_8, LinearArgs, kTileThreads) { \
    linear_bytes_tile<kind, 8, 4>(a, WholeMatrix());                \
  }

TK_LINEAR_BYTES(q8_0, WeightKind::kQ8_0)
TK_LINEAR_BYTES(q4_0, WeightKind::kQ4_0)
TK_LINEAR(f32, WeightKind::kF32)
TK_LINEAR(f16, WeightKind::kF16)
TK_LINEAR(bf16, WeightKind::kBF16)
TK_LINEAR(q8_0, WeightKind::kQ8_0)
TK_LINEAR(q4_0, WeightKind::kQ4_0)
TK_LINEAR(q4_k, WeightKind::kQ4_K)
TK_LINEAR(q6_k, WeightKind::kQ6_K)
TK_LINEAR(mxfp4, WeightKind::kMXFP4)
TK_LINEAR(blocks, WeightKind::kBlocks)

}  // namespace tokamak::cuda
