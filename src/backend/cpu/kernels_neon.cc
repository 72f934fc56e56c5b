// aarch64 with the dot-product instructions. A vector of weights is 4 rows x 4 values of k; sdot
// takes four values of an activation row from a lane.
#include "backend/cpu/simd_neon.h"

#include "backend/cpu/vec_kernels.inc"

#include "backend/cpu/qpanel_neon.inc"

#include "backend/cpu/qwide_neon.inc"

namespace {

// d and m of a super-block as f32, m with its sign.
template <int F>
struct Heads {
  float32x4_t d[4], m[4];
};
template <int F>
TK_INLINE Heads<F> load_heads(const uint8_t* super) {
  Heads<F> h;
  load_half16(super, h.d);
  if (Panel<F>::minimum) load_half16(super + 32, h.m);
  if (Panel<F>::minimum && Panel<F>::k_quant)
    for (float32x4_t& m : h.m) m = vnegq_f32(m);
  return h;
}

// Four of 16 bytes as floats, by the bits of 2^23 + byte.
alignas(16) constexpr uint8_t kByteFloats[4][16] = {
    {0, 16, 16, 17, 1, 16, 16, 17, 2, 16, 16, 17, 3, 16, 16, 17},
    {4, 16, 16, 17, 5, 16, 16, 17, 6, 16, 16, 17, 7, 16, 16, 17},
    {8, 16, 16, 17, 9, 16, 16, 17, 10, 16, 16, 17, 11, 16, 16, 17},
    {12, 16, 16, 17, 13, 16, 16, 17, 14, 16, 16, 17, 15, 16, 16, 17}};
TK_INLINE float32x4_t byte_floats(uint8x16_t v, int r) {
  uint8x16x2_t table = {{v, vreinterpretq_u8_u16(vdupq_n_u16(0x4b00))}};
  uint8x16_t bits = vqtbl2q_u8(table, vld1q_u8(kByteFloats[r]));
  return vsubq_f32(vreinterpretq_f32_u8(bits), vdupq_n_f32(8388608.0f));
}

// The scales of rows 4 r .. 4 r + 3 for one block.
struct RowScales {
  float32x4_t d, m, s0, s1;  // s0, s1: q6_k
};
template <int F>
TK_INLINE RowScales row_scales(const Heads<F>& h, const uint8_t* block, int r) {
  RowScales s{h.d[r], h.m[r], h.d[r], h.d[r]};
  if (F == kFQ4_K || F == kFQ5_K) {
    s.d = vmulq_f32(s.d, byte_floats(vld1q_u8(block), r));
    s.m = vmulq_f32(s.m, byte_floats(vld1q_u8(block + 16), r));
  }
  if (F == kFQ6_K) {  // signed bytes: as unsigned ones with offset 128
    uint8x16_t flip = vdupq_n_u8(0x80);
    float32x4_t offset = vdupq_n_f32(128.0f);
    s.s0 = vsubq_f32(byte_floats(veorq_u8(vld1q_u8(block), flip), r), offset);
    s.s1 = vsubq_f32(byte_floats(veorq_u8(vld1q_u8(block + 16), flip), r), offset);
  }
  return s;
}

// Columns: activation rows that are taken at once; tile: that X holds.
template <int F, int columns, int tile, class X>
TK_INLINE void qdot(const uint8_t* panel, const X* x, int64_t blocks, float* out) {
  using P = Panel<F>;
  float32x4_t acc[4][columns];
  for (int r = 0; r < 4; ++r)
    for (int c = 0; c < columns; ++c) acc[r][c] = vdupq_n_f32(0);
  for (int64_t b = 0; b < blocks; b += P::blocks, panel += P::bytes) {
    Heads<F> heads = load_heads<F>(panel);
    for (int sub = 0; sub < P::blocks; ++sub, ++x) {
      const uint8_t* block = panel + P::head + sub * P::block_bytes;
      const float *scale = reinterpret_cast<const float*>(x), *sum = scale + tile;
      float32x4_t factors[columns];
      for (int c = 0; c < columns; ++c) factors[c] = vdupq_n_f32(scale[c] * P::factor);
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        int8x16_t lo[4], hi[4];
#pragma GCC unroll 4
        for (int g = 0; g < 4; ++g) {
          load_values<F>(block + P::scales, g * 4 + r, lo[g], hi[g]);
          if (P::offset) {
            lo[g] = vsubq_s8(lo[g], vdupq_n_s8(P::offset));
            hi[g] = vsubq_s8(hi[g], vdupq_n_s8(P::offset));
          }
        }
        int32x4_t dot[columns], second[columns];  // second: k >= 16 with a scale of its own
        for (int c = 0; c < columns; ++c) dot[c] = second[c] = magic_start();
        dot_half<columns>(lo, x->q, dot);
        dot_half<columns>(hi, x->q + 16, P::halves ? second : dot);
        RowScales s = row_scales<F>(heads, block, r);
#pragma GCC unroll 4
        for (int c = 0; c < columns; ++c) {
          float32x4_t v = magic_value(dot[c]);
          if (P::halves) v = vfmaq_f32(vmulq_f32(v, s.s0), magic_value(second[c]), s.s1);
          acc[r][c] = vfmaq_f32(acc[r][c], v, vmulq_f32(s.d, factors[c]));
          if (P::minimum) acc[r][c] = vfmaq_n_f32(acc[r][c], s.m, sum[c]);
        }
      }
    }
  }
  for (int c = 0; c < columns; ++c)
    for (int r = 0; r < 4; ++r) vst1q_f32(out + c * kPanel + 4 * r, acc[r][c]);
}

template <int F>
void qdot1(const uint8_t* panel, const XBlock1* x, int64_t blocks, float* out) {
  qdot<F, 1, 1>(panel, x, blocks, out);
}
template <int F>
void qdot4(const uint8_t* panel, const XBlock4* x, int64_t blocks, int rows, float* out) {
  if (rows == 2) return qdot<F, 2, 4>(panel, x, blocks, out);
  if (rows == 3) return qdot<F, 3, 4>(panel, x, blocks, out);
  qdot<F, 4, 4>(panel, x, blocks, out);
}

template <int F>
void fill_q(tokamak::cpu::KernelTable& t) {
  if constexpr (F < tokamak::cpu::kQFormats) {
    t.qdot1[F] = qdot1<F>;
    t.qdot4[F] = qdot4<F>;
    t.qwiden[F] = qwiden<F>;
    t.qwide[F] = qwide<F>;
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
