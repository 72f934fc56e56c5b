// Products of int16 numbers: vpdpwssd adds two products of 16 bits to each of 16 sums of 32 bits,
// twice the multiply-adds of an f32 instruction. Three panels by eight rows, as for floats
// (fpanels_avx512.inc). BlockInt16 says why the sums of a block cannot overflow.
//
// A source of its own because of a compiler flag: with -ftree-coalesce-vars gcc 12 holds every sum
// twice, and most of them in memory, which more than halves the speed.
#include "backend/cpu/simd_avx512.h"

#include "backend/cpu/kernel_table.h"
#include "tensor/block_formats.h"

namespace {

using tokamak::kInt16Length;
using tokamak::cpu::kPairBlock;
using tokamak::cpu::kPairPanelBlock;
using tokamak::cpu::kPanel;
using tokamak::cpu::kTile;
using tokamak::cpu::PairProduct;
using tokamak::cpu::XPairs4;

constexpr int kMostPanels = 3;

// Two values of a row with the weights of each panel. The compiler would load the values of all
// rows first and run out of registers: the instructions stay together and in order.
//
// Other work on the core shares its decoders and its load ports. A broadcast of its own costs an
// instruction, one inside of each product a load: some rows take one form, some the other
// (`inside`).
template <int panels, int rows, bool inside>
TK_INLINE void add_pairs(__m512i* sums, const __m512i* w, const int16_t* pair) {
  const auto& x = *reinterpret_cast<const int16_t(*)[2]>(pair);
  __m512i a = sums[0];
  if constexpr (panels == 1) {
    asm volatile("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(a) : "v"(w[0]), "m"(x));
  } else if constexpr (panels == 2) {
    __m512i b = sums[rows], all;
    asm volatile("vpbroadcastd %5, %2\n\tvpdpwssd %2, %3, %0\n\tvpdpwssd %2, %4, %1"
                 : "+v"(a), "+v"(b), "=&v"(all)
                 : "v"(w[0]), "v"(w[1]), "m"(x));
    sums[rows] = b;
  } else {
    __m512i b = sums[rows], c = sums[2 * rows], all;
    if constexpr (inside)
      asm volatile(
          "vpdpwssd %6%{1to16%}, %3, %0\n\tvpdpwssd %6%{1to16%}, %4, %1\n\t"
          "vpdpwssd %6%{1to16%}, %5, %2"
          : "+v"(a), "+v"(b), "+v"(c)
          : "v"(w[0]), "v"(w[1]), "v"(w[2]), "m"(x));
    else
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

// The exact sums of one block, times both scales, added to the results. `whole`: all columns of
// the panels exist.
template <int panels, int rows, bool first, bool whole>
TK_INLINE void pairs_block(const PairProduct& p, const uint8_t* w, const XPairs4* x, int64_t panel,
                           float* out) {
  __m512i a[panels * rows], zero = _mm512_setzero_si512();
  asm("" : "+v"(zero));  // else gcc 12 fills the array in memory, and it stays there
#pragma GCC unroll 32
  for (int i = 0; i < panels * rows; ++i) a[i] = zero;
  out += panel * kPanel;
  if constexpr (first) {  // in the cache by the time they are written
#pragma GCC unroll 32
    for (int i = 0; i < panels * rows; ++i)
      __builtin_prefetch(out + i % rows * p.stride + i / rows * kPanel, 1);
  }
  const uint8_t* at = w + kPanel * sizeof(float);
  const XPairs4* other = x + p.x_tile;  // rows from kTile on
#pragma GCC unroll 2
  for (int i = 0; i < kPairBlock / 2; ++i, at += 64) {
    __m512i v[panels];
#pragma GCC unroll 4
    for (int j = 0; j < panels; ++j) v[j] = _mm512_loadu_si512(at + j * p.panel_bytes);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      const int16_t* pair = (r < kTile ? x : other)->q[i][r % kTile];
      if (r % 2 == 1)
        add_pairs<panels, rows, true>(a + r, v, pair);
      else
        add_pairs<panels, rows, false>(a + r, v, pair);
    }
  }
  __m512 scale[panels], start[panels];
  __mmask16 mask[panels];
#pragma GCC unroll 4
  for (int j = 0; j < panels; ++j) {
    int64_t column = (panel + j) * kPanel, rest = p.columns - column;
    scale[j] = _mm512_loadu_ps(w + j * p.panel_bytes);
    mask[j] = static_cast<__mmask16>(whole || rest >= kPanel ? 0xffff : (1 << rest) - 1);
    start[j] =
        first && p.bias ? _mm512_maskz_loadu_ps(mask[j], p.bias + column) : _mm512_setzero_ps();
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r, out += p.stride) {
#pragma GCC unroll 4
    for (int j = 0; j < panels; ++j) {
      float* to = out + j * kPanel;
      __m512 old = first   ? start[j]
                   : whole ? _mm512_loadu_ps(to)
                           : _mm512_maskz_loadu_ps(mask[j], to);
      __m512 sum = _mm512_mul_ps(_mm512_cvtepi32_ps(a[j * rows + r]), scale[j]);
      __m512 factor = _mm512_set1_ps((r < kTile ? x : other)->scale[r % kTile]);
      sum = _mm512_fmadd_ps(sum, factor, old);
      if constexpr (whole)
        _mm512_storeu_ps(to, sum);
      else
        _mm512_mask_storeu_ps(to, mask[j], sum);
    }
  }
}

template <int panels, bool whole>
TK_INLINE void pairs_rows(const PairProduct& p, int64_t panel) {
  const uint8_t* w = p.panels + panel * p.panel_bytes;
  int64_t r = 0;
  auto run = [&]<int n>() {
    const XPairs4* x = p.x + r / kTile * p.x_tile;
    float* out = p.out + r * p.stride;
    if (p.is_new) pairs_block<panels, n, true, whole>(p, w, x, panel, out);
    for (int64_t b = p.is_new ? 1 : 0; b < p.blocks; ++b)
      pairs_block<panels, n, false, whole>(p, w + b * kPairPanelBlock, x + b, panel, out);
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
  for (; p.columns - i * kPanel >= kMostPanels * kPanel; i += kMostPanels)
    pairs_rows<kMostPanels, true>(p, i);
  if (p.count - i == 3) return pairs_rows<3, false>(p, i);
  if (p.count - i == 2) return pairs_rows<2, false>(p, i);
  if (p.count - i == 1) return pairs_rows<1, false>(p, i);
}

// The largest magnitude and the sum of squares of a block of a row.
TK_INLINE void measure_row(const float* x, float* peak, float* square) {
  V peaks[2] = {vset1(0.0f), vset1(0.0f)}, squares[2] = {vset1(0.0f), vset1(0.0f)};
#pragma GCC unroll 8
  for (int i = 0; i < kPairBlock / 16; ++i) {
    V v = vload(x + 16 * i);
    peaks[i % 2] = vmax(peaks[i % 2], vabs(v));
    squares[i % 2] = vfma(v, v, squares[i % 2]);
  }
  *peak = max_lanes(vmax(peaks[0], peaks[1]));
  *square = sum_lanes(vadd(squares[0], squares[1]));
}

// Blocks in the form of BlockInt16. Rows with numbers that are not finite, or above 1e18, get NaN
// as their scale.
void pack_pairs(const float* x, int64_t stride, int64_t n, int64_t k, XPairs4* out) {
  for (int64_t at = 0; at < k; at += kPairBlock, ++out) {
    const float* row[kTile];
    float peak[kTile], square[kTile], inverse[kTile];
#pragma GCC unroll 4
    for (int64_t r = 0; r < kTile; ++r) {
      row[r] = x + (r < n ? r : 0) * stride + at;
      measure_row(row[r], peak + r, square + r);
    }
    __m128 squares = _mm_loadu_ps(square);
    __m128 scale = _mm_max_ps(_mm_mul_ps(_mm_loadu_ps(peak), _mm_set1_ps(1.0f / 32767.0f)),
                              _mm_mul_ps(_mm_sqrt_ps(squares), _mm_set1_ps(1.0f / kInt16Length)));
    // Squares of tiny numbers vanish: the length is then at most that of equal numbers.
    const __m128 longest = _mm_mul_ps(_mm_loadu_ps(peak),
                                      _mm_set1_ps(11.3137085f / kInt16Length));  // sqrt(kPairBlock)
    scale = _mm_mask_max_ps(scale, _mm_cmp_ps_mask(squares, _mm_set1_ps(1e-30f), _CMP_LT_OQ), scale,
                            longest);
    scale = _mm_add_ps(scale, _mm_mul_ps(squares, _mm_setzero_ps()));
    __mmask8 some = _mm_cmp_ps_mask(scale, _mm_set1_ps(1e-37f), _CMP_NLT_UQ);  // or NaN
    _mm_storeu_ps(inverse, _mm_maskz_div_ps(some, _mm_set1_ps(1.0f), scale));
    auto rows = static_cast<__mmask8>((1 << n) - 1);
    _mm_storeu_ps(out->scale, _mm_maskz_mov_ps(some & rows, scale));
#pragma GCC unroll 4
    for (int i = 0; i < kPairBlock / 32; ++i) {
      V q[kTile];
#pragma GCC unroll 4
      for (int r = 0; r < kTile; ++r) {
        V low = vmul(vload(row[r] + 32 * i), vset1(inverse[r]));
        V high = vmul(vload(row[r] + 32 * i + 16), vset1(inverse[r]));
        __m512i pairs = _mm512_inserti64x4(
            _mm512_castsi256_si512(_mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(low.r))),
            _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(high.r)), 1);
        q[r] = {_mm512_castsi512_ps(pairs)};
      }
      vstore_x4(reinterpret_cast<float*>(out->q[16 * i]), q[0], q[1], q[2], q[3]);
    }
  }
}

}  // namespace

namespace tokamak::cpu {

KernelTable::PairUnit avx512_pairs() { return {pack_pairs, multiply_pairs}; }

}  // namespace tokamak::cpu
