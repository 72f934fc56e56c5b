// aarch64 with the dot-product instructions. A vector of weights is 4 rows x 4 values of k; sdot
// takes four values of an activation row from a lane.
#include "backend/cpu/simd_neon.h"

#include "backend/cpu/vec_kernels.inc"

namespace {
constexpr bool kRowNibbles = true;
}

#include "backend/cpu/qpanel_neon.inc"

#include "backend/cpu/qwide_neon.inc"

#include "backend/cpu/qfew_neon.inc"

#include "backend/cpu/qmany_neon.inc"

#include "backend/cpu/hdot_neon.inc"

namespace {

// d and m of a super-block as f32; of q4_k and q5_k also what row_scales starts from.
template <int F>
struct Heads {
  float32x4_t d[4], m[4], d_start[4], m_start[4];
};
template <int F>
TK_INLINE Heads<F> load_heads(const uint8_t* super) {
  Heads<F> h;
  using P = Panel<F>;
  load_d<F>(super, h.d);
  if (P::zeros)
    load_zeros(super, h.d, h.m);
  else if (P::head == 64)
    load_half16(super + 32, h.m);
  if (P::half_minimums)
    for (int r = 0; r < 4; ++r) h.m[r] = vnegq_f32(h.m[r]);
  if (P::scaled_minimums)
    for (int r = 0; r < 4; ++r) {
      h.m[r] = vnegq_f32(h.m[r]);
      h.d_start[r] = vmulq_n_f32(h.d[r], -8388608.0f);
      h.m_start[r] = vmulq_n_f32(h.m[r], -8388608.0f);
    }
  return h;
}

// The bits of 2^23 + byte as floats.
TK_INLINE void spread_bytes(uint8x16_t v, float32x4_t* out) {
  uint8x16_t zero = vdupq_n_u8(0);
  uint16x8_t lo = vreinterpretq_u16_u8(vzip1q_u8(v, zero));
  uint16x8_t hi = vreinterpretq_u16_u8(vzip2q_u8(v, zero)), top = vdupq_n_u16(0x4b00);
  out[0] = vreinterpretq_f32_u16(vzip1q_u16(lo, top));
  out[1] = vreinterpretq_f32_u16(vzip2q_u16(lo, top));
  out[2] = vreinterpretq_f32_u16(vzip1q_u16(hi, top));
  out[3] = vreinterpretq_f32_u16(vzip2q_u16(hi, top));
}

// The scales of a block, spread; signed ones plus 128. m0, m1: the minimums of halves.
template <int F>
struct BlockScales {
  float32x4_t s0[4], s1[4], m0[4], m1[4];
};
template <int F>
TK_INLINE BlockScales<F> load_block_scales(const uint8_t* block) {
  using P = Panel<F>;
  BlockScales<F> s;
  uint8x16_t flip = vdupq_n_u8(P::signed_scales ? 0x80 : 0), v[2];
  for (int i = 0; i < P::scales / 16; ++i) v[i] = veorq_u8(vld1q_u8(block + 16 * i), flip);
  if (P::half_minimums) {
    spread_bytes(vshrq_n_u8(v[0], 4), s.m0);
    spread_bytes(vshrq_n_u8(v[1], 4), s.m1);
    for (uint8x16_t& scales : v) scales = vandq_u8(scales, vdupq_n_u8(15));
  }
  if (P::scales) spread_bytes(v[0], s.s0);
  if (P::scales > 16) spread_bytes(v[1], s.s1);
  return s;
}

// The scales of rows 4 r .. 4 r + 3 for one block. d * (2^23 + byte) - d * 2^23 is rounded once:
// it is d * byte.
struct RowScales {
  float32x4_t d, m, s0, s1, m0, m1;  // s0, s1, m0, m1: of halves
};
template <int F>
TK_INLINE RowScales row_scales(const Heads<F>& h, const BlockScales<F>& b, int r) {
  using P = Panel<F>;
  RowScales s{h.d[r], h.m[r], h.d[r], h.d[r], h.d[r], h.d[r]};
  if (P::scaled_minimums) {
    s.d = vfmaq_f32(h.d_start[r], h.d[r], b.s0[r]);
    s.m = vfmaq_f32(h.m_start[r], h.m[r], b.s1[r]);
    return s;
  }
  float32x4_t zero = vdupq_n_f32(P::signed_scales ? 8388736.0f : 8388608.0f);
  if (P::scales) s.s0 = vsubq_f32(b.s0[r], zero);
  if (P::scales && !P::halves) s.d = vmulq_f32(s.d, s.s0);
  if (P::halves) s.s1 = vsubq_f32(b.s1[r], zero);
  if (P::half_minimums) {
    s.m0 = vsubq_f32(b.m0[r], zero);
    s.m1 = vsubq_f32(b.m1[r], zero);
  }
  return s;
}

}  // namespace

