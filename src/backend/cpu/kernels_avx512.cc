// x86-64 with AVX-512 (F, BW, VL, DQ, VNNI). A vector of weights is 16 rows x 4 values of k,
// unsigned; vpdpbusd multiplies it with four values of an activation row that are broadcast to all
// lanes.
#include "backend/cpu/simd_avx512.h"

#include "backend/cpu/vec_kernels.inc"

#include "backend/cpu/qpanel_x86.h"

namespace {

// q8_0 is packed with its sign bit flipped: unsigned with offset 128.
template <int F>
constexpr int kOffset = F == kFQ8_0 ? 128 : Panel<F>::offset;

// Vector i (0..3) of the low bits: the values of k < 16 (lo) and of k >= 16 (hi).
template <int F>
TK_INLINE void load_values(const uint8_t* low, int i, __m512i& lo, __m512i& hi) {
  __m512i v = _mm512_loadu_si512(low + 64 * i), nibble = _mm512_set1_epi8(15);
  if (F == kFQ8_0) {
    lo = v;
    hi = _mm512_loadu_si512(low + 64 * (i + 4));
    return;
  }
  lo = _mm512_and_si512(v, nibble);
  hi = _mm512_and_si512(_mm512_srli_epi16(v, 4), nibble);
  if (Panel<F>::high == 64) {
    __m512i h = _mm512_loadu_si512(low + 256), bit = _mm512_set1_epi8(16);
    h = _mm512_srl_epi16(h, _mm_cvtsi32_si128(i * 2));
    lo = _mm512_or_si512(lo, _mm512_and_si512(_mm512_slli_epi16(h, 4), bit));
    hi = _mm512_or_si512(hi, _mm512_and_si512(_mm512_slli_epi16(h, 3), bit));
  }
  if (Panel<F>::high == 128) {
    __m512i h = _mm512_loadu_si512(low + 256 + i / 2 * 64), bits = _mm512_set1_epi8(48);
    h = _mm512_srl_epi16(h, _mm_cvtsi32_si128(i % 2 * 4));
    lo = _mm512_or_si512(lo, _mm512_and_si512(_mm512_slli_epi16(h, 4), bits));
    hi = _mm512_or_si512(hi, _mm512_and_si512(_mm512_slli_epi16(h, 2), bits));
  }
}

TK_INLINE __m512i broadcast4(const int8_t* q) {
  int32_t v;
  memcpy(&v, q, 4);
  return _mm512_set1_epi32(v);
}
TK_INLINE __m512i dot_half(__m512i start, const __m512i* w, const int8_t* q) {
  for (int g = 0; g < 4; ++g) start = _mm512_dpbusd_epi32(start, w[g], broadcast4(q + 4 * g));
  return start;
}

struct Scales {
  __m512 d, m;
  __m512i s0, s1;
};
template <int F>
TK_INLINE Scales load_scales(const uint8_t* super, const uint8_t* block) {
  Scales s;
  s.d = vload_f16(reinterpret_cast<const uint16_t*>(super)).r;
  s.m = Panel<F>::minimum ? vload_f16(reinterpret_cast<const uint16_t*>(super + 32)).r : s.d;
  s.s0 = s.s1 = _mm512_setzero_si512();
  if (Panel<F>::k_quant) {
    __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block));
    __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 16));
    if (F == kFQ6_K) {
      s.s0 = _mm512_cvtepi8_epi32(first);
      s.s1 = _mm512_cvtepi8_epi32(second);
    } else {
      s.d = _mm512_mul_ps(s.d, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(first)));
      s.m = _mm512_mul_ps(s.m, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(second)));
      s.m = _mm512_xor_ps(_mm512_set1_ps(-0.0f), s.m);
    }
  }
  return s;
}

// columns: activation rows that are taken; tile: that X holds.
template <int F, int columns, int tile, class X>
TK_INLINE void qdot(const uint8_t* panel, const X* x, int64_t blocks, float* out) {
  using P = Panel<F>;
  __m512 acc[columns];
  for (int c = 0; c < columns; ++c) acc[c] = _mm512_setzero_ps();
  for (int64_t b = 0; b < blocks; b += P::blocks, panel += P::bytes) {
    for (int sub = 0; sub < P::blocks; ++sub, ++x) {
      const uint8_t* block = panel + P::head + sub * P::block_bytes;
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
    fill_vector_kernels<false>(t);
    fill_q<0>(t);
    return t;
  }();
  return &table;
}

}  // namespace tokamak::cpu
