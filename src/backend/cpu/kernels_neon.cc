// aarch64 with the dot-product instructions. A vector of weights is 4 rows x 4 values of k; sdot
// takes four values of an activation row from a lane.
#include "backend/cpu/simd_neon.h"

#include "backend/cpu/vec_kernels.inc"

#include "backend/cpu/qpanel_neon.inc"

namespace {

// The integer dot of 4 rows with one activation row over a block: lo and hi hold k = 4 g .. 4 g + 3
// and those + 16.
template <int F>
TK_INLINE int32x4_t dot_block(const int8x16_t* lo, const int8x16_t* hi, int8x16_t x0, int8x16_t x1,
                              int32_t sum0, int32_t sum1, int32x4_t s0, int32x4_t s1) {
  constexpr int offset = Panel<F>::offset;
  int32x4_t a = vdupq_n_s32(offset ? -offset * sum0 : 0),
            b = vdupq_n_s32(offset ? -offset * sum1 : 0);
  a = vdotq_laneq_s32(a, lo[0], x0, 0);
  b = vdotq_laneq_s32(b, hi[0], x1, 0);
  a = vdotq_laneq_s32(a, lo[1], x0, 1);
  b = vdotq_laneq_s32(b, hi[1], x1, 1);
  a = vdotq_laneq_s32(a, lo[2], x0, 2);
  b = vdotq_laneq_s32(b, hi[2], x1, 2);
  a = vdotq_laneq_s32(a, lo[3], x0, 3);
  b = vdotq_laneq_s32(b, hi[3], x1, 3);
  if (Panel<F>::halves) return vmlaq_s32(vmulq_s32(a, s0), b, s1);
  return vaddq_s32(a, b);
}

// Columns: activation rows that are taken at once.
template <int F, int columns, class X>
TK_INLINE void qdot(const uint8_t* panel, const X* x, int64_t blocks, float* out) {
  using P = Panel<F>;
  float32x4_t acc[4][columns];
  for (int r = 0; r < 4; ++r)
    for (int c = 0; c < columns; ++c) acc[r][c] = vdupq_n_f32(0);
  for (int64_t b = 0; b < blocks; b += P::blocks, panel += P::bytes) {
    for (int sub = 0; sub < P::blocks; ++sub, ++x) {
      const uint8_t* block = panel + P::head + sub * P::block_bytes;
      Scales<F> s = load_scales<F>(panel, block);
      const float *scale = reinterpret_cast<const float*>(x), *sum = scale + columns;
      const auto* isum = reinterpret_cast<const int32_t*>(sum + columns);
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        int8x16_t lo[4], hi[4];
#pragma GCC unroll 4
        for (int g = 0; g < 4; ++g) load_values<F>(block + P::scales, g * 4 + r, lo[g], hi[g]);
#pragma GCC unroll 4
        for (int c = 0; c < columns; ++c) {
          int8x16_t x0 = vld1q_s8(x->q + c * 32), x1 = vld1q_s8(x->q + c * 32 + 16);
          int32x4_t dot =
              dot_block<F>(lo, hi, x0, x1, isum[c], isum[columns + c], s.s0[r], s.s1[r]);
          float32x4_t both = vmulq_n_f32(s.d[r], scale[c] * P::factor);
          acc[r][c] = vfmaq_f32(acc[r][c], vcvtq_f32_s32(dot), both);
          if (P::minimum) acc[r][c] = vfmaq_n_f32(acc[r][c], s.m[r], sum[c]);
        }
      }
    }
  }
  for (int c = 0; c < columns; ++c)
    for (int r = 0; r < 4; ++r) vst1q_f32(out + c * kPanel + 4 * r, acc[r][c]);
}

template <int F>
void qdot1(const uint8_t* panel, const XBlock1* x, int64_t blocks, float* out) {
  qdot<F, 1>(panel, x, blocks, out);
}
template <int F>
void qdot4(const uint8_t* panel, const XBlock4* x, int64_t blocks, float* out) {
  qdot<F, 4>(panel, x, blocks, out);
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

const KernelTable* neon_table() {
  static const KernelTable table = [] {
    KernelTable t{};
    t.name = "neon";
    t.style = {4, 16, 0, 8, false};
    fill_vector_kernels<false>(t);
    fill_q<0>(t);
    return t;
  }();
  return &table;
}

}  // namespace tokamak::cpu
