#pragma once
// Decoders of block formats (tensor/block_formats.h has the layouts) for products on tensor cores:
// of 32 columns of a row a lane needs columns c, c + 1, and those 8, 16 and 24 further, where c is
// 0, 2, 4 or 6, as bf16. Integers become floats by being bits of one whose exponent is known; the
// bias that this adds is taken off by the multiply-add that scales them.
#include "backend/cuda/few_rows.h"
#include "backend/cuda/ops/number.cuh"

namespace tokamak::cuda {

// Pairs of columns as bf16, in the order above.
using LanePairs = uint32_t[4];

// Byte j of a word, plus kSmallBias for bytes up to 127 or kByteBias. Exact, and one instruction.
constexpr float kSmallBias = 128, kByteBias = 32768;
template <bool kSmall>
TK_DEVICE float biased_byte(uint32_t word, int j) {
#ifdef __CUDACC__
  const unsigned at = static_cast<unsigned>(j);
  return kSmall ? __uint_as_float(__byte_perm(word, 0x43000000u, 0x7044u | at << 8))
                : __uint_as_float(__byte_perm(word, 0x47000000u, 0x7404u | at << 4));
#else
  const uint32_t byte = word >> 8 * j & 255;
  return bits_float(kSmall ? 0x43000000u | byte << 16 : 0x47000000u | byte << 8);
#endif
}

// Blocks are aligned to two bytes only.
TK_DEVICE uint32_t two_bytes(const uint8_t* p) { return *reinterpret_cast<const uint16_t*>(p); }
// Bytes c, c + 1, c + 8, c + 9.
TK_DEVICE uint32_t lane_bytes(const uint8_t* p) { return two_bytes(p) | two_bytes(p + 8) << 16; }
TK_DEVICE float scale_at(const uint8_t* p) {
  return half_value(*reinterpret_cast<const uint16_t*>(p));
}

// scale * byte + add of the four bytes of a word; add: less the bias times the scale.
template <bool kSmall>
TK_DEVICE void scale_bytes(uint32_t word, float scale, float add, uint32_t& first,
                           uint32_t& second) {
  float v[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) v[j] = fmaf(biased_byte<kSmall>(word, j), scale, add);
  first = brain_pair(v[0], v[1]);
  second = brain_pair(v[2], v[3]);
}

constexpr uint32_t kNibbles = 0x0f0f0f0fu;

// Bits c, c + 1, c + 8, c + 9 of a word to the fifth bits of four bytes.
TK_DEVICE uint32_t fifth_bits(uint32_t bits, int c) {
  bits >>= c;
  return (bits & 1) << 4 | (bits & 2) << 11 | (bits & 0x100) << 12 | (bits & 0x200) << 19;
}

// q4_0, q4_1, q5_0, q5_1
template <bool kFifth, bool kMinimum>
TK_DEVICE void lane_of_q45(const uint8_t* block, int c, LanePairs& out) {
  constexpr int kHead = kMinimum ? 4 : 2, kNumbers = kHead + (kFifth ? 4 : 0);
  constexpr float kZero = kMinimum ? 0 : kFifth ? 16 : 8;
  const uint32_t bytes = lane_bytes(block + kNumbers + c);
  uint32_t low = bytes & kNibbles, high = bytes >> 4 & kNibbles;
  if constexpr (kFifth) {
    low |= fifth_bits(two_bytes(block + kHead), c);
    high |= fifth_bits(two_bytes(block + kHead + 2), c);
  }
  const float scale = scale_at(block), minimum = kMinimum ? scale_at(block + 2) : 0.0f;
  const float add = fmaf(-(kSmallBias + kZero), scale, minimum);
  scale_bytes<true>(low, scale, add, out[0], out[1]);
  scale_bytes<true>(high, scale, add, out[2], out[3]);
}

// Scales and minima of q4_k and q5_k, of six bits each: byte sub % 4 of a word is that of part sub.
TK_DEVICE void six_bits(const uint8_t* s, int sub, uint32_t& scale, uint32_t& minimum) {
  const auto* w = reinterpret_cast<const uint32_t*>(s);
  if (sub < 4) {
    scale = w[0] & 0x3f3f3f3fu;
    minimum = w[1] & 0x3f3f3f3fu;
  } else {
    scale = (w[2] & kNibbles) | (w[0] >> 2 & 0x30303030u);
    minimum = (w[2] >> 4 & kNibbles) | (w[1] >> 2 & 0x30303030u);
  }
}
// Byte j, up to 127, times a scale of 11 bits: exact.
TK_DEVICE float scaled_byte(uint32_t word, int j, float scale) {
  return fmaf(biased_byte<true>(word, j), scale, -kSmallBias * scale);
}

template <bool kFifth>
TK_DEVICE void lane_of_k45(const uint8_t* block, int sub, int c, LanePairs& out) {
  const uint8_t* numbers = block + (kFifth ? 48 : 16) + 32 * (sub / 2) + c;
  uint32_t scale, minimum;
  six_bits(block + 4, sub, scale, minimum);
  uint32_t low = lane_bytes(numbers) >> 4 * (sub % 2) & kNibbles;
  uint32_t high = lane_bytes(numbers + 16) >> 4 * (sub % 2) & kNibbles;
  if constexpr (kFifth) {
    low |= (lane_bytes(block + 16 + c) >> sub & 0x01010101u) << 4;
    high |= (lane_bytes(block + 32 + c) >> sub & 0x01010101u) << 4;
  }
  const float d = scaled_byte(scale, sub % 4, scale_at(block));
  const float m = scaled_byte(minimum, sub % 4, scale_at(block + 2));
  const float add = fmaf(-kSmallBias, d, -m);
  scale_bytes<true>(low, d, add, out[0], out[1]);
  scale_bytes<true>(high, d, add, out[2], out[3]);
}

TK_DEVICE void lane_of_q6_k(const uint8_t* block, int segment, int c, LanePairs& out) {
  const int half = segment / 4, quarter = segment % 4;
  const uint8_t *numbers = block + 64 * half + 32 * (quarter % 2) + c,
                *upper = block + 128 + 32 * half + c, *scales = block + 192 + 2 * segment;
  const float d = scale_at(block + 208);
#pragma unroll
  for (int i = 0; i < 2; ++i) {  // 16 columns have a scale
    const uint32_t word = (lane_bytes(numbers + 16 * i) >> 4 * (quarter / 2) & kNibbles) |
                          (lane_bytes(upper + 16 * i) >> 2 * quarter & 0x03030303u) << 4;
    const float scale = fmaf(biased_byte<false>(scales[i] ^ 128u, 0), d, -(kByteBias + 128) * d);
    scale_bytes<true>(word, scale, -(kSmallBias + 32) * scale, out[2 * i], out[2 * i + 1]);
  }
}

// 32 columns, from 32 * segment on, of the 256 whose bytes begin at `bytes`.
template <DType type>
TK_DEVICE void lane_of_blocks(const uint8_t* bytes, int segment, int c, LanePairs& out) {
  if constexpr (type == DType::kQ8_0) {
    const uint8_t* block = bytes + segment * 34;
    constexpr uint32_t kSigns = 0x80808080u;
    const float scale = scale_at(block), add = -(kByteBias + 128) * scale;
    scale_bytes<false>(lane_bytes(block + 2 + c) ^ kSigns, scale, add, out[0], out[1]);
    scale_bytes<false>(lane_bytes(block + 18 + c) ^ kSigns, scale, add, out[2], out[3]);
  } else if constexpr (type == DType::kQ4_0) {
    lane_of_q45<false, false>(bytes + segment * 18, c, out);
  } else if constexpr (type == DType::kQ4_1) {
    lane_of_q45<false, true>(bytes + segment * 20, c, out);
  } else if constexpr (type == DType::kQ5_0) {
    lane_of_q45<true, false>(bytes + segment * 22, c, out);
  } else if constexpr (type == DType::kQ5_1) {
    lane_of_q45<true, true>(bytes + segment * 24, c, out);
  } else if constexpr (type == DType::kQ4_K || type == DType::kQ5_K) {
    lane_of_k45<type == DType::kQ5_K>(bytes, segment, c, out);
  } else {
    static_assert(type == DType::kQ6_K);
    lane_of_q6_k(bytes, segment, c, out);
  }
}

}  // namespace tokamak::cuda
