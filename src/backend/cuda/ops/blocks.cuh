#pragma once
// Decoders of block formats (tensor/block_formats.h has the layouts): eight consecutive values of a
// row, with the roundings of the host's decoders.
#include "backend/cuda/ops/number.cuh"

namespace tokamak::cuda {

// Blocks are aligned to two bytes only.
TK_DEVICE uint32_t word_at(const uint8_t* p) {
  const auto* h = reinterpret_cast<const uint16_t*>(p);
  return h[0] | uint32_t{h[1]} << 16;
}
TK_DEVICE float half_at(const uint8_t* p) {
  return half_value(*reinterpret_cast<const uint16_t*>(p));
}
TK_DEVICE int byte_of(uint32_t low, uint32_t high, int j) {
  return static_cast<int>((j < 4 ? low >> 8 * j : high >> 8 * (j - 4)) & 255);
}

TK_DEVICE void decode8_q8_0(const uint8_t* row, int64_t at, float (&out)[8]) {
  const uint8_t* block = row + at / 32 * 34;
  float d = half_at(block);
  const uint8_t* q = block + 2 + at % 32;
  unpack_bytes({word_at(q), word_at(q + 4)}, out);
#pragma unroll
  for (int j = 0; j < 8; ++j) out[j] = mul_rn(d, out[j]);
}

// Four bits per value, perhaps a fifth, perhaps a minimum: q4_0, q4_1, q5_0, q5_1.
template <bool fifth, bool minimum>
TK_DEVICE void decode8_q45(const uint8_t* row, int64_t at, float (&out)[8]) {
  constexpr int kHead = 2 + (minimum ? 2 : 0), kBytes = kHead + (fifth ? 4 : 0) + 16;
  const uint8_t* block = row + at / 32 * kBytes;
  int offset = static_cast<int>(at % 32), shift = offset >= 16 ? 4 : 0;
  float d = half_at(block), m = minimum ? half_at(block + 2) : 0.0f;
  uint32_t high = fifth ? word_at(block + kHead) >> offset : 0;
  const uint8_t* q = block + kHead + (fifth ? 4 : 0) + offset % 16;
  uint32_t a = word_at(q), b = word_at(q + 4);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    int v = byte_of(a, b, j) >> shift & 15;
    if (fifth) v |= static_cast<int>(high >> j & 1) << 4;
    if (minimum)
      out[j] = add_rn(mul_rn(d, static_cast<float>(v)), m);
    else
      out[j] = mul_rn(d, static_cast<float>(v - (fifth ? 16 : 8)));
  }
}

// q4_k and q5_k: eight parts of 32 values with a scale and a minimum of six bits each.
template <bool fifth>
TK_DEVICE void decode8_k45(const uint8_t* row, int64_t at, float (&out)[8]) {
  const uint8_t* block = row + at / 256 * (fifth ? 176 : 144);
  int sub = static_cast<int>(at % 256) / 32, offset = static_cast<int>(at % 32);
  const uint8_t *s = block + 4, *q = block + (fifth ? 48 : 16) + 32 * (sub / 2) + offset;
  int scale, minimum;
  if (sub < 4) {
    scale = s[sub] & 63;
    minimum = s[sub + 4] & 63;
  } else {
    scale = (s[sub + 4] & 15) | (s[sub - 4] >> 6 << 4);
    minimum = (s[sub + 4] >> 4) | (s[sub] >> 6 << 4);
  }
  float d = mul_rn(half_at(block), static_cast<float>(scale));
  float m = mul_rn(half_at(block + 2), static_cast<float>(minimum));
  uint32_t a = word_at(q), b = word_at(q + 4), ha = 0, hb = 0;
  if (fifth) ha = word_at(block + 16 + offset), hb = word_at(block + 20 + offset);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    int v = byte_of(a, b, j) >> 4 * (sub % 2) & 15;
    if (fifth) v |= (byte_of(ha, hb, j) >> sub & 1) << 4;
    out[j] = add_rn(mul_rn(d, static_cast<float>(v)), -m);
  }
}

TK_DEVICE void decode8_q6_k(const uint8_t* row, int64_t at, float (&out)[8]) {
  const uint8_t* block = row + at / 256 * 210;
  int half = static_cast<int>(at % 256) / 128, sub = static_cast<int>(at % 128) / 16;
  int quarter = sub / 2, column = 16 * (sub % 2) + static_cast<int>(at % 16);
  const uint8_t* low = block + 64 * half + 32 * (quarter % 2) + column;
  const uint8_t* high = block + 128 + 32 * half + column;
  auto factor = static_cast<float>(static_cast<int8_t>(block[192 + 8 * half + sub]));
  float scale = mul_rn(half_at(block + 208), factor);
  uint32_t a = word_at(low), b = word_at(low + 4), ha = word_at(high), hb = word_at(high + 4);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    int v = (byte_of(a, b, j) >> 4 * (quarter / 2) & 15) | (byte_of(ha, hb, j) >> 2 * quarter & 3)
                                                               << 4;
    out[j] = mul_rn(scale, static_cast<float>(v - 32));
  }
}

// Eight bytes at any place, read as the aligned words that hold them.
TK_DEVICE Words2 bytes8_at(const uint8_t* p) {
  const unsigned shift = static_cast<unsigned>(reinterpret_cast<uintptr_t>(p) % 4) * 8;
  const auto* words = reinterpret_cast<const uint32_t*>(p - shift / 8);
  if (shift == 0) return {words[0], words[1]};
  return {words[0] >> shift | words[1] << (32 - shift),
          words[1] >> shift | words[2] << (32 - shift)};
}

// Numbers of four bits with a power of two for 32 of them, in blocks of 17 bytes.
TK_DEVICE void decode8_mxfp4(const uint8_t* row, int64_t at, float (&out)[8]) {
  constexpr uint32_t kLow = 0x03020100, kHigh = 0x0c080604;  // twice the values of codes 0 to 7
  const uint8_t* block = row + at / 32 * 17;
  const int offset = static_cast<int>(at % 32), shift = offset >= 16 ? 4 : 0;
  const uint32_t e = block[0];  // half of 2 ^ (e - 127)
  const float d = bits_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
  const Words2 q = bytes8_at(block + 1 + offset % 16);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int code = byte_of(q.x, q.y, j) >> shift & 15;
    const auto v = static_cast<float>(byte_of(kLow, kHigh, code & 7));
    out[j] = mul_rn(d, code & 8 ? -v : v);
  }
}

TK_DEVICE void decode8(DType type, const uint8_t* row, int64_t at, float (&out)[8]) {
  switch (type) {
    case DType::kQ4_0:
      return decode8_q45<false, false>(row, at, out);
    case DType::kQ4_1:
      return decode8_q45<false, true>(row, at, out);
    case DType::kQ5_0:
      return decode8_q45<true, false>(row, at, out);
    case DType::kQ5_1:
      return decode8_q45<true, true>(row, at, out);
    case DType::kQ8_0:
      return decode8_q8_0(row, at, out);
    case DType::kQ4_K:
      return decode8_k45<false>(row, at, out);
    case DType::kQ5_K:
      return decode8_k45<true>(row, at, out);
    case DType::kQ6_K:
      return decode8_q6_k(row, at, out);
    default:
      return;
  }
}

}  // namespace tokamak::cuda
