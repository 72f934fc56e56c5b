// x86-64 with the matrix unit (AMX): the AVX-512 level, with products of many rows done in tiles;
// tile_unit_amx.inc has those of bf16 numbers. A tile of weights is a widened block of a panel, 8
// rows (k / 4) of 16 panel rows x 4 values of k, a tile of activations up to 16 rows x 32 values. A
// product covers one block: its integer sums are scaled into float sums in the order of k, as on
// every other level. Scaling takes longer than the product, so products and the stores of their
// sums run ahead of it.
#include "backend/cpu/simd_avx512.h"

#include "backend/cpu/kernel_table.h"
#include "backend/cpu/tiles_amx.h"

using tokamak::cpu::kMostFewRows;
using tokamak::cpu::kPanel;
using tokamak::cpu::kTile;
using tokamak::cpu::XBlock1;
using tokamak::cpu::XBlock16;
using tokamak::cpu::XBlock4;

#include "backend/cpu/qpanel_avx512.inc"

#include "backend/cpu/qdot_avx512.inc"

namespace {

constexpr int kRows = 16;                          // of activations in a tile
constexpr int kProductAhead = 3, kStoreAhead = 2;  // blocks
constexpr int kRing = 4;                           // blocks whose sums are kept

// What a widened block has: scales alone, minimums, scales of its halves, or also minimums of
// these. The number is that of the vectors after the first scales.
enum class Wide { kScale = 0, kMinimum = 1, kHalves = 2, kHalfMinimums = 4 };
template <int F>
constexpr Wide kWide = Panel<F>::half_minimums ? Wide::kHalfMinimums
                       : Panel<F>::halves      ? Wide::kHalves
                       : Panel<F>::minimum     ? Wide::kMinimum
                                               : Wide::kScale;
template <Wide kind>
constexpr bool kOfHalves = kind == Wide::kHalves || kind == Wide::kHalfMinimums;
template <Wide kind>
constexpr int kStep = kWideValues + 64 * (1 + static_cast<int>(kind));

using Sums = int32_t[kRows][kPanel];
template <Wide kind>
constexpr int kProducts = kOfHalves<kind> ? 2 : 1;  // of a block

// tmm0 to tmm3: sums; tmm4, tmm5: activations; tmm6, tmm7: weights.
constexpr TileConfig tile_config(int rows, int values) {
  TileConfig c;
  for (int t = 0; t < 8; ++t) {
    c.row_bytes[t] = static_cast<uint16_t>(t == 4 || t == 5 ? values : 64);
    c.rows[t] = static_cast<uint8_t>(t < 6 ? rows : values / 4);
  }
  return c;
}
template <Wide kind, int rows>
constexpr TileConfig kConfig = tile_config(rows, 32 / kProducts<kind>);

// Block i (modulo 4) into the tiles of its sums.
template <Wide kind, int i>
TK_INLINE void multiply_block(const XBlock16& x, const uint8_t* w) {
  constexpr int t = i % 2;
  if constexpr (kOfHalves<kind>) {
    tile_load<4>(x.q, 32);
    tile_load<6>(w, 64);
    tile_product<2 * t, 4, 6>();
    tile_load<5>(x.q + 16, 32);
    tile_load<7>(w + 256, 64);
    tile_product<2 * t + 1, 5, 7>();
  } else {
    tile_load<4 + t>(x.q, 32);
    tile_load<6 + t>(w, 64);
    tile_product<i, 4 + t, 6 + t>();
  }
}
template <Wide kind, int i>
TK_INLINE void store_block(Sums* to) {
  constexpr int tile = kOfHalves<kind> ? 2 * (i % 2) : i;
  tile_store<tile>(to[0], 64);
  if constexpr (kOfHalves<kind>) tile_store<tile + 1>(to[1], 64);
}

template <Wide kind, int rows>
TK_INLINE void scale_block(const XBlock16& x, const uint8_t* w, const Sums* sums, __m512* acc) {
  const auto* scales = reinterpret_cast<const float*>(w + kWideValues);
  __m512 d = _mm512_loadu_ps(scales), m = d, s1 = d;
  if (kind != Wide::kScale) m = _mm512_loadu_ps(scales + 16);
  if (kOfHalves<kind>) s1 = _mm512_loadu_ps(scales + 32);
  __m512 dmin = d;
  __m512i less = _mm512_setzero_si512();
  if (kind == Wide::kHalfMinimums) {
    dmin = _mm512_loadu_ps(scales + 48);
    less = _mm512_loadu_si512(scales + 64);
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
    __m512 v = _mm512_cvtepi32_ps(_mm512_load_si512(sums[0][r]));
    if (kOfHalves<kind>)  // whole numbers below 2^24: exact
      v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums[1][r])), s1,
                          _mm512_mul_ps(v, m));
    acc[r] = _mm512_fmadd_ps(v, _mm512_mul_ps(d, _mm512_set1_ps(x.scale[r])), acc[r]);
    if (kind == Wide::kMinimum) acc[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(x.sum[r]), acc[r]);
    if (kind == Wide::kHalfMinimums)
      acc[r] = _mm512_fmadd_ps(half_sums(less, x.isum[0][r], x.isum[1][r]),
                               _mm512_mul_ps(dmin, _mm512_set1_ps(x.scale[r])), acc[r]);
  }
}

