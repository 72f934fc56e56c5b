// The scalar level: plain C++, always there, and what the other levels are compared with bit for
// bit.
#include "backend/cpu/simd_scalar.h"

#include "backend/cpu/vec_kernels.inc"

namespace {

// Bytes per super-block of 16 rows and where its parts lie (pack.h).
struct Shape {
  int blocks, head, scales, low, high, offset;
  bool minimum, zero = false;  // zero: instead of a minimum the head has zero points
};
constexpr Shape kShapes[tokamak::cpu::kQFormats] = {
    {1, 32, 0, 256, 0, 8, false},       // q4_0
    {1, 64, 0, 256, 0, 0, true},        // q4_1
    {1, 32, 0, 512, 0, 0, false},       // q8_0
    {8, 64, 32, 256, 0, 0, true},       // q4_k
    {8, 32, 32, 256, 128, 32, false},   // q6_k
    {1, 32, 0, 256, 64, 16, false},     // q5_0
    {1, 64, 0, 256, 64, 0, true},       // q5_1
    {8, 64, 32, 256, 64, 0, true},      // q5_k
    {1, 48, 0, 256, 0, 0, true, true},  // int4_g32
    {2, 48, 0, 256, 0, 0, true, true},  // int4_g64
    {4, 48, 0, 256, 0, 0, true, true},  // int4_g128
    {4, 48, 0, 512, 0, 0, true, true},  // int8_g128
};

// Value k of a row of one block, without its offset; group of 4, vectors of 16 bytes.
template <int F>
TK_INLINE int value_at(const uint8_t* low, int row, int k) {
  constexpr Shape s = kShapes[F];
  if (s.low == 512) return static_cast<int8_t>(low[k / 4 * 64 + row * 4 + k % 4]);
  int p = k % 16 / 4 * 64 + row * 4 + k % 4, hi = k / 16;
  int v = low[p] >> (4 * hi) & 15;
  if (s.high) {
    constexpr int bits = s.high == 128 ? 2 : 1, vectors = 4 / bits;
    int index = p / 16, shift = (index % vectors * 2 + hi) * bits;
    v |= (low[s.low + index / vectors * 16 + p % 16] >> shift & ((1 << bits) - 1)) << 4;
  }
  return v - s.offset;
}

TK_INLINE float head_at(const uint8_t* p, int row) {
  uint16_t h;
  memcpy(&h, p + 2 * row, 2);
  return half_to_float(h);
}

// The definition of the quantised dot product, for one row of weights and n rows of activations.
template <int F, int n>
TK_INLINE void qdot_row(const uint8_t* panel, int row, const float* scale, const float* sum,
                        const int8_t* q, int64_t x_bytes, int64_t blocks, float* out) {
  constexpr Shape s = kShapes[F];
  constexpr int block_bytes = s.scales + s.low + s.high;
  float acc[n] = {};
  for (int64_t b = 0; b < blocks; ++b) {
    const uint8_t* super = panel + b / s.blocks * (s.head + s.blocks * block_bytes);
    const uint8_t* block = super + s.head + b % s.blocks * block_bytes;
    float d = head_at(super, row), m = s.minimum && !s.zero ? head_at(super + 32, row) : 0.0f;
    if (s.zero) m = -(d * static_cast<float>(static_cast<int8_t>(super[32 + row])));
    if (s.minimum && s.scales) {  // q4_k, q5_k
      d *= static_cast<float>(block[row]);
      m = -(m * static_cast<float>(block[kPanel + row]));
    }
    int w[32];
    for (int k = 0; k < 32; ++k) w[k] = value_at<F>(block + s.scales, row, k);
    for (int c = 0; c < n; ++c) {
      const auto at = [&](const float* p) {
        float v;
        memcpy(&v, reinterpret_cast<const uint8_t*>(p + c) + b * x_bytes, 4);
        return v;
      };
      const int8_t* x = q + b * x_bytes + c * 32;
      int lo = 0, hi = 0;
      for (int k = 0; k < 16; ++k) lo += w[k] * x[k], hi += w[k + 16] * x[k + 16];
      int dot = lo + hi;
      if (s.scales && !s.minimum)  // q6_k
        dot = lo * static_cast<int8_t>(block[row]) + hi * static_cast<int8_t>(block[kPanel + row]);
      acc[c] = __builtin_fmaf(static_cast<float>(dot), d * at(scale), acc[c]);
      if (s.minimum) acc[c] = __builtin_fmaf(m, at(sum), acc[c]);
    }
  }
  for (int c = 0; c < n; ++c) out[c * kPanel + row] = acc[c];
}

template <int F>
void qdot1(const uint8_t* panel, const XBlock1* x, int64_t blocks, float* out) {
  for (int row = 0; row < kPanel; ++row)
    qdot_row<F, 1>(panel, row, &x->scale, &x->sum, x->q, sizeof(XBlock1), blocks, out);
}
template <int F>
void qdot4(const uint8_t* panel, const XBlock4* x, int64_t blocks, int, float* out) {
  for (int row = 0; row < kPanel; ++row)
    qdot_row<F, 4>(panel, row, x->scale, x->sum, x->q, sizeof(XBlock4), blocks, out);
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

const KernelTable* scalar_table() {
  static const KernelTable table = [] {
    KernelTable t{};
    t.name = "scalar";
    t.style = {4, 16, 0, 0, false};
    fill_vector_kernels<false>(t);
    fill_q<0>(t);
    return t;
  }();
  return &table;
}

}  // namespace tokamak::cpu
