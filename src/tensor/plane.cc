#include "tensor/plane.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <limits>
#include <vector>

#include "base/error.h"
#include "tensor/block_formats.h"

namespace tokamak {

int64_t plane_bytes(const TensorType& type) {
  SymExpr bytes = type.bytes();
  if (type.dtype == DType::kI8) {
    SymExpr rows = 1;
    for (int i = 0; i + 1 < type.rank(); ++i) rows = rows * type.extent(i);
    bytes = bytes + rows * SymExpr(static_cast<int64_t>(sizeof(float)));
  }
  return bytes.constant().value();
}

int64_t plane_bytes(DType dtype, std::span<const int64_t> dims) {
  TensorType type{dtype, {}};
  for (int64_t d : dims) type.dims.push_back({"", d, false});
  return plane_bytes(type);
}

float quantize_plane_row(const float* x, int64_t n, int8_t* q) {
  uint32_t top = 0;  // bits of the largest magnitude; infinity and NaN are above all numbers
  for (int64_t i = 0; i < n; ++i) top = std::max(top, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  float largest = std::bit_cast<float>(top), scale = largest / 127.0f;
  if (!(largest <= FLT_MAX) || scale < FLT_MIN) {
    std::fill_n(q, n, int8_t{0});
    return largest <= FLT_MAX ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  }
  constexpr float kMagic = 12582912.0f;  // adding it rounds to an integer
  for (int64_t i = 0; i < n; ++i)
    q[i] = static_cast<int8_t>(static_cast<int32_t>(x[i] / scale + kMagic - kMagic));
  return scale;
}

void round_plane(DType dtype, int64_t width, std::span<float> values) {
  if (dtype == DType::kF32 || values.empty()) return;
  auto n = static_cast<int64_t>(values.size());
  TK_CHECK(width > 0 && n % width == 0, "a plane {} wide cannot hold {} values", width, n);
  if (dtype != DType::kI8) {
    std::vector<std::byte> row(dtype_bytes(dtype, width));
    for (int64_t at = 0; at < n; at += width) {
      encode_row(dtype, values.data() + at, row.data(), width);
      decode_row(dtype, row.data(), values.data() + at, width);
    }
    return;
  }
  std::vector<int8_t> row(static_cast<size_t>(width));
  for (int64_t at = 0; at < n; at += width) {
    float scale = quantize_plane_row(values.data() + at, width, row.data());
    for (int64_t i = 0; i < width; ++i)
      values[static_cast<size_t>(at + i)] = scale * row[static_cast<size_t>(i)];
  }
}

}  // namespace tokamak