#include "backend/cpu/qpairs_neon.inc"

namespace {

// Where the sum of one activation row starts: at minus the weights' offset times the row's sum.
template <int F>
TK_INLINE int32x4_t start_sum(int32_t sum) {
  return Panel<F>::offset ? vdupq_n_s32(kMagic[0] - Panel<F>::offset * sum) : magic_start();
}

// columns: activation rows that are multiplied at once; tile: activation rows that X holds. Rows 4
// first .. 4 last - 1 of the panel, 4 * group of them scaled together: out += .
template <int F, int columns, int tile, int first, int last, class X>
TK_INLINE void qdot_rows(const uint8_t* panel, const X* x, int64_t blocks, float* out) {
  using P = Panel<F>;
  constexpr int group = 2;
  float32x4_t acc[4][columns];
  for (int r = first; r < last; ++r)
    for (int c = 0; c < columns; ++c) acc[r][c] = vld1q_f32(out + c * kPanel + 4 * r);
  for (int64_t b = 0; b < blocks; b += P::blocks, panel += P::bytes) {
    Heads<F> heads = load_heads<F>(panel);
    for (int sub = 0; sub < P::blocks; ++sub, ++x) {
      const uint8_t* block = panel + P::head + sub * P::block_bytes;
      BlockScales<F> scales = load_block_scales<F>(block);
      const float *scale = reinterpret_cast<const float*>(x), *sum = scale + tile;
      const auto* isum = reinterpret_cast<const int32_t*>(sum + tile);
      float32x4_t factors[columns];
      for (int c = 0; c < columns; ++c) factors[c] = vdupq_n_f32(scale[c] * P::factor);
#pragma GCC unroll 4
      for (int r0 = first; r0 < last; r0 += group) {
        int32x4_t dot[group][columns], second[group][columns];  // second: k >= 16 of halves
#pragma GCC unroll 4
        for (int r = 0; r < group; ++r) {
          int8x16_t lo[4], hi[4];
#pragma GCC unroll 4
          for (int g = 0; g < 4; ++g)
            load_values<F>(block + P::scales, g * 4 + r0 + r, lo[g], hi[g]);
#pragma GCC unroll 4
          for (int c = 0; c < columns; ++c) {
            dot[r][c] = start_sum<F>(isum[c] + (P::halves ? 0 : isum[tile + c]));
            if (P::halves) second[r][c] = start_sum<F>(isum[tile + c]);
          }
          dot_half<columns>(lo, x->q, dot[r]);
          dot_half<columns>(hi, x->q + 16, P::halves ? second[r] : dot[r]);
        }
#pragma GCC unroll 4
        for (int r = 0; r < group; ++r) {
          RowScales s = row_scales<F>(heads, scales, r0 + r);
#pragma GCC unroll 4
          for (int c = 0; c < columns; ++c) {
            float32x4_t v = magic_value(dot[r][c]);
            if (P::halves) v = vfmaq_f32(vmulq_f32(v, s.s0), magic_value(second[r][c]), s.s1);
            float32x4_t& to = acc[r0 + r][c];
            to = vfmaq_f32(to, v, vmulq_f32(s.d, factors[c]));
            if (P::minimum) to = vfmaq_n_f32(to, s.m, sum[c]);
            if (P::half_minimums) {
              float32x4_t less = vmulq_n_f32(s.m0, static_cast<float>(isum[c]));
              less = vfmaq_n_f32(less, s.m1, static_cast<float>(isum[tile + c]));
              to = vfmaq_f32(to, less, vmulq_n_f32(s.m, scale[c]));
            }
          }
        }
      }
    }
  }
  for (int c = 0; c < columns; ++c)
    for (int r = first; r < last; ++r) vst1q_f32(out + c * kPanel + 4 * r, acc[r][c]);
}

// Three and more columns take the panel in two halves: the sums of all rows would not fit the
// registers.
template <int F, int columns, int tile, class X>
TK_INLINE void qdot(const uint8_t* panel, const X* x, int64_t blocks, float* out) {
  if (columns < 3) return qdot_rows<F, columns, tile, 0, 4>(panel, x, blocks, out);
  qdot_rows<F, columns, tile, 0, 2>(panel, x, blocks, out);
  qdot_rows<F, columns, tile, 2, 4>(panel, x, blocks, out);
}

// One row: sums[kPanel] += . Not inlined: compilers spill the sums of two calls.
template <int F>
__attribute__((noinline)) void qdot_single(const uint8_t* panel, const XBlock1* x, int64_t blocks,
                                           float* sums) {
  if constexpr (kNibbles<F>)
    add_pairs<F, 1>(panel, x, 0, blocks, sums);
  else
    qdot<F, 1, 1>(panel, x, blocks, sums);
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

// Without scales that are prepared: up to four rows.
template <int F>
void qdot_tile(const uint8_t* panel, const XBlock4* x, int64_t blocks, int rows, float* out) {
  for (int i = 0; i < kTile * kPanel; ++i) out[i] = 0;
  if (rows == 2) return qdot<F, 2, 4>(panel, x, blocks, out);
  if (rows == 3) return qdot<F, 3, 4>(panel, x, blocks, out);
  qdot<F, 4, 4>(panel, x, blocks, out);
}

template <int F, int rows>
void qdot_few(const uint8_t* panel, const XBlock4* x, int64_t blocks, float* out) {
  if constexpr (kNibbles<F>)
    qpairs<F, rows>(panel, x, blocks, out);
  else
    qfew<F, rows>(panel, x, blocks, out);
}

template <int F>
void qdot4(const uint8_t* panel, const XBlock4* x, int64_t blocks, int rows, float* out) {
  if constexpr (kFewRows<F>) {
    if (rows == 1) return qdot_few<F, 1>(panel, x, blocks, out);
    if (rows == 2) return qdot_few<F, 2>(panel, x, blocks, out);
    if (rows == 3) return qdot_few<F, 3>(panel, x, blocks, out);
    if (rows == 4) return qdot_few<F, 4>(panel, x, blocks, out);
    if (rows == 5) return qdot_few<F, 5>(panel, x, blocks, out);
    if (rows == 6) return qdot_few<F, 6>(panel, x, blocks, out);
    if (rows == 7) return qdot_few<F, 7>(panel, x, blocks, out);
    return qdot_few<F, 8>(panel, x, blocks, out);
  } else {
    qdot_tile<F>(panel, x, blocks, rows, out);
    if (rows > kTile) qdot_tile<F>(panel, x + blocks, blocks, rows - kTile, out + kTile * kPanel);
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
    t.wide_rows[F] = !kFewRows<F> ? 4 : Panel<F>::bytes8 ? 24 : Panel<F>::minimum ? 12 : 16;
    fill_q<F + 1>(t);
  }
}

}  // namespace

namespace tokamak::cpu {

const KernelTable* neon_table() {
  static const KernelTable table = [] {
    KernelTable t{};
    t.name = "neon";
    t.style = {4, 16, 0, 0, false, true};
    t.wide_panels = 1;
    fill_vector_kernels<false>(t);
    t.wide_group = 8;
    t.few_rows = kMostFewRows;
    t.hdot1x4 = hdot1x4;
    fill_q<0>(t);
    return t;
  }();
  return &table;
}

}  // namespace tokamak::cpu
