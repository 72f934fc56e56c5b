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
