#pragma once
// Plain quantisation of test weights, and what the quantised weights stand for.
#include <vector>

#include "backend/cuda/decode_program.h"

namespace tokamak::cuda {

struct Quantized {
  std::vector<uint8_t> bytes;     // as pack_tiles() takes them
  std::vector<float> row_scales;  // kFp8
  std::vector<float> values;      // [rows, width]
};
Quantized quantize(DecodeWeight type, const std::vector<float>& values, int rows, int width);

}  // namespace tokamak::cuda
