#pragma once
// Sixteen floats in plain C++: the vector of the scalar level. The other levels' headers define the
// same names over their registers. Everything is in an unnamed namespace: each kernel source has
// its own copy, with its own flags.
#include <cstdint>
#include <cstring>

#define TK_INLINE static inline __attribute__((always_inline))

namespace {

struct V {
  float v[16];
};

TK_INLINE float bits_to_float(uint32_t b) {
  float f;
  memcpy(&f, &b, 4);
  return f;
}
TK_INLINE uint32_t float_to_bits(float f) {
  uint32_t b;
  memcpy(&b, &f, 4);
  return b;
}
TK_INLINE float half_to_float(uint16_t h) {
  uint32_t sign = uint32_t{h & 0x8000u} << 16, rest = h & 0x7fffu;
  if (rest >= 0x7c00) return bits_to_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  return bits_to_float(float_to_bits(bits_to_float(rest << 13) * 0x1p112f) | sign);
}
TK_INLINE uint16_t float_to_half(float f) {
  uint32_t b = float_to_bits(f), sign = b >> 16 & 0x8000, rest = b & 0x7fffffff;
  if (rest > 0x7f800000)
    return static_cast<uint16_t>(sign | 0x7e00 | (rest >> 13 & 0x3ff));  // NaN, quiet
  if (rest >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);   // rounds to infinity
  if (rest < 0x38800000) {                                               // subnormal or zero
    float shifted =
        bits_to_float(rest) + 0.5f;  // ulp of 0.5 is 2^-24: the sum rounds to halves' spacing
    return static_cast<uint16_t>(sign | (float_to_bits(shifted) - 0x3f000000));
  }
  uint32_t odd = rest >> 13 & 1;
  return static_cast<uint16_t>(sign | ((rest - 0x38000000 + 0xfff + odd) >> 13));
}

#define TK_EACH for (int i = 0; i < 16; ++i)
TK_INLINE V vload(const float* p) {
  V r;
  memcpy(r.v, p, 64);
  return r;
}
TK_INLINE void vstore(float* p, V a) { memcpy(p, a.v, 64); }
TK_INLINE V vset1(float x) {
  V r;
  TK_EACH r.v[i] = x;
  return r;
}
TK_INLINE V vadd(V a, V b) {
  TK_EACH a.v[i] += b.v[i];
  return a;
}
TK_INLINE V vsub(V a, V b) {
  TK_EACH a.v[i] -= b.v[i];
  return a;
}
TK_INLINE V vmul(V a, V b) {
  TK_EACH a.v[i] *= b.v[i];
  return a;
}
TK_INLINE V vdiv(V a, V b) {
  TK_EACH a.v[i] /= b.v[i];
  return a;
}
TK_INLINE V vfma(V a, V b, V c) {
  TK_EACH c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
  return c;
}
// A NaN in b is kept.
TK_INLINE V vmax(V a, V b) {
  TK_EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
TK_INLINE V vmin(V a, V b) {
  TK_EACH a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return a;
}
TK_INLINE V vabs(V a) {
  TK_EACH a.v[i] = __builtin_fabsf(a.v[i]);
  return a;
}
TK_INLINE V vsqrt(V a) {
  TK_EACH a.v[i] = __builtin_sqrtf(a.v[i]);
  return a;
}
TK_INLINE V vselect_lt(V a, V b, V yes, V no) {
  TK_EACH a.v[i] = a.v[i] < b.v[i] ? yes.v[i] : no.v[i];
  return a;
}
TK_INLINE V vcopysign(V magnitude, V sign) {
  TK_EACH magnitude.v[i] = __builtin_copysignf(magnitude.v[i], sign.v[i]);
  return magnitude;
}
// p * 2^n for whole n in [-160, 129]: in two steps, so that results may be subnormal or infinite.
TK_INLINE V vscale2(V p, V n) {
  for (int i = 0; i < 16; ++i) {
    int32_t e = n.v[i] == n.v[i] ? static_cast<int32_t>(n.v[i]) : 0, e1 = e >> 1, e2 = e - e1;
    p.v[i] = p.v[i] * bits_to_float(static_cast<uint32_t>(e1 + 127) << 23) *
             bits_to_float(static_cast<uint32_t>(e2 + 127) << 23);
  }
  return p;
}
TK_INLINE V vload_f16(const uint16_t* p) {
  V r;
  TK_EACH r.v[i] = half_to_float(p[i]);
  return r;
}
TK_INLINE V vload_bf16(const uint16_t* p) {
  V r;
  TK_EACH r.v[i] = bits_to_float(static_cast<uint32_t>(p[i]) << 16);
  return r;
}
TK_INLINE V vload_i8(const int8_t* p) {
  V r;
  TK_EACH r.v[i] = p[i];
  return r;
}
TK_INLINE void vstore_f16(uint16_t* p, V a) { TK_EACH p[i] = float_to_half(a.v[i]); }
// Whole numbers in [-127, 127].
TK_INLINE void vstore_i8(int8_t* p, V a) {
  TK_EACH p[i] = static_cast<int8_t>(a.v[i] == a.v[i] ? static_cast<int32_t>(a.v[i]) : 0);
}

// Sum by the tree (i, i + 8), (i, i + 4), (i, i + 2), (i, i + 1); the largest.
TK_INLINE float sum_lanes(V a) {
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) a.v[i] += a.v[i + width];
  return a.v[0];
}
TK_INLINE float max_lanes(V a) {
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) a.v[i] = a.v[i] > a.v[i + width] ? a.v[i] : a.v[i + width];
  return a.v[0];
}

// Four rows as columns: to[4 j + i] is lane j of row i.
TK_INLINE void vstore_x4(float* to, V a, V b, V c, V d) {
  for (int i = 0; i < 16; ++i, to += 4)
    to[0] = a.v[i], to[1] = b.v[i], to[2] = c.v[i], to[3] = d.v[i];
}
// Four multipliers of one k, and acc += w * x[c].
TK_INLINE void vprefetch(const void*) {}  // the core does it itself
constexpr int kRegisterTiles = 1;         // tiles of activations whose sums fit the registers
struct X4 {
  float v[4];
};
TK_INLINE X4 vload_x4(const float* p) { return {{p[0], p[1], p[2], p[3]}}; }
template <int c>
TK_INLINE V vfma_x4(V w, X4 x, V acc) {
  return vfma(w, vset1(x.v[c]), acc);
}
#undef TK_EACH

}  // namespace
