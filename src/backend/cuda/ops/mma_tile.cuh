#pragma once
// Parts of products with bf16 weights on tensor cores. Weights are the left operand: a warp
// multiplies 16 of their rows by groups of 8 rows of x. The values of k are summed in kMmaParts
// parts, which are added in order, and in chunks of 32. Lane 4g + t holds values 8t to 8t + 7 of a
// chunk of row g.
#include "backend/cuda/ops/args.h"
#include "backend/cuda/ops/number.cuh"

namespace tokamak::cuda {

constexpr int kRowsA = 16, kRowsB = 8;

struct Place {  // of a lane
  int g, t;
};
TK_DEVICE Place place_of_lane() {
  int lane = static_cast<int>(threadIdx.x % kWarp);
  return {lane / 4, lane % 4};
}
TK_DEVICE int64_t part_begin(int64_t k, int part) {
  return k / kMmaChunk * part / kMmaParts * kMmaChunk;
}

// 16 rows of weights, 32 values of k.
struct FragmentA {
  Words4 upper, lower;
};
struct RowsOfA {
  const uint16_t *upper, *lower;
  TK_DEVICE RowsOfA(const uint16_t* w, int64_t n, int64_t k, int64_t first) {
    Place l = place_of_lane();
    int64_t u = first + l.g, d = u + 8;
    upper = w + (u < n ? u : n - 1) * k + 8 * l.t;
    lower = w + (d < n ? d : n - 1) * k + 8 * l.t;
  }
  TK_DEVICE FragmentA load(int64_t k) const {
    return {*reinterpret_cast<const Words4*>(upper + k),
            *reinterpret_cast<const Words4*>(lower + k)};
  }
};

// All pieces of the first 16 values of k, then of the others.
template <int pieces>
TK_DEVICE void multiply(float (&c)[4], const FragmentA& a, const Words4 (&b)[pieces]) {
  const uint32_t first[4] = {a.upper.x, a.lower.x, a.upper.y, a.lower.y};
  const uint32_t second[4] = {a.upper.z, a.lower.z, a.upper.w, a.lower.w};
#pragma unroll
  for (int p = 0; p < pieces; ++p) mma_bf16(c, first, b[p].x, b[p].y);
#pragma unroll
  for (int p = 0; p < pieces; ++p) mma_bf16(c, second, b[p].z, b[p].w);
}

}  // namespace tokamak::cuda
