#pragma once
// Element types in kernels: every op computes in f32 and rounds once, when it stores.
#include "backend/cuda/ops/simt.cuh"
#include "tensor/dtype.h"
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#else
#include "tensor/block_formats.h"
#endif

namespace tokamak::cuda {

#ifdef __CUDACC__
TK_DEVICE float half_value(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
TK_DEVICE uint16_t half_bits(float x) { return __half_as_ushort(__float2half_rn(x)); }
TK_DEVICE uint16_t brain_bits(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
TK_DEVICE float brain_value(uint16_t bits) { return __uint_as_float(uint32_t{bits} << 16); }
// Two values in a word, the first in its lower half.
TK_DEVICE uint32_t half_pair(float x, float y) {
  __half2 v = __floats2half2_rn(x, y);
  return *reinterpret_cast<uint32_t*>(&v);
}
TK_DEVICE uint32_t brain_pair(float x, float y) {
  __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<uint32_t*>(&v);
}
TK_DEVICE uint32_t float_bits(float x) { return __float_as_uint(x); }
TK_DEVICE float bits_float(uint32_t bits) { return __uint_as_float(bits); }
#else
inline float half_value(uint16_t bits) { return f16_to_f32(bits); }
inline uint16_t half_bits(float x) { return f32_to_f16(x); }
inline uint16_t brain_bits(float x) { return f32_to_bf16(x); }
inline float brain_value(uint16_t bits) { return bf16_to_f32(bits); }
inline uint32_t half_pair(float x, float y) {
  return f32_to_f16(x) | uint32_t{f32_to_f16(y)} << 16;
}
inline uint32_t brain_pair(float x, float y) {
  return f32_to_bf16(x) | uint32_t{f32_to_bf16(y)} << 16;
}
inline uint32_t float_bits(float x) { return std::bit_cast<uint32_t>(x); }
inline float bits_float(uint32_t bits) { return std::bit_cast<float>(bits); }
#endif

struct alignas(16) Vec4 {
  float x, y, z, w;
};
struct alignas(16) Words4 {
  uint32_t x, y, z, w;
};
struct alignas(8) Words2 {
  uint32_t x, y;
};

// One value of a plain type.
TK_DEVICE float load(const void* p, DType type, int64_t i) {
  if (type == DType::kF32) return static_cast<const float*>(p)[i];
  if (type == DType::kI32) return static_cast<float>(static_cast<const int32_t*>(p)[i]);
  uint16_t bits = static_cast<const uint16_t*>(p)[i];
  return type == DType::kF16 ? half_value(bits) : brain_value(bits);
}
TK_DEVICE void store(void* p, DType type, int64_t i, float x) {
  if (type == DType::kF32)
    static_cast<float*>(p)[i] = x;
  else
    static_cast<uint16_t*>(p)[i] = type == DType::kF16 ? half_bits(x) : brain_bits(x);
}

// A value computed in f64, rounded once: rounding to f32 on the way keeps a sticky bit.
TK_DEVICE void store_wide(void* p, DType type, int64_t i, double x) {
  auto y = static_cast<float>(x);
  if (type != DType::kF32 && y == y && static_cast<double>(y) != x) {
    uint32_t bits = float_bits(y);
    bool beyond = fabs(static_cast<double>(y)) > fabs(x);
    if (beyond) bits -= 1;  // towards zero
    y = bits_float(bits | 1);
  }
  store(p, type, i, y);
}

TK_DEVICE uint32_t pack_brain(float low, float high) {
  return brain_bits(low) | uint32_t{brain_bits(high)} << 16;
}
TK_DEVICE void unpack_half(const Words4& v, float (&out)[8]) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = half_value(static_cast<uint16_t>(words[i]));
    out[2 * i + 1] = half_value(static_cast<uint16_t>(words[i] >> 16));
  }
}
TK_DEVICE void unpack_brain(const Words4& v, float (&out)[8]) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = brain_value(static_cast<uint16_t>(words[i]));
    out[2 * i + 1] = brain_value(static_cast<uint16_t>(words[i] >> 16));
  }
}
TK_DEVICE void unpack_bytes(const Words2& v, float (&out)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[i] = static_cast<float>(static_cast<int8_t>(v.x >> 8 * i));
    out[4 + i] = static_cast<float>(static_cast<int8_t>(v.y >> 8 * i));
  }
}
// Eight values of a plain type from an aligned place.
TK_DEVICE void load8(const void* p, DType type, int64_t i, float (&out)[8]) {
  if (type == DType::kF32) {
    const auto* v = reinterpret_cast<const Vec4*>(static_cast<const float*>(p) + i);
    Vec4 a = v[0], b = v[1];
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
    out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
    return;
  }
  Words4 v = *reinterpret_cast<const Words4*>(static_cast<const uint16_t*>(p) + i);
  if (type == DType::kF16)
    unpack_half(v, out);
  else
    unpack_brain(v, out);
}

}  // namespace tokamak::cuda
