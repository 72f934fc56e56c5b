#pragma once
// Attention of many rows of a sequence over the paged cache on Hopper (prefill_attention.cu).
#include <cstdint>

#include "backend/cuda/tensor_map.h"
#include "tensor/dtype.h"

namespace tokamak::cuda {

constexpr int kPrefillRows = 128, kPrefillKeys = 128;  // of a tile
constexpr int kPrefillPlaces = 5;                      // for tiles of keys and of values
constexpr int kPrefillThreads = 384;                   // a warpgroup that loads, two that compute

struct PrefillLaunch {
  // A plane as [rows / 8][d / 64][8][64], of which one block and head is copied at a time.
  TensorMap keys, values;
  const void* q;           // [rows, heads, d]
  void* y;                 // [rows, heads, d]
  const int32_t* table;    // [sequences, stride]: blocks of the cache
  const int32_t* q_start;  // [sequences + 1]
  const int32_t* kv_len;   // [sequences]
  int32_t stride, sequences, heads, kv_heads;
  int32_t block_shift;  // a block has 1 << block_shift keys
  float scale;
  DType tq, ty;
};

constexpr int prefill_shared_bytes(int d) {
  constexpr int kBarriers = 1024;
  return 2 * (kPrefillPlaces * kPrefillKeys + 2 * kPrefillRows) * d + kBarriers;
}

}  // namespace tokamak::cuda
