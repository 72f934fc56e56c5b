// x86-64 with AVX-512 (F, BW, VL, DQ, VNNI). A vector of weights is 16 rows x 4 values of k,
// unsigned; vpdpbusd multiplies it with four values of an activation row that are broadcast to all
// lanes.
#include "backend/cpu/simd_avx512.h"

#include "backend/cpu/vec_kernels.inc"

#include "backend/cpu/qpanel_avx512.inc"

#include "backend/cpu/qwide_avx512.inc"

namespace {

TK_INLINE __m512i dot_half(__m512i start, const __m512i* w, const int8_t* q) {
  for (int g = 0; g < 4; ++g) start = _mm512_dpbusd_epi32(start, w[g], broadcast4(q + 4 * g));
  return start;
}

// A row alone waits for memory: asks for what comes kAhead bytes after its block, in this panel or
// the next.
template <int bytes>
TK_INLINE void prefetch(const uint8_t* block) {
  if constexpr (kAhead > 0)
#pragma GCC unroll 16
    for (int i = 0; i < bytes; i += 64)
      _mm_prefetch(reinterpret_cast<const char*>(block) + kAhead + i, _MM_HINT_T0);
}

// columns: activation rows that are multiplied; tile: activation rows that X holds.
template <int F, int columns, int tile, class X>
TK_INLINE void qdot(const uint8_t* panel, const X* x, int64_t blocks, float* out) {
  using P = Panel<F>;
  __m512 acc[columns];
  for (int c = 0; c < columns; ++c) acc[c] = _mm512_setzero_ps();
  for (int64_t b = 0; b < blocks; b += P::blocks, panel += P::bytes) {
    for (int sub = 0; sub < P::blocks; ++sub, ++x) {
      const uint8_t* block = panel + P::head + sub * P::block_bytes;
      if (columns == 1) prefetch<P::block_bytes>(block);
      Scales s = load_scales<F>(panel, block);
      const float *scale = reinterpret_cast<const float*>(x), *sum = scale + tile;
      const auto* isum = reinterpret_cast<const int32_t*>(sum + tile);
      __m512i lo[4], hi[4];
#pragma GCC unroll 4
      for (int g = 0; g < 4; ++g) load_values<F>(block + P::scales, g, lo[g], hi[g]);
#pragma GCC unroll 4
      for (int c = 0; c < columns; ++c) {
        __m512i a = _mm512_set1_epi32(-kOffset<F> * isum[c]),
                h = _mm512_set1_epi32(-kOffset<F> * isum[tile + c]);
        a = dot_half(a, lo, x->q + c * 32);
        h = dot_half(h, hi, x->q + c * 32 + 16);
        __m512i dot =
            P::halves ? _mm512_add_epi32(_mm512_mullo_epi32(a, s.s0), _mm512_mullo_epi32(h, s.s1))
                      : _mm512_add_epi32(a, h);
        acc[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot),
                                 _mm512_mul_ps(s.d, _mm512_set1_ps(scale[c])), acc[c]);
        if (P::minimum) acc[c] = _mm512_fmadd_ps(s.m, _mm512_set1_ps(sum[c]), acc[c]);
      }
    }
  }
  for (int c = 0; c < columns; ++c) _mm512_storeu_ps(out + c * kPanel, acc[c]);
}

template <int F>
void qdot1(const uint8_t* panel, const XBlock1* x, int64_t blocks, float* out) {
  qdot<F, 1, 1>(panel, x, blocks, out);
}
template <int F>
void qdot4(const uint8_t* panel, const XBlock4* x, int64_t blocks, int rows, float* out) {
  if (rows == 2) return qdot<F, 2, 4>(panel, x, blocks, out);
  if (rows == 3) return qdot<F, 3, 4>(panel, x, blocks, out);
  qdot<F, 4, 4>(panel, x, blocks, out);
}

template <int F>
void fill_q(tokamak::cpu::KernelTable& t) {
  if constexpr (F < tokamak::cpu::kQFormats) {
    t.qdot1[F] = qdot1<F>;
    t.qdot4[F] = qdot4<F>;
    t.qwiden[F] = qwiden<F, 0>;
    t.qwide[F] = qwide<F>;
    t.wide_rows[F] = 5;
    fill_q<F + 1>(t);
  }
}

}  // namespace

namespace tokamak::cpu {

const KernelTable* avx512_table() {
  static const KernelTable table = [] {
    KernelTable t{};
    t.name = "avx512";
    t.style = {4, 64, 0x80, 0, false};
    t.wide_panels = 2;
    fill_vector_kernels<false>(t);
    fill_q<0>(t);
    return t;
  }();
  return &table;
}

}  // namespace tokamak::cpu
