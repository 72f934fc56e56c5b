// aarch64 with the int8 matrix instructions. A vector of weights is 2 rows x 8 values of k; smmla
// multiplies it with 8 values of two activation rows, giving a 2 x 2 tile of sums.
#include <cstddef>

#include "backend/cpu/simd_neon.h"

#include "backend/cpu/vec_kernels.inc"

namespace {
constexpr bool kRowNibbles = false;
}

#include "backend/cpu/qpanel_neon.inc"

namespace {

// [d0 d0 d1 d1] of row pair p out of the scales of 16 rows.
TK_INLINE float32x4_t pair_of(const float32x4_t* d, int p) {
  return p % 2 == 0 ? vzip1q_f32(d[p / 2], d[p / 2]) : vzip2q_f32(d[p / 2], d[p / 2]);
}
TK_INLINE int32x4_t pair_of(const int32x4_t* d, int p) {
  return p % 2 == 0 ? vzip1q_s32(d[p / 2], d[p / 2]) : vzip2q_s32(d[p / 2], d[p / 2]);
}

}  // namespace

#include "backend/cpu/qwide_i8mm.inc"

#include "backend/cpu/qsingle_i8mm.inc"

#include "backend/cpu/qtile_i8mm.inc"

#include "backend/cpu/qfew_i8mm.inc"

#include "backend/cpu/hdot_neon.inc"

namespace {

// [x0 x1 x0 x1] or [x2 x3 x2 x3].
TK_INLINE float32x4_t twice(float32x4_t x, int c) {
  float64x2_t v = vreinterpretq_f64_f32(x);
  return vreinterpretq_f32_f64(c == 0 ? vdupq_laneq_f64(v, 0) : vdupq_laneq_f64(v, 1));
}

TK_INLINE int32x4_t twice(int32x4_t x, int c) {
  int64x2_t v = vreinterpretq_s64_s32(x);
  return vreinterpretq_s32_s64(c == 0 ? vdupq_laneq_s64(v, 0) : vdupq_laneq_s64(v, 1));
}

// What the integer sums start from: minus the weights' offset times the sums of the activations.
template <int F, int columns>
TK_INLINE void start_sums(const XBlock4* x, int32x4_t (*dot)[2], int32x4_t (*second)[2]) {
  constexpr int offset = Panel<F>::offset;
#pragma GCC unroll 2
  for (int c = 0; c < columns; ++c) {
    int32x2_t lo = vdup_n_s32(0), hi = lo;
    if (offset) {
      lo = vmul_n_s32(vld1_s32(x->isum[0] + 2 * c), -offset);
      hi = vmul_n_s32(vld1_s32(x->isum[1] + 2 * c), -offset);
      if (!Panel<F>::halves) lo = vadd_s32(lo, hi);
    }
#pragma GCC unroll 4
    for (int p = 0; p < 4; ++p) {
      dot[p][c] = vcombine_s32(lo, lo);
      second[p][c] = vcombine_s32(hi, hi);
    }
  }
}

// Rows 8 h .. 8 h + 7 with one or two pairs of activation rows (columns): 8 tiles of sums, which
// with their integer sums, the current activations and weights fit the registers. Long because it
// is one loop.
template <int F, int h, int columns>
TK_INLINE void qdot4_rows(const uint8_t* panel, const XBlock4* x, int64_t blocks, float* out) {
  using P = Panel<F>;
  float32x4_t acc[4][2];
  for (int p = 0; p < 4; ++p) acc[p][0] = acc[p][1] = vdupq_n_f32(0);
  for (int64_t b = 0; b < blocks; b += P::blocks, panel += P::bytes) {
    for (int sub = 0; sub < P::blocks; ++sub, ++x) {
      const uint8_t* block = panel + P::head + sub * P::block_bytes;
      int32x4_t dot[4][2], second[4][2];  // second: k >= 16 where that has a scale of its own
      start_sums<F, columns>(x, dot, second);
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g) {  // values 8 g .. 8 g + 7 and those + 16
        int8x16_t x0[2], x1[2];
#pragma GCC unroll 2
        for (int c = 0; c < columns; ++c) {
          x0[c] = vld1q_s8(x->q + c * 64 + g * 16);
          x1[c] = vld1q_s8(x->q + c * 64 + g * 16 + 32);
        }
#pragma GCC unroll 4
        for (int p = 0; p < 4; ++p) {
          int8x16_t lo, hi;
          load_values<F>(block + P::scales, g * 8 + h * 4 + p, lo, hi);
#pragma GCC unroll 2
          for (int c = 0; c < columns; ++c) {
            dot[p][c] = vmmlaq_s32(dot[p][c], lo, x0[c]);
            int32x4_t& to = P::halves ? second[p][c] : dot[p][c];
            to = vmmlaq_s32(to, hi, x1[c]);
          }
        }
      }
      Scales8<F> s = load_scales8<F>(panel, block, h);
      float32x4_t scale = vld1q_f32(x->scale), sum = vld1q_f32(x->sum);
      if (P::factor != 1.0f) scale = vmulq_n_f32(scale, P::factor);
#pragma GCC unroll 4
      for (int p = 0; p < 4; ++p) {
        float32x4_t d = pair_of(s.d, p), m = P::minimum ? pair_of(s.m, p) : d;
#pragma GCC unroll 2
        for (int c = 0; c < columns; ++c) {
          if (P::halves)
            dot[p][c] =
                vmlaq_s32(vmulq_s32(dot[p][c], pair_of(s.s0, p)), second[p][c], pair_of(s.s1, p));
          acc[p][c] = vfmaq_f32(acc[p][c], vcvtq_f32_s32(dot[p][c]), vmulq_f32(d, twice(scale, c)));
          if (P::minimum) acc[p][c] = vfmaq_f32(acc[p][c], m, twice(sum, c));
          if (P::half_minimums) {
            int32x4_t less = vmlaq_s32(vmulq_s32(pair_of(s.m0, p), twice(vld1q_s32(x->isum[0]), c)),
                                       pair_of(s.m1, p), twice(vld1q_s32(x->isum[1]), c));
            acc[p][c] = vfmaq_f32(acc[p][c], vcvtq_f32_s32(less),
                                  vmulq_f32(pair_of(s.m, p), twice(scale, c)));
          }
        }
      }
    }
  }
  for (int p = 0; p < 4; p += 2)
    for (int c = 0; c < columns; ++c) {  // 2 x 2 tiles -> rows of activations
      vst1q_f32(out + (2 * c) * kPanel + 8 * h + 2 * p, vuzp1q_f32(acc[p][c], acc[p + 1][c]));
      vst1q_f32(out + (2 * c + 1) * kPanel + 8 * h + 2 * p, vuzp2q_f32(acc[p][c], acc[p + 1][c]));
    }
}

