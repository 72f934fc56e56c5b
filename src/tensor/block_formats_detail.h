#pragma once
// Internals of the block formats: one decoder and (for some types) one encoder per block, and
// shared loads. Blocks are unaligned little-endian bytes; these sources are compiled without fused
// multiply-add, because bit-equality with the reference needs every product rounded.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tensor/block_formats.h"

namespace tokamak::block {

static_assert(std::endian::native == std::endian::little, "block formats are little endian");

inline uint16_t load_u16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline uint32_t load_u32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store_u16(uint8_t* p, uint16_t v) { std::memcpy(p, &v, sizeof v); }

inline float half_to_float(uint16_t h) {
#ifdef __ARM_FP16_FORMAT_IEEE
  return static_cast<float>(std::bit_cast<__fp16>(h));
#else
  uint32_t sign = uint32_t{h & 0x8000u} << 16, rest = h & 0x7fffu;
  if (rest >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  // A half's exponent and mantissa read as a float are 2^112 too small; the product is exact.
  float magnitude = std::bit_cast<float>(rest << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
#endif
}
inline float load_half(const uint8_t* p) { return half_to_float(load_u16(p)); }

inline float f8e4m3_to_f32(uint8_t b) {
  uint32_t sign = uint32_t{b & 0x80u} << 24, rest = b & 0x7fu;
  uint32_t finite =
      std::bit_cast<uint32_t>(std::bit_cast<float>(rest << 20) * 0x1p120f);  // bias 7 to 127, exact
  return std::bit_cast<float>(sign | (rest == 0x7f ? 0x7fc00000 : finite));
}

// 6-bit scale and minimum j (0..7) out of the 12 bytes of q4_k and q5_k.
inline void unpack_scale_min(const uint8_t* b, int j, int& scale, int& minimum) {
  if (j < 4) {
    scale = b[j] & 63;
    minimum = b[j + 4] & 63;
  } else {
    scale = (b[j + 4] & 15) | (b[j - 4] >> 6 << 4);
    minimum = (b[j + 4] >> 4) | (b[j] >> 6 << 4);
  }
}

inline constexpr float kFp4Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
inline constexpr float kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};

// Half of 2^(e - 127); the two smallest results are subnormal.
inline float half_of_e8m0(uint8_t e) {
  return std::bit_cast<float>(e < 2 ? 0x00200000u << e : uint32_t{e - 1u} << 23);
}

void decode_q4_0(const uint8_t* block, float* out);
void decode_q4_1(const uint8_t* block, float* out);
void decode_q5_0(const uint8_t* block, float* out);
void decode_q5_1(const uint8_t* block, float* out);
void decode_q8_0(const uint8_t* block, float* out);
void decode_q8_1(const uint8_t* block, float* out);
void decode_q8a(const uint8_t* block, float* out);
void decode_int16(const uint8_t* block, float* out);
void decode_mxfp4(const uint8_t* block, float* out);
void decode_nvfp4(const uint8_t* block, float* out);
void decode_q1_0(const uint8_t* block, float* out);
void decode_q2_0(const uint8_t* block, float* out);

void decode_q2_k(const uint8_t* block, float* out);
void decode_q3_k(const uint8_t* block, float* out);
void decode_q4_k(const uint8_t* block, float* out);
void decode_q5_k(const uint8_t* block, float* out);
void decode_q6_k(const uint8_t* block, float* out);
void decode_q8_k(const uint8_t* block, float* out);
void decode_tq1_0(const uint8_t* block, float* out);
void decode_tq2_0(const uint8_t* block, float* out);

void decode_iq2_xxs(const uint8_t* block, float* out);
void decode_iq2_xs(const uint8_t* block, float* out);
void decode_iq2_s(const uint8_t* block, float* out);
void decode_iq3_xxs(const uint8_t* block, float* out);
void decode_iq3_s(const uint8_t* block, float* out);
void decode_iq1_s(const uint8_t* block, float* out);
void decode_iq1_m(const uint8_t* block, float* out);
void decode_iq4_nl(const uint8_t* block, float* out);
void decode_iq4_xs(const uint8_t* block, float* out);

using Decoder = void (*)(const uint8_t* block, float* out);
Decoder group_decoder(DType dtype);  // nullptr: not a group type

void encode_q4_0(const float* x, uint8_t* block);
void encode_q4_1(const float* x, uint8_t* block);
void encode_q5_0(const float* x, uint8_t* block);
void encode_q5_1(const float* x, uint8_t* block);
void encode_q8_0(const float* x, uint8_t* block);
void encode_q8a(const float* x, uint8_t* block);
void encode_int16(const float* x, uint8_t* block);
void encode_mxfp4(const float* x, uint8_t* block);
void encode_q2_k(const float* x, uint8_t* block);
void encode_q3_k(const float* x, uint8_t* block);
void encode_q4_k(const float* x, uint8_t* block);
void encode_q5_k(const float* x, uint8_t* block);
void encode_q6_k(const float* x, uint8_t* block);
void encode_iq4_nl(const float* x, uint8_t* block);
void encode_iq4_xs(const float* x, uint8_t* block);
void encode_tq1_0(const float* x, uint8_t* block);
void encode_tq2_0(const float* x, uint8_t* block);

}  // namespace tokamak::block
