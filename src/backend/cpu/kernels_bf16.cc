// aarch64 with the bf16 and int8 matrix instructions: the level of kernels_i8mm.cc, with bf16
// panels multiplied by bfmmla. A float of an activation row becomes two bf16 numbers, its rounded
// value and what rounding left; bfmmla multiplies 2 rows x 4 values of k with both at once, giving
// a 2 x 2 tile of sums that are added at the end. Activations that are bf16 numbers already come in
// pairs of rows in the place of the two.
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "backend/cpu/kernel_table.h"

#define TK_INLINE static inline __attribute__((always_inline))

namespace {

using tokamak::cpu::kPanel;
using tokamak::cpu::kTile;

constexpr int kPairs = kPanel / 2;  // row pairs of a panel

TK_INLINE bfloat16x8_t load8(const uint16_t* p) { return vreinterpretq_bf16_u16(vld1q_u16(p)); }

// [k / 4][4 rounded values, 4 rests]; k is padded with zeros. A rest of infinity is zero.
void split(const float* x, int64_t k, uint16_t* out) {
  const float32x4_t infinity = vreinterpretq_f32_u32(vdupq_n_u32(0x7f800000));
  for (int64_t i = 0; i < k; i += 4, out += 8) {
    float values[4] = {};
    memcpy(values, x + i, static_cast<size_t>(k - i < 4 ? k - i : 4) * 4);
    float32x4_t v = vld1q_f32(values);
    bfloat16x4_t high = vcvt_bf16_f32(v);
    float32x4_t rounded = vcvt_f32_bf16(high);
    uint32x4_t finite = vcaltq_f32(rounded, infinity);
    float32x4_t rest =
        vreinterpretq_f32_u32(vandq_u32(finite, vreinterpretq_u32_f32(vsubq_f32(v, rounded))));
    vst1_bf16(reinterpret_cast<bfloat16_t*>(out), high);
    vst1_bf16(reinterpret_cast<bfloat16_t*>(out + 4), vcvt_bf16_f32(rest));
  }
}

// Eight rows of a panel at four values of k, 16 values apart -> four row pairs.
TK_INLINE void pairs_of(const uint16_t* w, bfloat16x8_t* out) {
  uint16x8_t a = vld1q_u16(w), b = vld1q_u16(w + kPanel), c = vld1q_u16(w + 2 * kPanel),
             d = vld1q_u16(w + 3 * kPanel);
  uint32x4_t ab0 = vreinterpretq_u32_u16(vzip1q_u16(a, b)),
             ab1 = vreinterpretq_u32_u16(vzip2q_u16(a, b)),
             cd0 = vreinterpretq_u32_u16(vzip1q_u16(c, d)),
             cd1 = vreinterpretq_u32_u16(vzip2q_u16(c, d));
  out[0] = vreinterpretq_bf16_u32(vzip1q_u32(ab0, cd0));
  out[1] = vreinterpretq_bf16_u32(vzip2q_u32(ab0, cd0));
  out[2] = vreinterpretq_bf16_u32(vzip1q_u32(ab1, cd1));
  out[3] = vreinterpretq_bf16_u32(vzip2q_u32(ab1, cd1));
}

TK_INLINE void add_group(const uint16_t* w, bfloat16x8_t x, float32x4_t* acc) {
  bfloat16x8_t v[kPairs];
  pairs_of(w, v);
  pairs_of(w + 8, v + 4);
#pragma GCC unroll 8
  for (int p = 0; p < kPairs; ++p) acc[p] = vbfmmlaq_f32(acc[p], v[p], x);
}
TK_INLINE void join(const float32x4_t* acc, float* out) {
  for (int p = 0; p < kPairs; p += 2) vst1q_f32(out + 2 * p, vpaddq_f32(acc[p], acc[p + 1]));
}

// The last values of k, padded with zeros.
struct Tail {
  uint16_t w[4 * kPanel] = {};
  Tail(const uint16_t* panel, int64_t k) {
    memcpy(w, panel + (k - k % 4) * kPanel, static_cast<size_t>(k % 4 * kPanel) * 2);
  }
};

// Two panels that are far apart with one row: out[2][kPanel].
void dot1x2(const void* panel, const void* other, const uint16_t* x, int64_t k, float* out) {
  const auto *w = static_cast<const uint16_t*>(panel), *v = static_cast<const uint16_t*>(other);
  float32x4_t a[kPairs], b[kPairs];
  for (int p = 0; p < kPairs; ++p) a[p] = b[p] = vdupq_n_f32(0);
  int64_t i = 0;
  for (; i + 4 <= k; i += 4, x += 8) {
    bfloat16x8_t terms = load8(x);
    add_group(w + i * kPanel, terms, a);
    add_group(v + i * kPanel, terms, b);
  }
  if (i < k) {
    add_group(Tail(w, k).w, load8(x), a);
    add_group(Tail(v, k).w, load8(x), b);
  }
  join(a, out);
  join(b, out + kPanel);
}

// A part of a panel in the order of dot_rows: [k / 4][8 row pairs][2 rows][4 values].
void spread(const void* panel, int64_t k, uint16_t* out) {
  const auto* w = static_cast<const uint16_t*>(panel);
  auto group = [&](const uint16_t* from) {
    bfloat16x8_t v[kPairs];
    pairs_of(from, v);
    pairs_of(from + 8, v + 4);
    for (int p = 0; p < kPairs; ++p, out += 8) vst1q_u16(out, vreinterpretq_u16_bf16(v[p]));
  };
  int64_t i = 0;
  for (; i + 4 <= k; i += 4) group(w + i * kPanel);
  if (i < k) group(Tail(w, k).w);
}

// Registers: v0-7, v8-15, v16-23 the sums of the three rows; v24-26 their terms; v27-30 row pairs.
// Assembly because compilers load all row pairs first and then lack registers for the sums. C1, C2:
// TK_YES or TK_NO, for a second and a third row.
#define TK_YES(...) __VA_ARGS__
#define TK_NO(...)
#define TK_PAIR(C1, C2, w, a, b, c)                                                       \
  "bfmmla v" #a ".4s, v" #w ".8h, v24.8h\n" C1("bfmmla v" #b ".4s, v" #w ".8h, v25.8h\n") \
      C2("bfmmla v" #c ".4s, v" #w ".8h, v26.8h\n")
#define TK_MOVE(OP, to, a, b, c, d, e, f, g, h)                                                  \
  OP " q" #a ", q" #b ", [" to "]\n" OP " q" #c ", q" #d ", [" to ", #32]\n" OP " q" #e ", q" #f \
     ", [" to ", #64]\n" OP " q" #g ", q" #h ", [" to ", #96]\n"
#define TK_MOVE_SUMS(OP, C1, C2)                      \
  TK_MOVE(OP, "%[s]", 0, 1, 2, 3, 4, 5, 6, 7)         \
  C1(TK_MOVE(OP, "x4", 8, 9, 10, 11, 12, 13, 14, 15)) \
  C2(TK_MOVE(OP, "x5", 16, 17, 18, 19, 20, 21, 22, 23))
#define TK_LOOP(C1, C2) \
  asm volatile(                                                       \
      "mov x0, %[w]\nmov x1, %[x]\nadd x2, x1, %[stride]\nadd x3, x2, %[stride]\nmov x6, %[n]\n" \
      "add x4, %[s], #128\nadd x5, %[s], #256\n" TK_MOVE_SUMS("ldp", C1, C2)                     \
      "1:\nldr q24, [x1], #16\n" C1("ldr q25, [x2], #16\n") C2("ldr q26, [x3], #16\n")           \
      "ldp q27, q28, [x0]\n" TK_PAIR(C1, C2, 27, 0, 8, 16) "ldp q29, q30, [x0, #32]\n"           \
      TK_PAIR(C1, C2, 28, 1, 9, 17) TK_PAIR(C1, C2, 29, 2, 10, 18)                               \
      "ldp q27, q28, [x0, #64]\n" TK_PAIR(C1, C2, 30, 3, 11, 19)                                 \
      TK_PAIR(C1, C2, 27, 4, 12, 20) "ldp q29, q30, [x0, #96]\n"                                 \
      TK_PAIR(C1, C2, 28, 5, 13, 21) "add x0, x0, #128\n"                                        \
      TK_PAIR(C1, C2, 29, 6, 14, 22) "subs x6, x6, #1\n"                                         \
      TK_PAIR(C1, C2, 30, 7, 15, 23) "b.ne 1b\n" TK_MOVE_SUMS("stp", C1, C2)                     \
      :                                                                                          \
      : [w] "r"(w), [x] "r"(x), [stride] "r"(2 * stride), [n] "r"(groups), [s] "r"(sums)         \
      : "x0", "x1", "x2", "x3", "x4", "x5", "x6", "cc", "memory", "v0", "v1", "v2", "v3", "v4",  \
        "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17",    \
        "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30")

// Up to three rows, `stride` numbers apart.
template <int rows>
TK_INLINE void multiply_rows(const uint16_t* w, const uint16_t* x, int64_t stride, int64_t groups,
                             float* sums) {
  if (groups == 0) return;
  if constexpr (rows == 1) {
    TK_LOOP(TK_NO, TK_NO);
  } else if constexpr (rows == 2) {
    TK_LOOP(TK_YES, TK_NO);
  } else {
    TK_LOOP(TK_YES, TK_YES);
  }
}
#undef TK_YES
#undef TK_NO
#undef TK_PAIR
#undef TK_MOVE
#undef TK_MOVE_SUMS
#undef TK_LOOP

// sums[rows][kPairs][2 x 2] += ; rows of x are `stride` numbers apart.
void dot_rows(const uint16_t* w, const uint16_t* x, int64_t stride, int64_t rows, int64_t k,
              float* sums) {
  int64_t groups = (k + 3) / 4;
  for (; rows >= 3; rows -= 3, x += 3 * stride, sums += 6 * kPanel)
    multiply_rows<3>(w, x, stride, groups, sums);
  if (rows == 2) multiply_rows<2>(w, x, stride, groups, sums);
  if (rows == 1) multiply_rows<1>(w, x, stride, groups, sums);
}

void join_rows(const float* sums, int64_t rows, float* out) {
  for (; rows > 0; --rows, sums += 2 * kPanel, out += kPanel) {
    float32x4_t acc[kPairs];
    for (int p = 0; p < kPairs; ++p) acc[p] = vld1q_f32(sums + 4 * p);
    join(acc, out);
  }
}

// Rows that are bf16 numbers.

constexpr int64_t kGroup = 4;  // of k

// Two pairs of rows: [k / 4][4 values of one, 4 of the other]; what is absent is zero.
void pack(const uint16_t* x, int64_t n, int64_t k, uint16_t* out) {
  for (int64_t r = 0; r < n; r += 2) {
    const uint16_t *a = x + r * k, *b = r + 1 < n ? a + k : nullptr;
    int64_t i = 0;
    for (; i + kGroup <= k; i += kGroup, out += 2 * kGroup)
      vst1q_u16(out, vcombine_u16(vld1_u16(a + i), b ? vld1_u16(b + i) : vdup_n_u16(0)));
    if (i == k) continue;
    memset(out, 0, 2 * kGroup * 2);
    memcpy(out, a + i, static_cast<size_t>(k - i) * 2);
    if (b) memcpy(out + kGroup, b + i, static_cast<size_t>(k - i) * 2);
    out += 2 * kGroup;
  }
}

void dot_tiles(const uint16_t* w, const uint16_t* x, int64_t stride, int64_t at, int64_t rows,
               int64_t k, float* sums) {
  dot_rows(w, x + 2 * at, stride / 2, (rows + 1) / 2, k, sums);
}

// sums[rows / 2][kPairs][2 x 2] -> out[row][kPanel], and one row more where they are odd.
void part(const float* sums, int64_t rows, float* out) {
  for (; rows > 0; rows -= 2, sums += 2 * kPanel, out += 2 * kPanel)
    for (int p = 0; p < kPairs; p += 2) {
      float32x4_t a = vld1q_f32(sums + 4 * p), b = vld1q_f32(sums + 4 * p + 4);
      vst1q_f32(out + 2 * p, vuzp1q_f32(a, b));
      vst1q_f32(out + kPanel + 2 * p, vuzp2q_f32(a, b));
    }
}

// A panel at two values of k with two values of x. bfmmla takes these steps twice, in this order.
template <int lane>
TK_INLINE void add_two(const uint16_t* w, bfloat16x8_t x, float32x4_t* acc) {
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    uint16x8_t a = vld1q_u16(w + 8 * h), b = vld1q_u16(w + kPanel + 8 * h);
    acc[2 * h] = vbfdotq_laneq_f32(acc[2 * h], vreinterpretq_bf16_u16(vzip1q_u16(a, b)), x, lane);
    acc[2 * h + 1] =
        vbfdotq_laneq_f32(acc[2 * h + 1], vreinterpretq_bf16_u16(vzip2q_u16(a, b)), x, lane);
  }
}
TK_INLINE void add_eight(const uint16_t* w, bfloat16x8_t x, float32x4_t* acc) {
  add_two<0>(w, x, acc);
  add_two<1>(w + 2 * kPanel, x, acc);
  add_two<2>(w + 4 * kPanel, x, acc);
  add_two<3>(w + 6 * kPanel, x, acc);
}

void dot_row(const void* panel, const void* other, const uint16_t* x, int64_t k, float* out) {
  const auto *w = static_cast<const uint16_t*>(panel), *v = static_cast<const uint16_t*>(other);
  float32x4_t a[4], b[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) a[i] = b[i] = vdupq_n_f32(0);
  int64_t i = 0;
  for (; i + 8 <= k; i += 8) {
    bfloat16x8_t eight = load8(x + i);
    add_eight(w + i * kPanel, eight, a);
    add_eight(v + i * kPanel, eight, b);
  }
  if (i < k) {  // padded with zeros
    uint16_t rest[8] = {}, first[8 * kPanel] = {}, second[8 * kPanel] = {};
    auto n = static_cast<size_t>(k - i) * 2;
    memcpy(rest, x + i, n);
    memcpy(first, w + i * kPanel, n * kPanel);
    memcpy(second, v + i * kPanel, n * kPanel);
    add_eight(first, load8(rest), a);
    add_eight(second, load8(rest), b);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    vst1q_f32(out + 4 * j, a[j]);
    vst1q_f32(out + kPanel + 4 * j, b[j]);
  }
}

// The same for up to four packed rows: sums[row][kPanel] +=. The panel is brought to
// pairs of k once.
template <int rows>
void dot_few_rows(const uint16_t* w, const uint16_t* x, int64_t stride, int64_t k, float* sums) {
  float32x4_t acc[rows][4];
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) acc[r][j] = vld1q_f32(sums + r * kPanel + 4 * j);
  auto add_four = [&](const uint16_t* from) {
    bfloat16x8_t a = load8(x), b = rows > 2 ? load8(x + stride) : a;
#pragma GCC unroll 2
    for (int two = 0; two < 2; ++two, from += 2 * kPanel) {
      bfloat16x8_t v[4];
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        uint16x8_t p = vld1q_u16(from + 8 * h), q = vld1q_u16(from + kPanel + 8 * h);
        v[2 * h] = vreinterpretq_bf16_u16(vzip1q_u16(p, q));
        v[2 * h + 1] = vreinterpretq_bf16_u16(vzip2q_u16(p, q));
      }
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        acc[0][j] = two == 0 ? vbfdotq_laneq_f32(acc[0][j], v[j], a, 0)
                             : vbfdotq_laneq_f32(acc[0][j], v[j], a, 1);
        if constexpr (rows > 1)
          acc[1][j] = two == 0 ? vbfdotq_laneq_f32(acc[1][j], v[j], a, 2)
                               : vbfdotq_laneq_f32(acc[1][j], v[j], a, 3);
        if constexpr (rows > 2)
          acc[2][j] = two == 0 ? vbfdotq_laneq_f32(acc[2][j], v[j], b, 0)
                               : vbfdotq_laneq_f32(acc[2][j], v[j], b, 1);
        if constexpr (rows > 3)
          acc[3][j] = two == 0 ? vbfdotq_laneq_f32(acc[3][j], v[j], b, 2)
                               : vbfdotq_laneq_f32(acc[3][j], v[j], b, 3);
      }
    }
  };
  int64_t i = 0;
  for (; i + kGroup <= k; i += kGroup, x += 2 * kGroup) add_four(w + i * kPanel);
  if (i < k) add_four(Tail(w, k).w);
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) vst1q_f32(sums + r * kPanel + 4 * j, acc[r][j]);
}