// Up to four rows.
template <int F>
void qdot_tile(const uint8_t* panel, const XBlock4* x, int64_t blocks, int rows, float* out) {
  if constexpr (F == kFQ4_0 || F == kFQ4_1 || F == kFQ4_K || F == kFQ8_0) {
    if (rows <= 2)
      qtile<F, 2>(panel, x, blocks, out);
    else if (rows == 3)
      qtile<F, 3>(panel, x, blocks, out);
    else
      qtile<F, 4>(panel, x, blocks, out);
  } else if (rows <= 2) {
    qdot4_rows<F, 0, 1>(panel, x, blocks, out);
    qdot4_rows<F, 1, 1>(panel, x, blocks, out);
  } else {
    qdot4_rows<F, 0, 2>(panel, x, blocks, out);
    qdot4_rows<F, 1, 2>(panel, x, blocks, out);
  }
}

template <int F>
void qdot4(const uint8_t* panel, const XBlock4* x, int64_t blocks, int rows, float* out) {
  if constexpr (kFewRows<F>) {
    if (rows == 5) return qfew<F, 5>(panel, x, blocks, out);
    if (rows == 6) return qfew<F, 6>(panel, x, blocks, out);
    if (rows == 7) return qfew<F, 7>(panel, x, blocks, out);
    if (rows == 8) return qfew<F, 8>(panel, x, blocks, out);
  }
  qdot_tile<F>(panel, x, blocks, rows, out);
  if (rows > kTile) qdot_tile<F>(panel, x + blocks, blocks, rows - kTile, out + kTile * kPanel);
}

// Sums of a 2 x 2 tile over a block; w, x: k in groups of 8; start: -offset * sums of the
// activations.
template <int F>
TK_INLINE int32x4_t tile_dot(const int8x16_t* w, const int8x16_t* x, int32x4_t start0,
                             int32x4_t start1, int32x4_t s0, int32x4_t s1) {
  int32x4_t a = vmmlaq_s32(vmmlaq_s32(start0, w[0], x[0]), w[1], x[1]);
  if (!Panel<F>::halves) return vmmlaq_s32(vmmlaq_s32(a, w[2], x[2]), w[3], x[3]);
  int32x4_t b = vmmlaq_s32(vmmlaq_s32(start1, w[2], x[2]), w[3], x[3]);
  return vmlaq_s32(vmulq_s32(a, s0), b, s1);
}

