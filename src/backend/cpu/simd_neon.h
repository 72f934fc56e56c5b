#pragma once
// Sixteen floats in four NEON registers; see simd_scalar.h for what each function means.
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#define TK_INLINE static inline __attribute__((always_inline))

namespace {

struct V {
  float32x4_t r[4];
};

#define TK_EACH for (int i = 0; i < 4; ++i)
TK_INLINE V vload(const float* p) {
  return {{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}
TK_INLINE void vstore(float* p, V a) { TK_EACH vst1q_f32(p + 4 * i, a.r[i]); }
TK_INLINE V vset1(float x) {
  float32x4_t v = vdupq_n_f32(x);
  return {{v, v, v, v}};
}
TK_INLINE V vadd(V a, V b) {
  TK_EACH a.r[i] = vaddq_f32(a.r[i], b.r[i]);
  return a;
}
TK_INLINE V vsub(V a, V b) {
  TK_EACH a.r[i] = vsubq_f32(a.r[i], b.r[i]);
  return a;
}
TK_INLINE V vmul(V a, V b) {
  TK_EACH a.r[i] = vmulq_f32(a.r[i], b.r[i]);
  return a;
}
TK_INLINE V vdiv(V a, V b) {
  TK_EACH a.r[i] = vdivq_f32(a.r[i], b.r[i]);
  return a;
}
TK_INLINE V vfma(V a, V b, V c) {
  TK_EACH c.r[i] = vfmaq_f32(c.r[i], a.r[i], b.r[i]);
  return c;
}
TK_INLINE V vmax(V a, V b) {
  TK_EACH a.r[i] = vmaxq_f32(a.r[i], b.r[i]);
  return a;
}
TK_INLINE V vmin(V a, V b) {
  TK_EACH a.r[i] = vminq_f32(a.r[i], b.r[i]);
  return a;
}
TK_INLINE V vabs(V a) {
  TK_EACH a.r[i] = vabsq_f32(a.r[i]);
  return a;
}
TK_INLINE V vsqrt(V a) {
  TK_EACH a.r[i] = vsqrtq_f32(a.r[i]);
  return a;
}
TK_INLINE V vselect_lt(V a, V b, V yes, V no) {
  TK_EACH a.r[i] = vbslq_f32(vcltq_f32(a.r[i], b.r[i]), yes.r[i], no.r[i]);
  return a;
}
TK_INLINE V vcopysign(V magnitude, V sign) {
  uint32x4_t mask = vdupq_n_u32(0x80000000u);
  TK_EACH magnitude.r[i] = vbslq_f32(mask, sign.r[i], magnitude.r[i]);
  return magnitude;
}
TK_INLINE V vscale2(V p, V n) {
  int32x4_t bias = vdupq_n_s32(127);
  TK_EACH {
    int32x4_t e = vcvtq_s32_f32(n.r[i]), e1 = vshrq_n_s32(e, 1), e2 = vsubq_s32(e, e1);
    float32x4_t f1 = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(e1, bias), 23));
    float32x4_t f2 = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(e2, bias), 23));
    p.r[i] = vmulq_f32(vmulq_f32(p.r[i], f1), f2);
  }
  return p;
}
TK_INLINE V vload_f16(const uint16_t* p) {
  float16x8_t a = vreinterpretq_f16_u16(vld1q_u16(p)), b = vreinterpretq_f16_u16(vld1q_u16(p + 8));
  return {{vcvt_f32_f16(vget_low_f16(a)), vcvt_high_f32_f16(a), vcvt_f32_f16(vget_low_f16(b)),
           vcvt_high_f32_f16(b)}};
}
TK_INLINE V vload_bf16(const uint16_t* p) {
  uint16x8_t a = vld1q_u16(p), b = vld1q_u16(p + 8);
  return {{vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(a), 16)),
           vreinterpretq_f32_u32(vshll_high_n_u16(a, 16)),
           vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(b), 16)),
           vreinterpretq_f32_u32(vshll_high_n_u16(b, 16))}};
}
TK_INLINE V vload_i8(const int8_t* p) {
  int8x16_t a = vld1q_s8(p);
  int16x8_t lo = vmovl_s8(vget_low_s8(a)), hi = vmovl_high_s8(a);
  return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))), vcvtq_f32_s32(vmovl_high_s16(lo)),
           vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))), vcvtq_f32_s32(vmovl_high_s16(hi))}};
}
TK_INLINE void vstore_f16(uint16_t* p, V a) {
  vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(a.r[0]), a.r[1])));
  vst1q_u16(p + 8, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(a.r[2]), a.r[3])));
}
TK_INLINE void vstore_i8(int8_t* p, V a) {
  int16x8_t lo = vcombine_s16(vmovn_s32(vcvtq_s32_f32(a.r[0])), vmovn_s32(vcvtq_s32_f32(a.r[1])));
  int16x8_t hi = vcombine_s16(vmovn_s32(vcvtq_s32_f32(a.r[2])), vmovn_s32(vcvtq_s32_f32(a.r[3])));
  vst1q_s8(p, vcombine_s8(vmovn_s16(lo), vmovn_s16(hi)));
}

// Sum by the tree (i, i + 8), (i, i + 4), (i, i + 2), (i, i + 1); the largest.
TK_INLINE float sum_lanes(V a) {
  float32x4_t t = vaddq_f32(vaddq_f32(a.r[0], a.r[2]), vaddq_f32(a.r[1], a.r[3]));
  float32x2_t u = vadd_f32(vget_low_f32(t), vget_high_f32(t));
  return vget_lane_f32(u, 0) + vget_lane_f32(u, 1);
}
TK_INLINE float max_lanes(V a) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.r[0], a.r[2]), vmaxq_f32(a.r[1], a.r[3])));
}

TK_INLINE void vstore_x4(float* to, V a, V b, V c, V d) {
  TK_EACH vst4q_f32(to + 16 * i, (float32x4x4_t{{a.r[i], b.r[i], c.r[i], d.r[i]}}));
}
TK_INLINE void vprefetch(const void*) {}  // the core does it itself
constexpr int kRegisterTiles = 1;         // tiles of activations whose sums fit the registers
using X4 = float32x4_t;
TK_INLINE X4 vload_x4(const float* p) { return vld1q_f32(p); }
template <int c>
TK_INLINE V vfma_x4(V w, X4 x, V acc) {
  TK_EACH acc.r[i] = vfmaq_laneq_f32(acc.r[i], w.r[i], x, c);
  return acc;
}
#undef TK_EACH

}  // namespace
