// Encoders of the simple types: they follow the format's definition exactly.
#include <algorithm>

#include "tensor/block_formats_search.h"

namespace tokamak::block {
namespace {

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

void encode_int16(const float* x, uint8_t* block) {
  BlockInt16 out;
  float peak = std::fabs(signed_peak(x, 128));
  double squares = 0, id = peak > 0 ? 1 / static_cast<double>(peak) : 0;
  for (int j = 0; j < 128; ++j) squares += std::pow(static_cast<double>(x[j]) * id, 2);
  double length = std::sqrt(squares) / static_cast<double>(kInt16Length);
  out.scale = peak * static_cast<float>(std::max(1.0 / 32767.0, length));
  for (int j = 0; j < 128; ++j)
    out.q[j] = static_cast<int16_t>(out.scale == 0 ? 0 : nearest(x[j] / out.scale, -32767, 32767));
  std::memcpy(block, &out, sizeof out);
}

// The exponent that lets the largest magnitude reach 4 to 8, then the nearest of the sixteen
// values, the first of equals.
void encode_mxfp4(const float* x, uint8_t* block) {
  float peak = std::fabs(signed_peak(x, 32));
  block[0] =
      static_cast<uint8_t>(peak > 0 ? truncated(std::floor(std::log2(peak)) - 2 + 127, 0, 254) : 0);
  float d = half_of_e8m0(block[0]);
  int q[32];
  for (int j = 0; j < 32; ++j) {
    q[j] = 0;
    float best = std::fabs(x[j]);
    for (int k = 1; k < 16; ++k) {
      float error = std::fabs(d * kFp4Doubled[k] - x[j]);
      if (error < best) {
        best = error;
        q[j] = k;
      }
    }
  }
  pack_nibbles(q, block + 1);
}

}  // namespace tokamak::block
