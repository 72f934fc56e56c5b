// aarch64 with the bf16 and int8 matrix instructions: the level of kernels_i8mm.cc, with bf16
// panels multiplied by bfmmla. A float of an activation row becomes two bf16 numbers, its rounded
// value and what rounding left; bfmmla multiplies 2 rows x 4 values of k with both at once, giving
// a 2 x 2 tile of sums that are added at the end.
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "backend/cpu/kernel_table.h"

#define TK_INLINE static inline __attribute__((always_inline))

namespace {

using tokamak::cpu::kPanel;

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
    return t;
  }();
  return &table;
}

}  // namespace tokamak::cpu
