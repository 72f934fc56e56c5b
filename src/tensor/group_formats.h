#pragma once
// The group types of DType: 32, 64 or 128 values of a row that share a scale. What GPTQ, AWQ,
// compressed-tensors, fp8 and bitsandbytes checkpoints hold is one of them, value for value.
//
// A group is its scale (f16 or f32), of whole numbers a zero point (int8), then the codes:
//   2, 3 bits   value i at bit i * bits, low bits first
//   4 bits, nf4 per 32 values: value j in the low nibble of byte j, value j + 16 in its high one
//   8 bits      int8; f8: the bits of f8e4m3
// A value is scale * (code - zero), scale * f8 or scale * nf4 in f32: one rounding.
#include <cstdint>
#include <optional>

#include "tensor/dtype.h"

namespace tokamak {

struct GroupFormat {
  enum class Code : uint8_t { kInt, kF8, kNF4 };
  Code code = Code::kInt;
  int bits = 4;       // of a code
  int group = 128;    // values
  bool wide = false;  // the scale is f32

  bool has_zero() const { return code == Code::kInt; }
  int scale_bytes() const { return wide ? 4 : 2; }
  int head_bytes() const { return scale_bytes() + (has_zero() ? 1 : 0); }
  int bytes() const { return head_bytes() + group * bits / 8; }
};

std::optional<GroupFormat> group_format(DType dtype);
DType group_dtype(const GroupFormat& format);

// One group: codes without packing, one per byte (8 bits: as int8). An f16 scale must be exact.
void write_group(const GroupFormat& format, float scale, int zero, const uint8_t* codes,
                 uint8_t* out);

}  // namespace tokamak