// The blocks of one panel and up to 16 rows.
template <Wide kind>
struct Walk {
  static constexpr int ahead = kOfHalves<kind> ? kStoreAhead + 1 : kProductAhead;
  static_assert(ahead - kStoreAhead < 4 / kProducts<kind> && kStoreAhead < kRing);
  const XBlock16* x;
  const uint8_t* wide;
  int64_t blocks;
  Sums (*ring)[kProducts<kind>];
};

template <int i, Wide kind>
TK_INLINE void multiply(const Walk<kind>& w, int64_t b) {
  if (b < w.blocks) multiply_block<kind, i % 4>(w.x[b], w.wide + b * kStep<kind>);
}
template <int i, Wide kind>
TK_INLINE void store(const Walk<kind>& w, int64_t b) {
  if (b < w.blocks) store_block<kind, i % 4>(w.ring[b % kRing]);
}
template <int i, Wide kind>
TK_INLINE void start(const Walk<kind>& w) {
  constexpr int late = Walk<kind>::ahead - kStoreAhead;
  if constexpr (i < Walk<kind>::ahead) {
    multiply<i>(w, i);
    if constexpr (i >= late) store<i - late>(w, i - late);
    start<i + 1>(w);
  }
}
// Block b is scaled; i is b modulo 4.
template <int i, int rows, Wide kind>
TK_INLINE void step(const Walk<kind>& w, int64_t b, __m512* acc) {
  multiply<i + Walk<kind>::ahead>(w, b + Walk<kind>::ahead);
  store<i + kStoreAhead>(w, b + kStoreAhead);
  scale_block<kind, rows>(w.x[b], w.wide + b * kStep<kind>, w.ring[b % kRing], acc);
}

// sums[row][kPanel] of `n` rows, at most `rows`.
template <Wide kind, int rows>
void multiply_rows(const XBlock16* x, const uint8_t* wide, int64_t blocks, int64_t n, float* to) {
  alignas(64) Sums ring[kRing][kProducts<kind>];
  Walk<kind> walk{x, wide, blocks, ring};
  __m512 acc[rows];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
    acc[i] = i < n ? _mm512_loadu_ps(to + i * kPanel) : _mm512_setzero_ps();
  start<0>(walk);
  int64_t b = 0;
  for (; b + 4 <= blocks; b += 4) {
    step<0, rows>(walk, b, acc);
    step<1, rows>(walk, b + 1, acc);
    step<2, rows>(walk, b + 2, acc);
    step<3, rows>(walk, b + 3, acc);
  }
  if (b < blocks) step<0, rows>(walk, b, acc);
  if (b + 1 < blocks) step<1, rows>(walk, b + 1, acc);
  if (b + 2 < blocks) step<2, rows>(walk, b + 2, acc);
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
    if (i < n) _mm512_storeu_ps(to + i * kPanel, acc[i]);
}

// Fewer than 16 rows: as many as were packed are scaled.
template <Wide kind>
void multiply_last(const XBlock16* x, const uint8_t* wide, int64_t blocks, int64_t n, bool alone,
                   float* to) {
  auto some = [&]<int rows>() {
    if (alone) use_tiles(kConfig<kind, rows>);
    multiply_rows<kind, rows>(x, wide, blocks, n, to);
  };
  if (n > 12) return some.template operator()<16>();
  if (n > 8) return some.template operator()<12>();
  if (n > 4) return some.template operator()<8>();
  some.template operator()<4>();
}

