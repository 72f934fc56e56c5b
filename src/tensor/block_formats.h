#pragma once
// Block-quantised formats: byte layouts of GGUF, and conversion of whole rows to and from float.
// Decoding is bit-equal to the reference decoders of the format's authors (float32 arithmetic).
#include <cstdint>

#include "tensor/dtype.h"

namespace tokamak {

// Activations quantised to int8 by the `quantize` op: x ~ scale * q. `sum` = scale * (sum of q),
// which weight formats with a minimum (q4_1, q4_k) need. scale = max|x| / 127, q = round to nearest
// even of x / scale.
struct BlockQ8A {
  float scale;
  float sum;
  int8_t q[32];
};
static_assert(sizeof(BlockQ8A) == 40);

// x ~ scale * q. The length of the vector q is at most kInt16Length, so that the dot product of two
// blocks fits 32 bits; where that allows it, the largest value becomes 32767.
struct BlockInt16 {
  float scale;
  int16_t q[128];
};
static_assert(sizeof(BlockInt16) == 260);
inline constexpr float kInt16Length = 46000.0f;  // rounding adds at most 6; 46340^2 < 2^31

float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);  // round to nearest even
float bf16_to_f32(uint16_t bits);
uint16_t f32_to_bf16(float value);  // round to nearest even, NaN stays NaN

// The nearest f16 or bf16 number (ties to even), rounded once: rounding to f32 first can give a
// neighbour of it. Other types: the nearest f32.
float round_to_dtype(DType dtype, double value);

// n elements of one row, n a multiple of the block. Any plain or block type.
void decode_row(DType dtype, const void* source, float* out, int64_t n);

// f32, f16, bf16, f64, q4_0 to q8_0, q2_k to q6_k, iq4_nl, iq4_xs, tq1_0, tq2_0, mxfp4,
// int16_g128 and q8a; others throw Error(kUnsupported).
void encode_row(DType dtype, const float* source, void* out, int64_t n);
bool can_encode(DType dtype);

}  // namespace tokamak
