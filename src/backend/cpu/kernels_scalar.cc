// The scalar level: plain C++, always there, and what the other levels are compared with bit for
// bit.
#include "backend/cpu/simd_scalar.h"

#include "backend/cpu/vec_kernels.inc"

#include "backend/cpu/qpanel_shape.h"

namespace {

// Value k of a row of one block, without its offset; group of 4, vectors of 16 bytes.
template <int F>
TK_INLINE int value_at(const uint8_t* low, int row, int k) {
  using P = PanelShape<F>;
  if (P::bytes8) return static_cast<int8_t>(low[k / 4 * 64 + row * 4 + k % 4]);
  int p = k % 16 / 4 * 64 + row * 4 + k % 4, hi = k / 16;
  // `bits` bits of the value out of a byte that holds those of several vectors.
  auto part = [&](const uint8_t* plane, int bits) {
    int vectors = 4 / bits, index = p / 16, shift = (index % vectors * 2 + hi) * bits;
    return plane[index / vectors * 16 + p % 16] >> shift & ((1 << bits) - 1);
  };
  int v = P::low ? low[p] >> (4 * hi) & 15 : 0;
  if (P::table) return kTable<F>[v];
  if (P::pairs) v |= part(low + P::low, 2) << P::pair_bit;
  if (P::singles) v |= part(low + P::low + P::pairs, 1) << P::single_bit;
  return v - P::offset;
}

TK_INLINE float head_at(const uint8_t* p, int row) {
  uint16_t h;
  memcpy(&h, p + 2 * row, 2);
  return half_to_float(h);
}

// Half of 2^(e - 127); the two smallest are subnormal.
TK_INLINE float half_power(uint8_t e) {
  return bits_to_float(e < 2 ? 0x00200000u << e : uint32_t{e - 1u} << 23);
}

// What a row of one block is multiplied with.
struct RowScale {
  float d, m;  // m: of the sum of the activations, or (q2_k) of what the minimums make of it
  int s0 = 1, s1 = 1;  // of both halves
  int m0 = 0, m1 = 0;  // their minimums
};
template <int F>
TK_INLINE RowScale row_scale(const uint8_t* super, const uint8_t* block, int row) {
  using P = PanelShape<F>;
  RowScale s{P::exponents ? half_power(super[row]) : head_at(super, row), 0.0f};
  if (P::zeros) s.m = -(s.d * static_cast<float>(static_cast<int8_t>(super[32 + row])));
  if (P::head == 64) s.m = P::half_minimums ? -head_at(super + 32, row) : head_at(super + 32, row);
  if (P::scaled_minimums) {
    s.d *= static_cast<float>(block[row]);
    s.m = -(s.m * static_cast<float>(block[kPanel + row]));
  } else if (P::half_minimums) {
    s.s0 = block[row] & 15, s.m0 = block[row] >> 4;
    s.s1 = block[kPanel + row] & 15, s.m1 = block[kPanel + row] >> 4;
  } else if (P::halves) {
    s.s0 = static_cast<int8_t>(block[row]);
    s.s1 = static_cast<int8_t>(block[kPanel + row]);
  } else if (P::scales) {
    s.d *= static_cast<float>(static_cast<int8_t>(block[row]));
  }
  return s;
}

// The definition of the quantised dot product, for one row of weights and n rows of activations.
template <int F, int n>
TK_INLINE void qdot_row(const uint8_t* panel, int row, const float* scale, const float* sum,
                        const int8_t* q, int64_t x_bytes, int64_t blocks, float* out) {
  using P = PanelShape<F>;
  float acc[n] = {};
  for (int64_t b = 0; b < blocks; ++b) {
    const uint8_t* super = panel + b / P::blocks * P::bytes;
    const uint8_t* block = super + P::head + b % P::blocks * P::block_bytes;
    RowScale s = row_scale<F>(super, block, row);
    int w[32];
    for (int k = 0; k < 32; ++k) w[k] = value_at<F>(block + P::scales, row, k);
    for (int c = 0; c < n; ++c) {
      const auto at = [&](const float* p) {
        float v;
        memcpy(&v, reinterpret_cast<const uint8_t*>(p + c) + b * x_bytes, 4);
        return v;
      };
      const int8_t* x = q + b * x_bytes + c * 32;
      int lo = 0, hi = 0, sum0 = 0, sum1 = 0;
      for (int k = 0; k < 16; ++k) {
        lo += w[k] * x[k], hi += w[k + 16] * x[k + 16];
        sum0 += x[k], sum1 += x[k + 16];
      }
      int dot = lo * s.s0 + hi * s.s1, less = sum0 * s.m0 + sum1 * s.m1;
      acc[c] = __builtin_fmaf(static_cast<float>(dot), s.d * at(scale), acc[c]);
      if (P::minimum) acc[c] = __builtin_fmaf(s.m, at(sum), acc[c]);
      if (P::half_minimums)
        acc[c] = __builtin_fmaf(static_cast<float>(less), s.m * at(scale), acc[c]);
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
