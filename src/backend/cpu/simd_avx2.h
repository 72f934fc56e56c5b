#pragma once
// Sixteen floats in two AVX registers; see simd_scalar.h for what each function means.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define TK_INLINE static inline __attribute__((always_inline))

namespace {

struct V {
  __m256 r[2];
};

#define TK_EACH for (int i = 0; i < 2; ++i)
TK_INLINE V vload(const float* p) { return {{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}}; }
TK_INLINE void vstore(float* p, V a) { TK_EACH _mm256_storeu_ps(p + 8 * i, a.r[i]); }
TK_INLINE V vset1(float x) {
  __m256 v = _mm256_set1_ps(x);
  return {{v, v}};
}
TK_INLINE V vadd(V a, V b) {
  TK_EACH a.r[i] = _mm256_add_ps(a.r[i], b.r[i]);
  return a;
}
TK_INLINE V vsub(V a, V b) {
  TK_EACH a.r[i] = _mm256_sub_ps(a.r[i], b.r[i]);
  return a;
}
TK_INLINE V vmul(V a, V b) {
  TK_EACH a.r[i] = _mm256_mul_ps(a.r[i], b.r[i]);
  return a;
}
TK_INLINE V vdiv(V a, V b) {
  TK_EACH a.r[i] = _mm256_div_ps(a.r[i], b.r[i]);
  return a;
}
TK_INLINE V vfma(V a, V b, V c) {
  TK_EACH c.r[i] = _mm256_fmadd_ps(a.r[i], b.r[i], c.r[i]);
  return c;
}
TK_INLINE V vmax(V a, V b) {
  TK_EACH a.r[i] = _mm256_max_ps(a.r[i], b.r[i]);
  return a;
}
TK_INLINE V vmin(V a, V b) {
  TK_EACH a.r[i] = _mm256_min_ps(a.r[i], b.r[i]);
  return a;
}
TK_INLINE V vabs(V a) {
  TK_EACH a.r[i] = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.r[i]);
  return a;
}
TK_INLINE V vsqrt(V a) {
  TK_EACH a.r[i] = _mm256_sqrt_ps(a.r[i]);
  return a;
}
TK_INLINE V vselect_lt(V a, V b, V yes, V no) {
  TK_EACH a.r[i] = _mm256_blendv_ps(no.r[i], yes.r[i], _mm256_cmp_ps(a.r[i], b.r[i], _CMP_LT_OQ));
  return a;
}
TK_INLINE V vcopysign(V magnitude, V sign) {
  __m256 mask = _mm256_set1_ps(-0.0f);
  TK_EACH magnitude.r[i] =
      _mm256_or_ps(_mm256_and_ps(mask, sign.r[i]), _mm256_andnot_ps(mask, magnitude.r[i]));
  return magnitude;
}
TK_INLINE V vscale2(V p, V n) {
  __m256i bias = _mm256_set1_epi32(127);
  TK_EACH {
    __m256i e = _mm256_cvtps_epi32(n.r[i]), e1 = _mm256_srai_epi32(e, 1),
            e2 = _mm256_sub_epi32(e, e1);
    __m256 f1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e1, bias), 23));
    __m256 f2 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e2, bias), 23));
    p.r[i] = _mm256_mul_ps(_mm256_mul_ps(p.r[i], f1), f2);
  }
  return p;
}
TK_INLINE V vload_f16(const uint16_t* p) {
  const auto* q = reinterpret_cast<const __m128i*>(p);
  return {{_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))}};
}
TK_INLINE V vload_bf16(const uint16_t* p) {
  const auto* q = reinterpret_cast<const __m128i*>(p);
  V r;
  TK_EACH r.r[i] =
      _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q + i)), 16));
  return r;
}
TK_INLINE V vload_i8(const int8_t* p) {
  V r;
  TK_EACH r.r[i] = _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8 * i))));
  return r;
}
TK_INLINE void vstore_f16(uint16_t* p, V a) {
  auto* q = reinterpret_cast<__m128i*>(p);
  TK_EACH _mm_storeu_si128(q + i,
                           _mm256_cvtps_ph(a.r[i], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
TK_INLINE void vstore_i8(int8_t* p, V a) {
  __m256i w = _mm256_packs_epi32(_mm256_cvtps_epi32(a.r[0]), _mm256_cvtps_epi32(a.r[1]));
  w = _mm256_permute4x64_epi64(w, 0xd8);
  __m128i b = _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), b);
}

// Sum by the tree (i, i + 8), (i, i + 4), (i, i + 2), (i, i + 1); the largest.
TK_INLINE float sum_lanes(V a) {
  __m256 t = _mm256_add_ps(a.r[0], a.r[1]);
  __m128 u = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
  u = _mm_add_ps(u, _mm_movehl_ps(u, u));
  return _mm_cvtss_f32(_mm_add_ss(u, _mm_movehdup_ps(u)));
}
TK_INLINE float max_lanes(V a) {
  __m256 t = _mm256_max_ps(a.r[0], a.r[1]);
  __m128 u = _mm_max_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
  u = _mm_max_ps(u, _mm_movehl_ps(u, u));
  return _mm_cvtss_f32(_mm_max_ss(u, _mm_movehdup_ps(u)));
}

TK_INLINE void vstore_x4(float* to, V a, V b, V c, V d) {
  TK_EACH {
    __m256 low = _mm256_unpacklo_ps(a.r[i], c.r[i]), high = _mm256_unpackhi_ps(a.r[i], c.r[i]);
    __m256 low2 = _mm256_unpacklo_ps(b.r[i], d.r[i]), high2 = _mm256_unpackhi_ps(b.r[i], d.r[i]);
    __m256 rows[4] = {_mm256_unpacklo_ps(low, low2), _mm256_unpackhi_ps(low, low2),
                      _mm256_unpacklo_ps(high, high2), _mm256_unpackhi_ps(high, high2)};
    for (int j = 0; j < 4; ++j) {
      _mm_storeu_ps(to + 32 * i + 4 * j, _mm256_castps256_ps128(rows[j]));
      _mm_storeu_ps(to + 32 * i + 16 + 4 * j, _mm256_extractf128_ps(rows[j], 1));
    }
  }
}
TK_INLINE void vprefetch(const void*) {}  // the core does it itself
constexpr int kRegisterTiles = 1;         // tiles of activations whose sums fit the registers
struct X4 {
  const float* p;
};
TK_INLINE X4 vload_x4(const float* p) { return {p}; }
template <int c>
TK_INLINE V vfma_x4(V w, X4 x, V acc) {
  __m256 b = _mm256_broadcast_ss(x.p + c);
  TK_EACH acc.r[i] = _mm256_fmadd_ps(w.r[i], b, acc.r[i]);
  return acc;
}
#undef TK_EACH

}  // namespace
