// Products of int16 numbers: vpdpwssd adds two products of 16 bits to each of 16 sums of 32 bits,
// twice the multiply-adds of an f32 instruction. Three panels by eight rows, as for floats
// (fpanels_avx512.inc). BlockInt16 says why the sums of a block cannot overflow.
//
// A source of its own because of a compiler flag: with -ftree-coalesce-vars gcc 12 holds every sum
// twice, and most of them in memory, which more than halves the speed.
#include "backend/cpu/simd_avx512.h"

#include "backend/cpu/kernel_table.h"

namespace {

using tokamak::cpu::kPairBlock;
using tokamak::cpu::kPairPanelBlock;
using tokamak::cpu::kPanel;
using tokamak::cpu::kTile;
using tokamak::cpu::PairProduct;
using tokamak::cpu::XPairs4;

constexpr int kMostPanels = 3;

// Two values of a row with the weights of each panel. The compiler would load the values of all
// rows first and run out of registers: the instructions stay together and in order.
template <int panels, int rows>
TK_INLINE void add_pairs(__m512i* sums, const __m512i* w, const int16_t* pair) {
  const auto& x = *reinterpret_cast<const int16_t(*)[2]>(pair);
  __m512i all, a = sums[0];
  if constexpr (panels == 1) {
    asm volatile("vpbroadcastd %3, %1\n\tvpdpwssd %1, %2, %0"
                 : "+v"(a), "=&v"(all)
                 : "v"(w[0]), "m"(x));
  } else if constexpr (panels == 2) {
    __m512i b = sums[rows];
    asm volatile("vpbroadcastd %5, %2\n\tvpdpwssd %2, %3, %0\n\tvpdpwssd %2, %4, %1"
                 : "+v"(a), "+v"(b), "=&v"(all)
                 : "v"(w[0]), "v"(w[1]), "m"(x));
    sums[rows] = b;
  } else {
    __m512i b = sums[rows], c = sums[2 * rows];
    asm volatile(
        "vpbroadcastd %7, %3\n\tvpdpwssd %3, %4, %0\n\tvpdpwssd %3, %5, %1\n\t"
        "vpdpwssd %3, %6, %2"
        : "+v"(a), "+v"(b), "+v"(c), "=&v"(all)
        : "v"(w[0]), "v"(w[1]), "v"(w[2]), "m"(x));
    sums[rows] = b;
    sums[2 * rows] = c;
  }
  sums[0] = a;
}

// The exact sums of one block, times both scales, added to the results.
template <int panels, int rows, bool first>
TK_INLINE void pairs_block(const PairProduct& p, const uint8_t* w, const XPairs4* x, int64_t panel,
                           float* out) {
  __m512i a[panels * rows], zero = _mm512_setzero_si512();
  asm("" : "+v"(zero));  // else gcc 12 fills the array in memory, and it stays there
#pragma GCC unroll 32
  for (int i = 0; i < panels * rows; ++i) a[i] = zero;
  const uint8_t* at = w + kPanel * sizeof(float);
  for (int i = 0; i < kPairBlock / 2; ++i, at += 64) {
    __m512i v[panels];
#pragma GCC unroll 4
    for (int j = 0; j < panels; ++j) v[j] = _mm512_loadu_si512(at + j * p.panel_bytes);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r)
      add_pairs<panels, rows>(a + r, v, x[r / kTile * p.x_tile].q[i][r % kTile]);
  }
  __m512 scale[panels], start[panels];
  __mmask16 mask[panels];
#pragma GCC unroll 4
  for (int j = 0; j < panels; ++j) {
    int64_t column = (panel + j) * kPanel, rest = p.columns - column;
    scale[j] = _mm512_loadu_ps(w + j * p.panel_bytes);
    mask[j] = static_cast<__mmask16>(rest >= kPanel ? 0xffff : (1 << rest) - 1);
    start[j] =
        first && p.bias ? _mm512_maskz_loadu_ps(mask[j], p.bias + column) : _mm512_setzero_ps();
  }
#pragma GCC unroll 32
  for (int i = 0; i < panels * rows; ++i) {
    int j = i / rows, r = i % rows;
    float* to = out + r * p.stride + (panel + j) * kPanel;
    __m512 old = first ? start[j] : _mm512_maskz_loadu_ps(mask[j], to);
    __m512 sum = _mm512_mul_ps(_mm512_cvtepi32_ps(a[i]), scale[j]);
    __m512 factor = _mm512_set1_ps(x[r / kTile * p.x_tile].scale[r % kTile]);
    _mm512_mask_storeu_ps(to, mask[j], _mm512_fmadd_ps(sum, factor, old));
  }
}