template <Wide kind>
void qwide(const uint8_t* wide, int64_t panels, const XBlock4* packed, int64_t stride, int64_t rows,
           int64_t blocks, float* sums) {
  for (int64_t p = 0; p < panels; ++p, wide += blocks * tokamak::cpu::kWideBlock) {
    const auto* x = reinterpret_cast<const XBlock16*>(packed);
    int64_t left = rows;
    if (rows >= kRows) use_tiles(kConfig<kind, kRows>);
    for (; left >= kRows; left -= kRows, x += stride, sums += kRows * kPanel)
      multiply_rows<kind, kRows>(x, wide, blocks, kRows, sums);
    if (left > 0) multiply_last<kind>(x, wide, blocks, left, rows < kRows, sums);
    sums += left * kPanel;
  }
}

void pack_tile(const void* const* rows, int n, int64_t blocks, int tile, XBlock4* packed) {
  auto* out = reinterpret_cast<XBlock16*>(packed);
  __m256i ones = _mm256_set1_epi8(1);
  for (int i = 0; i < kTile; ++i) {
    int c = tile * kTile + i;
    const auto* p = static_cast<const uint8_t*>(rows[i < n ? i : 0]);
    for (int64_t b = 0; b < blocks; ++b, p += tokamak::cpu::kActivationBlock) {
      __m256i q = i < n ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))
                        : _mm256_setzero_si256();
      // Sums of 2 bytes, then of 4 (below 2^15), then of 16.
      __m256i four = _mm256_madd_epi16(_mm256_maddubs_epi16(ones, q), _mm256_set1_epi16(1));
      __m128i lo = _mm256_castsi256_si128(four), hi = _mm256_extracti128_si256(four, 1);
      __m128i both = _mm_hadd_epi32(lo, hi);
      both = _mm_hadd_epi32(both, both);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out[b].q + c * 32), q);
      out[b].isum[0][c] = _mm_cvtsi128_si32(both);
      out[b].isum[1][c] = _mm_extract_epi32(both, 1);
      float head[2] = {};
      if (i < n) memcpy(head, p, 8);
      out[b].scale[c] = head[0];
      out[b].sum[c] = head[1];
    }
  }
}

}  // namespace

#include "backend/cpu/tile_unit_amx.inc"

namespace {

template <int F>
void fill_wide(tokamak::cpu::KernelTable& t) {
  if constexpr (F < tokamak::cpu::kQFormats) {
    t.qdot4[F] = qdot_few<F, XBlock16>;
    t.qdot4x2[F] = qdot_few_x2<F, XBlock16>;
    t.qwiden[F] = qwiden<F, kOffset<F>>;  // signed values
    t.qwide[F] = qwide<kWide<F>>;
    t.wide_rows[F] = kMostFewRows + 1;  // vpdpbusd is as fast for fewer
    fill_wide<F + 1>(t);
  }
}

}  // namespace

namespace tokamak::cpu {

const KernelTable* amx_table() {
  static const KernelTable table = [] {
    KernelTable t = *avx512_table();
    t.name = "amx";
    t.x_tiles = kRows / kTile;
    t.chunk_bytes = 1280 * 1024;  // of 2 MiB
    t.chunk_tiles = 64;
    t.wide_panels = 1;
    t.wide_blocks = 16, t.wide_group = 1;  // stay in the first cache
    t.pack_x4 = pack_tile;
    fill_wide<0>(t);
    fill_spread<0>(t.tile_unit);
    t.tile_unit.spread_float[static_cast<int>(FType::kBF16)] = spread_bf16;
    t.tile_unit.spread_float[static_cast<int>(FType::kF16)] = spread_f16;
    t.tile_unit.row_float[static_cast<int>(FType::kBF16)] =
        row_in_tile_order<add_row_float<add_step_bf16>>;
    t.tile_unit.row_float[static_cast<int>(FType::kF16)] =
        row_in_tile_order<add_row_float<add_step_f16>>;
    t.tile_unit.multiply = multiply_tiles;
    t.tile_unit.rows = 32;
    return t;
  }();
  return &table;
}

}  // namespace tokamak::cpu