// One activation row: sums[kPanel] += . Formats of kSingleLoop have a loop in assembly
// (qsingle_i8mm.inc); for the others the row is in both columns of the tile, and every second sum
// is dropped. Not inlined: compilers spill the sums of two calls.
template <int F>
__attribute__((noinline)) void qdot_single(const uint8_t* panel, const XBlock1* x, int64_t blocks,
                                           float* sums) {
  using P = Panel<F>;
  if constexpr (kSingleLoop<F>) return single_loop<F>(panel, x, blocks, sums);
  float32x4_t acc[4];
  for (int r = 0; r < 4; ++r) acc[r] = vld1q_f32(sums + 4 * r);
  for (int64_t b = 0; b < blocks; b += P::blocks, panel += P::bytes) {
    for (int sub = 0; sub < P::blocks; ++sub, ++x) {
      const uint8_t* block = panel + P::head + sub * P::block_bytes;
      Scales<F> s = load_scales<F>(panel, block);
      int8x16_t xv[4];
      for (int g = 0; g < 4; ++g)
        xv[g] = vreinterpretq_s8_s64(vld1q_dup_s64(reinterpret_cast<const int64_t*>(x->q + 8 * g)));
      int32_t lo = -P::offset * x->isum[0], hi = -P::offset * x->isum[1];
      int32x4_t start0 = vdupq_n_s32(P::halves ? lo : lo + hi), start1 = vdupq_n_s32(hi),
                zero = vdupq_n_s32(0);
      float scale = x->scale * P::factor;
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        int32x4_t tile[2];
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          int p = 2 * r + half;
          int8x16_t w[4];
          load_values<F>(block + P::scales, p, w[0], w[2]);
          load_values<F>(block + P::scales, p + 8, w[1], w[3]);
          int32x4_t s0 = P::halves ? pair_of(s.s0, p) : zero,
                    s1 = P::halves ? pair_of(s.s1, p) : zero;
          tile[half] = tile_dot<F>(w, xv, start0, start1, s0, s1);
        }
        int32x4_t dot = vuzp1q_s32(tile[0], tile[1]);
        acc[r] = vfmaq_f32(acc[r], vcvtq_f32_s32(dot), vmulq_n_f32(s.d[r], scale));
        if (P::minimum) acc[r] = vfmaq_n_f32(acc[r], s.m[r], x->sum);
        if (P::half_minimums) {
          int32x4_t less = vmlaq_n_s32(vmulq_n_s32(s.m0[r], x->isum[0]), s.m1[r], x->isum[1]);
          acc[r] = vfmaq_f32(acc[r], vcvtq_f32_s32(less), vmulq_n_f32(s.m[r], x->scale));
        }
      }
    }
  }
  for (int r = 0; r < 4; ++r) vst1q_f32(sums + 4 * r, acc[r]);
}

template <int F>
void qdot1(const uint8_t* panel, const XBlock1* x, int64_t blocks, float* out) {
  for (int i = 0; i < kPanel; ++i) out[i] = 0;
  qdot_single<F>(panel, x, blocks, out);
}

// A part of one panel, then the same part of the other: two streams of memory.
template <int F>
void qdot1x2(const uint8_t* panel, const uint8_t* other, const XBlock1* x, int64_t blocks,
             float* out) {
  using P = Panel<F>;
  for (int i = 0; i < 2 * kPanel; ++i) out[i] = 0;
  for (int64_t b = 0; b < blocks; b += 8) {
    int64_t n = blocks - b < 8 ? blocks - b : 8, at = b / P::blocks * P::bytes;
    qdot_single<F>(panel + at, x + b, n, out);
    qdot_single<F>(other + at, x + b, n, out + kPanel);
  }
}

template <int F>
void fill_q(tokamak::cpu::KernelTable& t) {
  if constexpr (F < tokamak::cpu::kQFormats) {
    t.qdot1[F] = qdot1<F>;
    t.qdot1x2[F] = qdot1x2<F>;
    t.qdot4[F] = qdot4<F>;
    if constexpr (!Panel<F>::half_minimums) {
      t.qwiden[F] = qwiden<F>;
      t.qwide[F] = qwide<F>;
    }
    t.wide_rows[F] = Panel<F>::bytes8             ? 25
                     : F == kFQ4_0 || F == kFQ4_1 ? 17
                     : Panel<F>::high == 64       ? 5
                                                  : 12;
    fill_q<F + 1>(t);
  }
}

}  // namespace

namespace tokamak::cpu {

const KernelTable* i8mm_table() {
  static const KernelTable table = [] {
    KernelTable t{};
    t.name = "i8mm";
    t.style = {8, 16, 0, 8, true};
    t.wide_panels = 1;
    fill_vector_kernels<true>(t);
    t.wide_group = 8;
    t.few_rows = kMostFewRows;
    t.hdot1x4 = hdot1x4;
    fill_q<0>(t);
    return t;
  }();
  return &table;
}

}  // namespace tokamak::cpu