template <int panels>
TK_INLINE void pairs_rows(const PairProduct& p, int64_t panel) {
  const uint8_t* w = p.panels + panel * p.panel_bytes;
  int64_t r = 0;
  auto run = [&]<int n>() {
    const XPairs4* x = p.x + r / kTile * p.x_tile;
    float* out = p.out + r * p.stride;
    if (p.is_new) pairs_block<panels, n, true>(p, w, x, panel, out);
    for (int64_t b = p.is_new ? 1 : 0; b < p.blocks; ++b)
      pairs_block<panels, n, false>(p, w + b * kPairPanelBlock, x + b, panel, out);
    r += n;
  };
  while (p.rows - r >= 2 * kTile) run.template operator()<2 * kTile>();
  if (p.rows - r >= kTile) run.template operator()<kTile>();
  if (p.rows - r == 3) return run.template operator()<3>();
  if (p.rows - r == 2) return run.template operator()<2>();
  if (p.rows - r == 1) return run.template operator()<1>();
}

void multiply_pairs(const PairProduct& p) {
  int64_t i = 0;
  for (; p.count - i >= kMostPanels; i += kMostPanels) pairs_rows<kMostPanels>(p, i);
  if (p.count - i == 2) return pairs_rows<2>(p, i);
  if (p.count - i == 1) return pairs_rows<1>(p, i);
}

// One block of a row as BlockInt16 has it, 32 numbers in a vector. What is not finite makes the
// scale NaN; numbers below 1e-37 become zero.
TK_INLINE float round_pairs(const float* x, __m512i (&q)[4]) {
  constexpr int kVectors = kPairBlock / 16;
  __m512 v[kVectors];
  V peaks = vset1(0.0f), squares = vset1(0.0f);
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) {
    v[i] = _mm512_loadu_ps(x + 16 * i);
    peaks = vmax(peaks, vabs({v[i]}));
  }
  float peak = max_lanes(peaks), inverse = peak > 1e-37f ? 1.0f / peak : 0.0f;
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) {
    V part = vmul({v[i]}, vset1(inverse));
    squares = vfma(part, part, squares);
  }
  float square = sum_lanes(squares), length = __builtin_sqrtf(square) * (1.0f / 46000.0f);
  if (length < 1.0f / 32767.0f) length = 1.0f / 32767.0f;
  __m512 factor = _mm512_set1_ps(inverse / length);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(v[2 * i], factor));
    __m512i high = _mm512_cvtps_epi32(_mm512_mul_ps(v[2 * i + 1], factor));
    q[i] = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtsepi32_epi16(low)),
                              _mm512_cvtsepi32_epi16(high), 1);
  }
  return inverse > 0 || square != 0 ? peak * length + 0.0f * square : 0.0f;
}

void pack_pairs(const float* x, int64_t stride, int64_t n, int64_t k, XPairs4* out) {
  for (int64_t at = 0; at < k; at += kPairBlock, ++out) {
    __m512i q[kTile][4] = {};
    for (int64_t r = 0; r < kTile; ++r)
      out->scale[r] = r < n ? round_pairs(x + r * stride + at, q[r]) : 0.0f;
    for (int i = 0; i < 4; ++i)
      vstore_x4(reinterpret_cast<float*>(out->q[16 * i]), {_mm512_castsi512_ps(q[0][i])},
                {_mm512_castsi512_ps(q[1][i])}, {_mm512_castsi512_ps(q[2][i])},
                {_mm512_castsi512_ps(q[3][i])});
  }
}

}  // namespace

namespace tokamak::cpu {

KernelTable::PairUnit avx512_pairs() { return {pack_pairs, multiply_pairs}; }

}  // namespace tokamak::cpu