void dot_few(const void* panel, const uint16_t* x, int64_t stride, int64_t at, int64_t rows,
             int64_t k, float* sums) {
  const auto* w = static_cast<const uint16_t*>(panel);
  for (x += 2 * at; rows > 0; rows -= kTile, x += stride, sums += kTile * kPanel) {
    if (rows == 1) dot_few_rows<1>(w, x, stride / 2, k, sums);
    if (rows == 2) dot_few_rows<2>(w, x, stride / 2, k, sums);
    if (rows == 3) dot_few_rows<3>(w, x, stride / 2, k, sums);
    if (rows >= 4) dot_few_rows<4>(w, x, stride / 2, k, sums);
  }
}

// One row with panels of f16 by fmlal, which multiplies halves without converting them: the product
// of a half and a bf16 number of a half's range is exact, so every sum has the bits of fmla.

// The power of two that brings all of x into a half without loss; 0: there is none.
float half_scale(const float* x, int64_t k) {
  uint32x4_t all = vdupq_n_u32(0), high = all, small = vdupq_n_u32(0x7fffffff);
  auto look = [&](uint32x4_t bits) {
    uint32x4_t size = vshlq_n_u32(bits, 1);  // without the sign; one less makes zero the largest
    all = vorrq_u32(all, bits);
    high = vmaxq_u32(high, size);
    small = vminq_u32(small, vshrq_n_u32(vsubq_u32(size, vdupq_n_u32(1)), 1));
  };
  int64_t i = 0;
  for (; i + 4 <= k; i += 4) look(vreinterpretq_u32_f32(vld1q_f32(x + i)));
  for (; i < k; ++i) look(vreinterpretq_u32_f32(vld1q_dup_f32(x + i)));
  uint32_t most = vmaxvq_u32(high) >> 1, least = vminvq_u32(small) + 1;
  uint32_t low = vgetq_lane_u32(all, 0) | vgetq_lane_u32(all, 1) | vgetq_lane_u32(all, 2) |
                 vgetq_lane_u32(all, 3);
  int top = static_cast<int>(most >> 23) - 127, bottom = static_cast<int>(least >> 23) - 127;
  if (most == 0) return 1;
  // A half has numbers below 2^16, and eight bits of one from 2^-17 on.
  if ((low & 0xffff) != 0 || top > 60 || top < -60 || bottom < top - 32) return 0;
  uint32_t scale = static_cast<uint32_t>(127 + 15 - top) << 23;
  float f;
  memcpy(&f, &scale, 4);
  return f;
}

