// x86-64 with AVX-512 (F, BW, VL, DQ, VNNI). A vector of weights is 16 rows x 4 values of k,
// unsigned; vpdpbusd multiplies it with four values of an activation row that are broadcast to all
// lanes.
#include "backend/cpu/simd_avx512.h"

#include "backend/cpu/vec_kernels.inc"

#include "backend/cpu/fpanels_avx512.inc"

#include "backend/cpu/qpanel_avx512.inc"

#include "backend/cpu/qdot_avx512.inc"

#include "backend/cpu/qwide_avx512.inc"

namespace {

// Sums of four neighbouring values of a block.
TK_INLINE __m256i sums_of_4(__m256i q) {
  return _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), q);
}

// pack_x4 of vec_kernels.inc.
void pack_tile(const void* const* rows, int n, int64_t blocks, int, XBlock4* out) {
  static const uint8_t absent[tokamak::cpu::kActivationBlock] = {};
  const uint8_t* from[kTile];
  int64_t step[kTile];
  for (int r = 0; r < kTile; ++r) {
    from[r] = r < n ? static_cast<const uint8_t*>(rows[r]) : absent;
    step[r] = r < n ? tokamak::cpu::kActivationBlock : 0;
  }
  for (int64_t b = 0; b < blocks; ++b, ++out) {
    __m256i q[kTile];
    __m128 head[kTile];  // scale, sum
#pragma GCC unroll 4
    for (int r = 0; r < kTile; ++r) {
      head[r] = _mm_castsi128_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from[r])));
      q[r] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from[r] + 8));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out->q + 32 * r), q[r]);
      q[r] = sums_of_4(q[r]);
      from[r] += step[r];
    }
    __m128 first = _mm_unpacklo_ps(head[0], head[1]), second = _mm_unpacklo_ps(head[2], head[3]);
    _mm_storeu_ps(out->scale, _mm_movelh_ps(first, second));
    _mm_storeu_ps(out->sum, _mm_movehl_ps(second, first));
    __m256i halves =
        _mm256_hadd_epi32(_mm256_hadd_epi32(q[0], q[1]), _mm256_hadd_epi32(q[2], q[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out->isum), halves);
  }
}

// narrow_bf16 of vec_kernels.inc.
TK_INLINE __m256i nearest_bf16(__m512i v) {
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(v, 16), _mm512_set1_epi32(1));
  __m512i near = _mm512_add_epi32(_mm512_add_epi32(v, _mm512_set1_epi32(0x7fff)), odd);
  __mmask16 nan = _mm512_cmpgt_epi32_mask(_mm512_and_si512(v, _mm512_set1_epi32(0x7fffffff)),
                                          _mm512_set1_epi32(0x7f800000));
  near = _mm512_mask_or_epi32(near, nan, v, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(near, 16));
}
void narrow_to_bf16(const float* in, void* out, int64_t n) {
  auto* to = static_cast<uint16_t*>(out);
  for (int64_t i = 0; i < n; i += 16) {
    __mmask16 some = n - i < 16 ? static_cast<__mmask16>((1 << (n - i)) - 1) : 0xffff;
    __m512i v = _mm512_maskz_loadu_epi32(some, in + i);
    _mm256_mask_storeu_epi16(to + i, some, nearest_bf16(v));
  }
}

// 2^x for x <= 0, near enough for weights of 8 bits; never below 2^-100.
TK_INLINE __m512 power_of_two(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-100.0f));
  __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 f = _mm512_sub_ps(x, whole), p = _mm512_set1_ps(9.6181291e-3f);
  constexpr float kTerms[] = {5.5504109e-2f, 2.4022651e-1f, 6.9314718e-1f, 1.0f};
#pragma GCC unroll 4
  for (float term : kTerms) p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(term));
  return _mm512_scalef_ps(p, whole);
}

