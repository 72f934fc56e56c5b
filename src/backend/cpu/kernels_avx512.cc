// x86-64 with AVX-512 (F, BW, VL, DQ, VNNI). A vector of weights is 16 rows x 4 values of k,
// unsigned; vpdpbusd multiplies it with four values of an activation row that are broadcast to all
// lanes.
#include "backend/cpu/simd_avx512.h"

#include "backend/cpu/vec_kernels.inc"

#include "backend/cpu/qpanel_avx512.inc"

#include "backend/cpu/qdot_avx512.inc"

#include "backend/cpu/qwide_avx512.inc"

namespace {

template <int F>
void qdot1(const uint8_t* panel, const XBlock1* x, int64_t blocks, float* out) {
  qdot<F, 1>(panel, x, blocks, out);
}
template <int F>
void qdot4(const uint8_t* panel, const XBlock4* x, int64_t blocks, int rows, float* out) {
  if (rows == 2) return qdot<F, 2>(panel, x, blocks, out);
  if (rows == 3) return qdot<F, 3>(panel, x, blocks, out);
  qdot<F, 4>(panel, x, blocks, out);
}

template <int F>
void fill_q(tokamak::cpu::KernelTable& t) {
  if constexpr (F < tokamak::cpu::kQFormats) {
    t.qdot1[F] = qdot1<F>;
    t.qdot4[F] = qdot4<F>;
    t.qwiden[F] = qwiden<F, 0>;
    t.qwide[F] = qwide<F>;
    t.wide_rows[F] = 5;
    fill_q<F + 1>(t);
  }
}

}  // namespace

namespace tokamak::cpu {

const KernelTable* avx512_table() {
  static const KernelTable table = [] {
    KernelTable t{};
    t.name = "avx512";
    t.style = {4, 64, 0x80, 0, false};
    t.wide_panels = 2;
    fill_vector_kernels<false>(t);
    fill_q<0>(t);
    return t;
  }();
  return &table;
}

}  // namespace tokamak::cpu
