// x86-64 with the int8 matrix unit (AMX): the AVX-512 level, with products of many rows done in
// tiles. A tile of weights is a widened block of a panel, 8 rows (k / 4) of 16 panel rows x 4
// values of k, a tile of activations 16 rows x 32 values. A product covers one block: its 16 x 16
// integer sums are scaled into float sums before the next block, as on every other level.
#include "backend/cpu/simd_avx512.h"

#include "backend/cpu/kernel_table.h"

using tokamak::cpu::kPanel;
using tokamak::cpu::XBlock4;

#include "backend/cpu/qpanel_avx512.inc"

namespace {

constexpr int kRows = 16;    // of activations in a tile
constexpr int kBlocks = 64;  // brought into tiles at a time

// One block of 16 activation rows.
struct alignas(64) XBlock16 {
  int8_t q[kRows][32];
  float scale[kRows], sum[kRows];
};

// Tiles of 4 rows side by side; absent rows become zero.
void gather_rows(const XBlock4* x, int64_t stride, int64_t rows, int64_t blocks, XBlock16* out) {
  for (int64_t b = 0; b < blocks; ++b)
    for (int t = 0; t < 4; ++t) {
      __m512i *q = reinterpret_cast<__m512i*>(out[b].q[4 * t]), zero = _mm512_setzero_si512();
      bool there = 4 * t < rows;
      const XBlock4& from = x[there ? t * stride + b : b];
      q[0] = there ? _mm512_loadu_si512(from.q) : zero;
      q[1] = there ? _mm512_loadu_si512(from.q + 64) : zero;
      _mm_store_ps(out[b].scale + 4 * t, _mm_load_ps(from.scale));
      _mm_store_ps(out[b].sum + 4 * t, _mm_load_ps(from.sum));
    }
}

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// tmm0, tmm1: sums; tmm2, tmm3: activations; tmm4, tmm5: weights: two products at a time. A product
// of q6_k covers 16 values of k, of the other formats 32. Asm of its own: the compiler's intrinsics
// do not tell it that memory is read.
template <int F>
void configure_tiles() {
  constexpr int values = Panel<F>::halves ? 16 : 32;
  TileConfig c;
  for (int t = 0; t < 6; ++t) {
    c.row_bytes[t] = t == 2 || t == 3 ? values : 64;
    c.rows[t] = t >= 4 ? values / 4 : kRows;
  }
  asm volatile("ldtilecfg %0" : : "m"(c));
}

using Sums = int32_t[kRows][kPanel];

// The integer sums to[0], to[1] of x0 . w0 and x1 . w1.
TK_INLINE void multiply_two(const int8_t* x0, const uint8_t* w0, const int8_t* x1,
                            const uint8_t* w1, Sums* to) {
  asm volatile(
      "tileloadd (%0,%5,1), %%tmm2\n\t"
      "tileloadd (%1,%6,1), %%tmm4\n\t"
      "tilezero %%tmm0\n\t"
      "tdpbssd %%tmm4, %%tmm2, %%tmm0\n\t"
      "tileloadd (%2,%5,1), %%tmm3\n\t"
      "tileloadd (%3,%6,1), %%tmm5\n\t"
      "tilezero %%tmm1\n\t"
      "tdpbssd %%tmm5, %%tmm3, %%tmm1\n\t"
      "tilestored %%tmm0, (%4,%6,1)\n\t"
      "tilestored %%tmm1, 1024(%4,%6,1)"
      :
      : "r"(x0), "r"(w0), "r"(x1), "r"(w1), "r"(to), "r"(int64_t{32}), "r"(int64_t{64})
      : "memory");
}

// For q6_k: the sums over k < 16 and k >= 16 of one block. For other formats: those of two blocks.
template <int F>
TK_INLINE void multiply_blocks(const XBlock16* x, const uint8_t* w, bool two, Sums* to) {
  if (Panel<F>::halves)
    multiply_two(x->q[0], w, x->q[0] + 16, w + 256, to);
  else
    multiply_two(x->q[0], w, x[two].q[0], w + two * kWideStep<F>, to);
}

template <int F>
TK_INLINE void scale_block(const XBlock16& x, const uint8_t* w, const Sums* sums, __m512* acc) {
  const auto* scales = reinterpret_cast<const float*>(w + kWideValues);
  __m512 d = _mm512_loadu_ps(scales), m = d, s1 = d;
  if (Panel<F>::minimum || Panel<F>::halves) m = _mm512_loadu_ps(scales + 16);
  if (Panel<F>::halves) s1 = _mm512_loadu_ps(scales + 32);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    __m512 v = _mm512_cvtepi32_ps(_mm512_load_si512(sums[0][r]));
    if (Panel<F>::halves)  // whole numbers below 2^24: exact
      v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums[1][r])), s1,
                          _mm512_mul_ps(v, m));
    acc[r] = _mm512_fmadd_ps(v, _mm512_mul_ps(d, _mm512_set1_ps(x.scale[r])), acc[r]);
    if (Panel<F>::minimum) acc[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(x.sum[r]), acc[r]);
  }
}

