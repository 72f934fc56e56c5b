// aarch64 with the int8 matrix instructions. A vector of weights is 2 rows x 8 values of k; smmla
// multiplies it with 8 values of two activation rows, giving a 2 x 2 tile of sums.
#include "backend/cpu/simd_neon.h"

#include "backend/cpu/vec_kernels.inc"

#include "backend/cpu/qpanel_neon.inc"

namespace {

// [d0 d0 d1 d1] of row pair p out of the scales of 16 rows.
TK_INLINE float32x4_t pair_of(const float32x4_t* d, int p) {
  return p % 2 == 0 ? vzip1q_f32(d[p / 2], d[p / 2]) : vzip2q_f32(d[p / 2], d[p / 2]);
}
TK_INLINE int32x4_t pair_of(const int32x4_t* d, int p) {
  return p % 2 == 0 ? vzip1q_s32(d[p / 2], d[p / 2]) : vzip2q_s32(d[p / 2], d[p / 2]);
}

// Sums of a 2 x 2 tile over a block; w, x: k in groups of 8; start: -offset * sums of the
// activations.
template <int F>
TK_INLINE int32x4_t tile_dot(const int8x16_t* w, const int8x16_t* x, int32x4_t start0,
                             int32x4_t start1, int32x4_t s0, int32x4_t s1) {
  if (Panel<F>::halves) {
    int32x4_t a = vmmlaq_s32(vmmlaq_s32(start0, w[0], x[0]), w[1], x[1]);
    int32x4_t b = vmmlaq_s32(vmmlaq_s32(start1, w[2], x[2]), w[3], x[3]);
    return vmlaq_s32(vmulq_s32(a, s0), b, s1);
  }
  int32x4_t a = vmmlaq_s32(vmmlaq_s32(start0, w[0], x[0]), w[1], x[1]);
  return vmmlaq_s32(vmmlaq_s32(a, w[2], x[2]), w[3], x[3]);
}

// Long because everything lives in registers: 16 tiles of sums for 16 rows x 4 activation rows.
template <int F>
void qdot4(const uint8_t* panel, const XBlock4* x, int64_t blocks, float* out) {
  using P = Panel<F>;
  float32x4_t acc[8][2];
  for (int p = 0; p < 8; ++p) acc[p][0] = acc[p][1] = vdupq_n_f32(0);
  for (int64_t b = 0; b < blocks; b += P::blocks, panel += P::bytes) {
    for (int sub = 0; sub < P::blocks; ++sub, ++x) {
      const uint8_t* block = panel + P::head + sub * P::block_bytes;
      Scales<F> s = load_scales<F>(panel, block);
      int8x16_t xv[2][4];
      for (int c = 0; c < 2; ++c)
        for (int g = 0; g < 4; ++g) xv[c][g] = vld1q_s8(x->q + c * 64 + g * 16);
      float32x4_t scale = vmulq_n_f32(vld1q_f32(x->scale), P::factor), sum = vld1q_f32(x->sum);
      float32x4_t xs[2] = {vcombine_f32(vget_low_f32(scale), vget_low_f32(scale)),
                           vcombine_f32(vget_high_f32(scale), vget_high_f32(scale))};
      float32x4_t xm[2] = {vcombine_f32(vget_low_f32(sum), vget_low_f32(sum)),
                           vcombine_f32(vget_high_f32(sum), vget_high_f32(sum))};
      int32x4_t start0[2], start1[2];
      for (int c = 0; c < 2; ++c) {
        start0[c] = start1[c] = vdupq_n_s32(0);
        if (!P::offset) continue;
        int32x2_t lo = vmul_n_s32(vld1_s32(x->isum[0] + 2 * c), -P::offset);
        int32x2_t hi = vmul_n_s32(vld1_s32(x->isum[1] + 2 * c), -P::offset);
        if (!P::halves) lo = vadd_s32(lo, hi);
        start0[c] = vcombine_s32(lo, lo);
        start1[c] = vcombine_s32(hi, hi);
      }
#pragma GCC unroll 8
      for (int p = 0; p < 8; ++p) {
        int8x16_t w[4];
        load_values<F>(block + P::scales, p, w[0], w[2]);
        load_values<F>(block + P::scales, p + 8, w[1], w[3]);
        float32x4_t d = pair_of(s.d, p), m = P::minimum ? pair_of(s.m, p) : d;
        int32x4_t s0 = P::halves ? pair_of(s.s0, p) : vdupq_n_s32(0),
                  s1 = P::halves ? pair_of(s.s1, p) : s0;
#pragma GCC unroll 2
        for (int c = 0; c < 2; ++c) {
          int32x4_t dot = tile_dot<F>(w, xv[c], start0[c], start1[c], s0, s1);
          acc[p][c] = vfmaq_f32(acc[p][c], vcvtq_f32_s32(dot), vmulq_f32(d, xs[c]));
          if (P::minimum) acc[p][c] = vfmaq_f32(acc[p][c], m, xm[c]);
        }
      }
    }
  }
  for (int p = 0; p < 8; p += 2)
    for (int c = 0; c < 2; ++c) {  // 2 x 2 tiles of four rows -> four rows of each activation row
      vst1q_f32(out + (2 * c) * kPanel + 2 * p, vuzp1q_f32(acc[p][c], acc[p + 1][c]));
      vst1q_f32(out + (2 * c + 1) * kPanel + 2 * p, vuzp2q_f32(acc[p][c], acc[p + 1][c]));
    }
}

// One activation row in both columns of the tile; every second sum is dropped.
template <int F>
void qdot1(const uint8_t* panel, const XBlock1* x, int64_t blocks, float* out) {
  using P = Panel<F>;
  float32x4_t acc[4];
  for (int r = 0; r < 4; ++r) acc[r] = vdupq_n_f32(0);
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
      }
    }
  }
  for (int r = 0; r < 4; ++r) vst1q_f32(out + 4 * r, acc[r]);
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

const KernelTable* i8mm_table() {
  static const KernelTable table = [] {
    KernelTable t{};
    t.name = "i8mm";
    t.style = {8, 16, 0, 8, true};
    fill_vector_kernels<true>(t);
    fill_q<0>(t);
    return t;
  }();
  return &table;
}

}  // namespace tokamak::cpu
