#pragma once
// Sixteen floats in one AVX-512 register; see simd_scalar.h for what each function means.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define TK_INLINE static inline __attribute__((always_inline))

namespace {

struct V {
  __m512 r;
};

TK_INLINE V vload(const float* p) { return {_mm512_loadu_ps(p)}; }
TK_INLINE void vstore(float* p, V a) { _mm512_storeu_ps(p, a.r); }
TK_INLINE V vset1(float x) { return {_mm512_set1_ps(x)}; }
TK_INLINE V vadd(V a, V b) { return {_mm512_add_ps(a.r, b.r)}; }
TK_INLINE V vsub(V a, V b) { return {_mm512_sub_ps(a.r, b.r)}; }
TK_INLINE V vmul(V a, V b) { return {_mm512_mul_ps(a.r, b.r)}; }
TK_INLINE V vdiv(V a, V b) { return {_mm512_div_ps(a.r, b.r)}; }
TK_INLINE V vfma(V a, V b, V c) { return {_mm512_fmadd_ps(a.r, b.r, c.r)}; }
TK_INLINE V vmax(V a, V b) { return {_mm512_max_ps(a.r, b.r)}; }
TK_INLINE V vmin(V a, V b) { return {_mm512_min_ps(a.r, b.r)}; }
TK_INLINE V vabs(V a) { return {_mm512_abs_ps(a.r)}; }
TK_INLINE V vsqrt(V a) { return {_mm512_sqrt_ps(a.r)}; }
TK_INLINE V vselect_lt(V a, V b, V yes, V no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.r, b.r, _CMP_LT_OQ), no.r, yes.r)};
}
TK_INLINE V vcopysign(V magnitude, V sign) {
  __m512i mask = _mm512_set1_epi32(INT32_MIN);
  return {_mm512_castsi512_ps(_mm512_ternarylogic_epi32(mask, _mm512_castps_si512(sign.r),
                                                        _mm512_castps_si512(magnitude.r), 0xca))};
}
TK_INLINE V vscale2(V p, V n) { return {_mm512_scalef_ps(p.r, n.r)}; }
TK_INLINE V vload_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
TK_INLINE V vload_bf16(const uint16_t* p) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
TK_INLINE V vload_i8(const int8_t* p) {
  __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(a))};
}
TK_INLINE void vstore_f16(uint16_t* p, V a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a.r, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
TK_INLINE void vstore_i8(int8_t* p, V a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.r)));
}

// Sum by the tree (i, i + 8), (i, i + 4), (i, i + 2), (i, i + 1); the largest.
TK_INLINE float sum_lanes(V a) {
  __m256 t = _mm256_add_ps(_mm512_castps512_ps256(a.r), _mm512_extractf32x8_ps(a.r, 1));
  __m128 u = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
  u = _mm_add_ps(u, _mm_movehl_ps(u, u));
  return _mm_cvtss_f32(_mm_add_ss(u, _mm_movehdup_ps(u)));
}
TK_INLINE float max_lanes(V a) {
  __m256 t = _mm256_max_ps(_mm512_castps512_ps256(a.r), _mm512_extractf32x8_ps(a.r, 1));
  __m128 u = _mm_max_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
  u = _mm_max_ps(u, _mm_movehl_ps(u, u));
  return _mm_cvtss_f32(_mm_max_ss(u, _mm_movehdup_ps(u)));
}

TK_INLINE void vstore_x4(float* to, V a, V b, V c, V d) {
  __m512 low = _mm512_unpacklo_ps(a.r, c.r), high = _mm512_unpackhi_ps(a.r, c.r);
  __m512 low2 = _mm512_unpacklo_ps(b.r, d.r), high2 = _mm512_unpackhi_ps(b.r, d.r);
  __m512 rows[4] = {_mm512_unpacklo_ps(low, low2), _mm512_unpackhi_ps(low, low2),
                    _mm512_unpacklo_ps(high, high2), _mm512_unpackhi_ps(high, high2)};
  for (int j = 0; j < 4; ++j) {
    _mm_storeu_ps(to + 4 * j, _mm512_castps512_ps128(rows[j]));
    _mm_storeu_ps(to + 16 + 4 * j, _mm512_extractf32x4_ps(rows[j], 1));
    _mm_storeu_ps(to + 32 + 4 * j, _mm512_extractf32x4_ps(rows[j], 2));
    _mm_storeu_ps(to + 48 + 4 * j, _mm512_extractf32x4_ps(rows[j], 3));
  }
}

// A single row waits for memory: it prefetches this many bytes ahead, in its panel or the next
// one.
constexpr int kAhead = 2048;
TK_INLINE void vprefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p) + kAhead, _MM_HINT_T0);
}
constexpr int kRegisterTiles = 4;  // tiles of activations whose sums fit the registers
struct X4 {
  const float* p;
};
TK_INLINE X4 vload_x4(const float* p) { return {p}; }
template <int c>
TK_INLINE V vfma_x4(V w, X4 x, V acc) {
  return {_mm512_fmadd_ps(w.r, _mm512_set1_ps(x.p[c]), acc.r)};
}

}  // namespace