float weigh_bf16(const float* scores, int64_t stride, int64_t count, int64_t steps, uint16_t* to,
                 int64_t apart, float* max, float* sum) {
  auto lanes = [&](int64_t from) {
    int64_t n = count - from;
    return static_cast<__mmask16>(n >= 16 ? 0xffff : n <= 0 ? 0 : (1 << n) - 1);
  };
  __m512 nothing = _mm512_set1_ps(-kInfinity), top = nothing;
  for (int64_t at = 0; at < count; at += kPanel)
    top =
        _mm512_max_ps(top, _mm512_mask_loadu_ps(nothing, lanes(at), scores + at / kPanel * stride));
  float old = *max, now = max_lanes({top});
  now = old > now ? old : now;
  __m512 shift = _mm512_set1_ps(now), total = _mm512_setzero_ps();
  const __m512i half = _mm512_set1_epi32(0x8000), upper = _mm512_set1_epi32(-65536);
  auto weights = [&](int64_t at) {
    __mmask16 some = lanes(at);
    __m512 v = _mm512_maskz_loadu_ps(some, scores + at / kPanel * stride);
    __m512i bits = _mm512_castps_si512(power_of_two(_mm512_sub_ps(v, shift)));
    __m512 e =
        _mm512_castsi512_ps(_mm512_maskz_and_epi32(some, _mm512_add_epi32(bits, half), upper));
    total = _mm512_add_ps(total, e);
    return _mm512_castps_si512(e);
  };
  for (int64_t at = 0; at < steps * 2 * kPanel; at += 2 * kPanel, to += apart) {
    __m512i first = weights(at), second = weights(at + kPanel);
    _mm512_storeu_si512(to, _mm512_or_si512(_mm512_srli_epi32(first, 16), second));
  }
  float factor = old == now ? 1.0f : _mm512_cvtss_f32(power_of_two(_mm512_set1_ps(old - now)));
  *max = now;
  *sum = *sum * factor + sum_lanes({total});
  return factor;
}

template <int F>
void fill_q(tokamak::cpu::KernelTable& t) {
  if constexpr (F < tokamak::cpu::kQFormats) {
    t.qdot1[F] = qdot1<F>;
    t.qdot1x2[F] = qdot1x2<F>;
    t.qdot4[F] = qdot_few<F, XBlock4>;
    t.qdot4x2[F] = qdot_few_x2<F, XBlock4>;
    t.qwiden[F] = qwiden<F, 0>;
    t.qwide[F] = qwide<F>;
    t.wide_rows[F] = 4 * kMostFewRows + 1;
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
    t.wide_panels = kWidePanels;
    fill_vector_kernels<false>(t);
    t.wide_blocks = 8, t.wide_group = 2 * kWidePanels;  // stay in the first cache
    t.chunk_tiles = 64;
    t.float_panels = kMostPanels;
    t.fdot_panels = fdot_many_panels;
    t.pairs = avx512_pairs();
    t.fdot_far[static_cast<int>(FType::kF32)] = fdot_far_panels<LoadF32>;
    t.fdot_far[static_cast<int>(FType::kF16)] = fdot_far_panels<LoadF16>;
    t.fdot_far[static_cast<int>(FType::kBF16)] = fdot_far_panels<LoadBF16>;
    t.narrow[static_cast<int>(FType::kBF16)] = narrow_to_bf16;
    t.weigh_bf16 = weigh_bf16;
    t.few_rows = kMostFewRows;
    t.pack_x4 = pack_tile;
    t.fdot4x2[static_cast<int>(FType::kF32)] = fdot4x2<LoadF32>;
    t.fdot4x2[static_cast<int>(FType::kF16)] = fdot4x2<LoadF16>;
    t.fdot4x2[static_cast<int>(FType::kBF16)] = fdot4x2<LoadBF16>;
    t.fdot4x2[static_cast<int>(FType::kI8)] = fdot4x2<LoadI8>;
    fill_q<0>(t);
    return t;
  }();
  return &table;
}

}  // namespace tokamak::cpu
