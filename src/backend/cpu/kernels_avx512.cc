// x86-64 with AVX-512 (F, BW, VL, DQ, VNNI). A vector of weights is 16 rows x 4 values of k,
// unsigned; vpdpbusd multiplies it with four values of an activation row that are broadcast to all
// lanes.
#include "backend/cpu/simd_avx512.h"

#include "backend/cpu/vec_kernels.inc"

#include "backend/cpu/fpanels_avx512.inc"

#include "backend/cpu/qpanel_avx512.inc"

#include "backend/cpu/qdot_avx512.inc"

#include "backend/cpu/qwide_avx512.inc"

namespace {

template <int F>
void qdot1(const uint8_t* panel, const XBlock1* x, int64_t blocks, float* out) {
  qdot<F, 1>(panel, x, blocks, out);
}
template <int F>
void fill_q(tokamak::cpu::KernelTable& t) {
  if constexpr (F < tokamak::cpu::kQFormats) {
    t.qdot1[F] = qdot1<F>;
    t.qdot4[F] = qdot_few<F, XBlock4>;
    t.qwiden[F] = qwiden<F, 0>;
    t.qwide[F] = qwide<F>;
    t.wide_rows[F] = kMostFewRows + 1;
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
    t.float_panels = kMostPanels;
    t.fdot_panels = fdot_many_panels;
    t.few_rows = kMostFewRows;
    fill_q<0>(t);
    return t;
  }();
  return &table;
}

}  // namespace tokamak::cpu
