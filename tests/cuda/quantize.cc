#include "quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "reference.h"
#include "tensor/block_formats.h"

namespace tokamak::cuda {
namespace {

// The smallest half that is not below a positive value.
uint16_t half_above(double value, double& half) {
  int exponent = std::max(-14, static_cast<int>(std::floor(std::log2(value))));
  int steps = static_cast<int>(std::ceil(value / std::exp2(exponent) * 1024));
  half = std::ldexp(steps, exponent - 10);
  return static_cast<uint16_t>(((exponent + 14) << 10) + steps);
}

double fp8_value(int code) {
  int exponent = code >> 3 & 15, mantissa = code & 7;
  double size = exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
  return code & 128 ? -size : size;
}
uint8_t nearest_fp8(double value) {
  static const std::vector<double> sizes = [] {
    std::vector<double> v;
    for (int code = 0; code < 127; ++code) v.push_back(fp8_value(code));
    return v;
  }();
  double size = std::fabs(value);
  auto above = std::lower_bound(sizes.begin(), sizes.end() - 1, size);
  if (above != sizes.begin() && size - above[-1] < *above - size) --above;
  return static_cast<uint8_t>((above - sizes.begin()) | (value < 0 ? 128 : 0));
}

double largest(const float* x, size_t n) {
  double most = 1e-6;
  for (size_t i = 0; i < n; ++i) most = std::max(most, std::fabs(static_cast<double>(x[i])));
  return most;
}

void quantize_block(bool eight, const float* x, uint8_t* block, float* out) {
  double scale = 0;
  uint16_t half = half_above(largest(x, 32) / (eight ? 127 : 7), scale);
  std::memcpy(block, &half, 2);
  for (int i = 0; i < 32; ++i) {
    int q = static_cast<int>(std::lround(static_cast<double>(x[i]) / scale));
    out[i] = static_cast<float>(q * scale);
    if (eight)
      block[2 + i] = static_cast<uint8_t>(q);
    else
      block[2 + i % 16] = static_cast<uint8_t>(block[2 + i % 16] | (q + 8) << (i < 16 ? 0 : 4));
  }
}

}  // namespace

Quantized quantize_k(DType type, const std::vector<float>& values, int rows, int width) {
  const auto n = static_cast<size_t>(width), row_bytes = dtype_bytes(type, width);
  Quantized q;
  q.bytes.resize(static_cast<size_t>(rows) * row_bytes);
  q.values.resize(values.size());
  on_all_cores(rows, [&](int r) {
    const auto row = static_cast<size_t>(r);
    uint8_t* bytes = q.bytes.data() + row * row_bytes;
    encode_row(type, values.data() + row * n, bytes, width);
    decode_row(type, bytes, q.values.data() + row * n, width);
  });
  return q;
}

Quantized quantize(DecodeWeight type, const std::vector<float>& values, int rows, int width) {
  if (type == DecodeWeight::kK4) return quantize_k(DType::kQ4_K, values, rows, width);
  if (type == DecodeWeight::kK8) return quantize_k(DType::kQ6_K, values, rows, width);
  const auto n = static_cast<size_t>(width);
  const bool fp8 = type == DecodeWeight::kFp8, eight = type == DecodeWeight::kQ8;
  const size_t block = fp8 ? 32 : eight ? 34 : 18, row_bytes = n / 32 * block;
  Quantized q;
  q.bytes.resize(static_cast<size_t>(rows) * row_bytes);
  q.values.resize(values.size());
  if (fp8) q.row_scales.resize(static_cast<size_t>(rows));
  on_all_cores(rows, [&](int r) {
    const auto row = static_cast<size_t>(r);
    const float* x = values.data() + row * n;
    uint8_t* bytes = q.bytes.data() + row * row_bytes;
    float* out = q.values.data() + row * n;
    if (!fp8) {
      for (size_t b = 0; b < n / 32; ++b)
        quantize_block(eight, x + b * 32, bytes + b * block, out + b * 32);
      return;
    }
    const float scale = static_cast<float>(largest(x, n) / 448);
    q.row_scales[row] = scale;
    for (size_t i = 0; i < n; ++i) {
      bytes[i] = nearest_fp8(static_cast<double>(x[i] / scale));
      out[i] = static_cast<float>(fp8_value(bytes[i]) * static_cast<double>(scale));
    }
  });
  return q;
}

}  // namespace tokamak::cuda