template <int lane>
TK_INLINE void add_halves(const float16_t* const* w, int64_t at, float16x8_t x,
                          float32x4_t (*acc)[4]) {
#pragma GCC unroll 4
  for (int p = 0; p < 4; ++p) {
    float16x8_t a = vld1q_f16(w[p] + at), b = vld1q_f16(w[p] + at + 8);
    acc[p][0] = vfmlalq_laneq_low_f16(acc[p][0], a, x, lane);
    acc[p][1] = vfmlalq_laneq_high_f16(acc[p][1], a, x, lane);
    acc[p][2] = vfmlalq_laneq_low_f16(acc[p][2], b, x, lane);
    acc[p][3] = vfmlalq_laneq_high_f16(acc[p][3], b, x, lane);
  }
}

bool half_dot1x4(const void* panel, int64_t stride, const float* x, int64_t k, float* out) {
  float scale = half_scale(x, k);
  if (scale == 0) return tokamak::cpu::i8mm_table()->hdot1x4(panel, stride, x, k, out);
  const float16_t* w[4];
  float32x4_t acc[4][4];
#pragma GCC unroll 4
  for (int p = 0; p < 4; ++p) {
    w[p] = reinterpret_cast<const float16_t*>(static_cast<const uint8_t*>(panel) + p * stride);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) acc[p][i] = vmulq_n_f32(vld1q_f32(out + p * kPanel + 4 * i), scale);
  }
  int64_t i = 0;
  for (; i + 8 <= k; i += 8) {
    float16x8_t eight = vcvt_high_f16_f32(vcvt_f16_f32(vmulq_n_f32(vld1q_f32(x + i), scale)),
                                          vmulq_n_f32(vld1q_f32(x + i + 4), scale));
    int64_t at = i * kPanel;
    add_halves<0>(w, at, eight, acc);
    add_halves<1>(w, at + kPanel, eight, acc);
    add_halves<2>(w, at + 2 * kPanel, eight, acc);
    add_halves<3>(w, at + 3 * kPanel, eight, acc);
    add_halves<4>(w, at + 4 * kPanel, eight, acc);
    add_halves<5>(w, at + 5 * kPanel, eight, acc);
    add_halves<6>(w, at + 6 * kPanel, eight, acc);
    add_halves<7>(w, at + 7 * kPanel, eight, acc);
  }
  for (; i < k; ++i) {
    float16x4_t one = vcvt_f16_f32(vdupq_n_f32(x[i] * scale));
    add_halves<0>(w, i * kPanel, vcombine_f16(one, one), acc);
  }
#pragma GCC unroll 4
  for (int p = 0; p < 4; ++p)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
      vst1q_f32(out + p * kPanel + 4 * j, vmulq_n_f32(acc[p][j], 1 / scale));
  return true;
}

}  // namespace

namespace tokamak::cpu {

const KernelTable* bf16_table() {
  static const KernelTable table = [] {
    KernelTable t = *i8mm_table();
    t.name = "bf16";
    t.bf16_split = split;
    t.bf16_dot1x2 = dot1x2;
    t.bf16_spread = spread;
    t.bf16_rows = dot_rows;
    t.bf16_join = join_rows;
    t.hdot1x4 = half_dot1x4;
    t.rounded[static_cast<int>(FType::kBF16)] = {dot_row, dot_few, spread, dot_tiles};
    t.bf16_group = kGroup;
    t.bf16_pack = pack;
    t.bf16_part = part;
    return t;
  }();
  return &table;
}

}  // namespace tokamak::cpu