// 16 rows of activations. Products run while those before them are scaled.
template <int F>
void multiply_rows(const XBlock16* x, const uint8_t* wide, int64_t blocks, int64_t rows,
                   float* to) {
  constexpr int step = Panel<F>::halves ? 1 : 2;
  alignas(64) Sums sums[2][2];
  __m512 acc[kRows];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
    acc[i] = i < rows ? _mm512_loadu_ps(to + i * kPanel) : _mm512_setzero_ps();
  multiply_blocks<F>(x, wide, blocks > 1, sums[0]);
  for (int64_t b = 0; b < blocks; b += step, wide += step * kWideStep<F>) {
    const Sums* done = sums[b / step % 2];
    if (b + step < blocks)
      multiply_blocks<F>(x + b + step, wide + step * kWideStep<F>, b + step + 1 < blocks,
                         sums[(b / step + 1) % 2]);
    scale_block<F>(x[b], wide, done, acc);
    if (step == 2 && b + 1 < blocks) scale_block<F>(x[b + 1], wide + kWideStep<F>, done + 1, acc);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
    if (i < rows) _mm512_storeu_ps(to + i * kPanel, acc[i]);
}

// Rows come side by side once for all panels.
template <int F>
void qwide(const uint8_t* wide, int64_t panels, const XBlock4* x, int64_t stride, int64_t rows,
           int64_t blocks, float* sums) {
  XBlock16 tiles[kBlocks];
  configure_tiles<F>();
  for (int64_t r = 0; r < rows; r += kRows, x += 4 * stride) {
    int64_t n = rows - r < kRows ? rows - r : kRows;
    for (int64_t b = 0; b < blocks; b += kBlocks) {
      int64_t part = blocks - b < kBlocks ? blocks - b : kBlocks;
      gather_rows(x + b, stride, n, part, tiles);
      for (int64_t p = 0; p < panels; ++p)
        multiply_rows<F>(tiles, wide + p * blocks * tokamak::cpu::kWideBlock + b * kWideStep<F>,
                         part, n, sums + (p * rows + r) * kPanel);
    }
  }
  asm volatile("tilerelease");
}

template <int F>
void fill_wide(tokamak::cpu::KernelTable& t) {
  if constexpr (F < tokamak::cpu::kQFormats) {
    t.qwiden[F] = qwiden<F, kOffset<F>>;  // signed values
    t.qwide[F] = qwide<F>;
    fill_wide<F + 1>(t);
  }
}

}  // namespace

namespace tokamak::cpu {

const KernelTable* amx_table() {
  static const KernelTable table = [] {
    KernelTable t = *avx512_table();
    t.name = "amx";
    t.wide_panels = tokamak::cpu::kMaxWidePanels;
    fill_wide<0>(t);
    return t;
  }();
  return &table;
}

}  // namespace tokamak::cpu
