#pragma once
// How the copy engine finds keys or values of 16 bits in a plane of the cache
// (prefill_attention.cu, decode_attention.cu).
#include <cstdint>

#include "backend/cuda/tensor_map.h"

namespace tokamak::cuda {

// A plane of `rows` x `width`, where a row is one position of one head, as [rows / 8][width / 64]
// [8][64]: a copy brings `rows_at_once` rows (a multiple of 8) as swizzled tiles of 8 x 128 bytes.
TensorMap cache_map(void* plane, int64_t rows, int64_t width, int rows_at_once);

}  // namespace tokamak::cuda
