// Encoders. The simple types follow the format's definition exactly; q4_k and q6_k search for good
// scales (the format fixes only the decoder).
#include <algorithm>
#include <array>

#include "tensor/block_formats_detail.h"

namespace tokamak::block {
namespace {

// NaN gives the lower bound, so hostile input never reaches an undefined conversion.
float clamp(float x, int low, int high) {
  x = x > static_cast<float>(low) ? x : static_cast<float>(low);
  return x < static_cast<float>(high) ? x : static_cast<float>(high);
}
int truncated(float x, int low, int high) { return static_cast<int>(clamp(x, low, high)); }
int nearest(float x, int low, int high) {
  return static_cast<int>(std::nearbyint(clamp(x, low, high)));
}
float inverse(float x) { return x == 0.0f ? 0.0f : 1.0f / x; }

// The value of largest magnitude, with its sign; the first if several are equal.
float signed_peak(const float* x, int n) {
  float peak = x[0];
  for (int j = 1; j < n; ++j)
    if (std::fabs(x[j]) > std::fabs(peak)) peak = x[j];
  return peak;
}

void pack_nibbles(const int (&q)[32], uint8_t* out) {
  for (int j = 0; j < 16; ++j) out[j] = static_cast<uint8_t>((q[j] & 15) | (q[j + 16] & 15) << 4);
}
void pack_fifth_bits(const int (&q)[32], uint8_t* out) {
  uint32_t high = 0;
  for (int j = 0; j < 32; ++j) high |= static_cast<uint32_t>(q[j] >> 4 & 1) << j;
  std::memcpy(out, &high, sizeof high);
}

// x ~ d * (q - offset), the peak landing on q = 0.
void quantize_symmetric(const float* x, int offset, int (&q)[32], uint8_t* block) {
  float d = signed_peak(x, 32) / static_cast<float>(-offset), id = inverse(d);
  for (int j = 0; j < 32; ++j)
    q[j] = truncated(x[j] * id + (static_cast<float>(offset) + 0.5f), 0, 2 * offset - 1);
  store_u16(block, f32_to_f16(d));
}

// x ~ d * q + minimum.
void quantize_affine(const float* x, int levels, int (&q)[32], uint8_t* block) {
  auto [low, high] = std::minmax_element(x, x + 32);
  float minimum = *low, d = (*high - minimum) / static_cast<float>(levels), id = inverse(d);
  for (int j = 0; j < 32; ++j) q[j] = truncated((x[j] - minimum) * id + 0.5f, 0, levels);
  store_u16(block, f32_to_f16(d));
  store_u16(block + 2, f32_to_f16(minimum));
}

struct ScaleMin {
  float scale = 0, minimum = 0;  // x ~ scale * q - minimum, both not negative
};

// Weighted least squares for scale and minimum with the levels q fixed, and the error that is left.
double fit_scale_min(const float* x, const float* weight, const int* q, ScaleMin& fit) {
  double w = 0, wq = 0, wqq = 0, wx = 0, wqx = 0, wxx = 0;
  for (int j = 0; j < 32; ++j) {
    double wj = weight[j], qj = q[j], xj = x[j];
    w += wj;
    wq += wj * qj;
    wqq += wj * qj * qj;
    wx += wj * xj;
    wqx += wj * qj * xj;
    wxx += wj * xj * xj;
  }
  double determinant = w * wqq - wq * wq, scale = 0, offset = 0;
  if (determinant > 0) {
    scale = (w * wqx - wq * wx) / determinant;
    offset = (wqq * wx - wq * wqx) / determinant;
  }
  if (offset > 0 || determinant <= 0) {  // the format can only subtract
    offset = 0;
    scale = wqq > 0 ? wqx / wqq : 0;
  }
  fit = {static_cast<float>(scale), static_cast<float>(-offset)};
  return wxx + scale * scale * wqq + offset * offset * w + 2 * scale * offset * wq -
         2 * scale * wqx - 2 * offset * wx;
}

// Tries slightly different grid widths for one sub-block of 32 and keeps the best weighted fit.
ScaleMin search_scale_min(const float* x, int levels) {
  float weight[32];
  double square_sum = 0;
  for (int j = 0; j < 32; ++j) square_sum += static_cast<double>(x[j]) * x[j];
  auto rms = static_cast<float>(std::sqrt(square_sum / 32));
  for (int j = 0; j < 32; ++j) weight[j] = rms + std::fabs(x[j]);  // large weights matter more
  auto [low, high] = std::minmax_element(x, x + 32);
  float minimum = std::min(*low, 0.0f), range = *high - minimum;
  if (!(range > 0) || !std::isfinite(range)) return {0, std::isfinite(minimum) ? -minimum : 0};
  ScaleMin best{range / static_cast<float>(levels), -minimum};
  double best_error = -1;
  for (int step = -10; step <= 10; ++step) {
    float inverse_scale = (static_cast<float>(levels) + 0.1f * static_cast<float>(step)) / range;
    int q[32];
    for (int j = 0; j < 32; ++j) q[j] = nearest((x[j] - minimum) * inverse_scale, 0, levels);
    ScaleMin fit;
    double error = fit_scale_min(x, weight, q, fit);
    if (fit.scale <= 0 || (best_error >= 0 && error >= best_error)) continue;
    best_error = error;
    best = fit;
  }
  return best;
}

void pack_scale_min(int j, int scale, int minimum, uint8_t* b) {
  if (j < 4) {
    b[j] = static_cast<uint8_t>((b[j] & 0xc0) | scale);
    b[j + 4] = static_cast<uint8_t>((b[j + 4] & 0xc0) | minimum);
  } else {
    b[j + 4] = static_cast<uint8_t>((scale & 15) | (minimum & 15) << 4);
    b[j - 4] = static_cast<uint8_t>((b[j - 4] & 63) | scale >> 4 << 6);
    b[j] = static_cast<uint8_t>((b[j] & 63) | minimum >> 4 << 6);
  }
}

// Symmetric scale of 16 values for levels -32..31, errors weighted by x^2.
float search_scale(const float* x) {
  float peak = signed_peak(x, 16);
  if (peak == 0 || !std::isfinite(peak)) return 0;
  float best = peak / -32.0f;
  double best_gain = -1;
  for (int step = -9; step <= 9; ++step) {
    float inverse_scale = -(32.0f + 0.1f * static_cast<float>(step)) / peak;
    double xq = 0, qq = 0;
    for (int j = 0; j < 16; ++j) {
      double q = nearest(x[j] * inverse_scale, -32, 31), w = static_cast<double>(x[j]) * x[j];
      xq += w * x[j] * q;
      qq += w * q * q;
    }
    // The error left by the best scale xq / qq is smallest where xq^2 / qq is largest.
    if (qq > 0 && xq * xq / qq > best_gain) {
      best_gain = xq * xq / qq;
      best = static_cast<float>(xq / qq);
    }
  }
  return best;
}

}  // namespace

void encode_q4_0(const float* x, uint8_t* block) {
  int q[32];
  quantize_symmetric(x, 8, q, block);
  pack_nibbles(q, block + 2);
}

void encode_q5_0(const float* x, uint8_t* block) {
  int q[32];
  quantize_symmetric(x, 16, q, block);
  pack_fifth_bits(q, block + 2);
  pack_nibbles(q, block + 6);
}

void encode_q4_1(const float* x, uint8_t* block) {
  int q[32];
  quantize_affine(x, 15, q, block);
  pack_nibbles(q, block + 4);
}

void encode_q5_1(const float* x, uint8_t* block) {
  int q[32];
  quantize_affine(x, 31, q, block);
  pack_fifth_bits(q, block + 4);
  pack_nibbles(q, block + 8);
}

void encode_q8_0(const float* x, uint8_t* block) {
  float d = std::fabs(signed_peak(x, 32)) / 127.0f, id = inverse(d);
  for (int j = 0; j < 32; ++j)  // this format rounds halves away from zero
    block[2 + j] = static_cast<uint8_t>(truncated(std::round(x[j] * id), -127, 127));
  store_u16(block, f32_to_f16(d));
}

void encode_q8a(const float* x, uint8_t* block) {
  float scale = std::fabs(signed_peak(x, 32)) / 127.0f;
  int total = 0;
  BlockQ8A out;
  for (int j = 0; j < 32; ++j) {
    int q = scale == 0 ? 0 : nearest(x[j] / scale, -127, 127);
    out.q[j] = static_cast<int8_t>(q);
    total += q;
  }
  out.scale = scale;
  out.sum = scale * static_cast<float>(total);
  std::memcpy(block, &out, sizeof out);
}

void encode_q4_k(const float* x, uint8_t* block) {
  std::array<ScaleMin, 8> fits;
  float top_scale = 0, top_minimum = 0;
  for (int sub = 0; sub < 8; ++sub) {
    fits[sub] = search_scale_min(x + 32 * sub, 15);
    top_scale = std::max(top_scale, fits[sub].scale);
    top_minimum = std::max(top_minimum, fits[sub].minimum);
  }
  std::memset(block, 0, 144);
  store_u16(block, f32_to_f16(top_scale / 63));
  store_u16(block + 2, f32_to_f16(top_minimum / 63));
  float d = load_half(block), dmin = load_half(block + 2);
  for (int sub = 0; sub < 8; ++sub) {
    int sc = nearest(fits[sub].scale * inverse(d), 0, 63);
    int m = nearest(fits[sub].minimum * inverse(dmin), 0, 63);
    pack_scale_min(sub, sc, m, block + 4);
    // Levels are chosen against the scale and minimum as they will be decoded.
    float scale = d * static_cast<float>(sc), minimum = dmin * static_cast<float>(m);
    for (int j = 0; j < 32; ++j) {
      int q = nearest((x[32 * sub + j] + minimum) * inverse(scale), 0, 15);
      block[16 + 32 * (sub / 2) + j] |= static_cast<uint8_t>(q << 4 * (sub % 2));
    }
  }
}

void encode_q6_k(const float* x, uint8_t* block) {
  float scales[16];
  for (int sub = 0; sub < 16; ++sub) scales[sub] = search_scale(x + 16 * sub);
  std::memset(block, 0, 210);
  store_u16(block + 208, f32_to_f16(signed_peak(scales, 16) / -128.0f));
  float d = load_half(block + 208);
  for (int sub = 0; sub < 16; ++sub) {
    int sc = nearest(scales[sub] * inverse(d), -128, 127);
    block[192 + sub] = static_cast<uint8_t>(sc);
    float inverse_scale = inverse(d * static_cast<float>(sc));
    int half = sub / 8, quarter = sub / 2 % 4;
    for (int j = 0; j < 16; ++j) {
      int q = nearest(x[16 * sub + j] * inverse_scale, -32, 31) + 32, column = 16 * (sub % 2) + j;
      block[64 * half + 32 * (quarter % 2) + column] |=
          static_cast<uint8_t>((q & 15) << 4 * (quarter / 2));
      block[128 + 32 * half + column] |= static_cast<uint8_t>(q >> 4 << 2 * quarter);
    }
  }
}

}  // namespace tokamak::block
