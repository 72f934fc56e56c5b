// Products with bf16 weights on tensor cores. An f32 value is the exact sum of three bf16 pieces,
// so the products are exact and sums are f32, as in op_linear.cu. The parts and chunks of k
// (mma_tile.cuh) are the same for every number of rows, so the batch changes no bit.
#include "backend/cuda/ops/mma_tile.cuh"

namespace tokamak::cuda {

struct Pieces {
  Words4 piece[3];
};

TK_DEVICE float without_piece(float x) { return x - brain_value(brain_bits(x)); }

TK_DEVICE Pieces split8(float (&v)[8]) {
  Pieces out;
#pragma unroll
  for (int p = 0; p < 3; ++p) {
    out.piece[p] = {pack_brain(v[0], v[1]), pack_brain(v[2], v[3]), pack_brain(v[4], v[5]),
                    pack_brain(v[6], v[7])};
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = without_piece(v[j]);
  }
  return out;
}

TK_KERNEL(op_split, SplitArgs, kElementThreads) {
  int64_t i = (int64_t{blockIdx.x} * kElementThreads + threadIdx.x) * 8;
  if (i >= a.n) return;
  float v[8];
  load8(a.x, a.tx, i, v);
  Pieces pieces = split8(v);
#pragma unroll
  for (int p = 0; p < 3; ++p) *reinterpret_cast<Words4*>(a.y + p * a.n + i) = pieces.piece[p];
}

TK_DEVICE void store_result(const MmaArgs& a, int64_t n, int64_t row, float y) {
  if (n >= a.n || row >= a.rows) return;
  if (a.bias) y += load(a.bias, a.tb, n);
  store(a.y, a.ty, row * a.n + n, y);
}

// A warp per part of k: their sums meet in shared memory.
template <int groups>
TK_DEVICE void join_parts(const MmaArgs& a, int64_t first, const float (&sum)[groups][4]) {
  constexpr int kResults = kRowsA * kRowsB * groups;
  __shared__ float parts[kMmaParts][kResults];
  Place l = place_of_lane();
  int warp = static_cast<int>(threadIdx.x / kWarp);
#pragma unroll
  for (int g = 0; g < groups; ++g)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      parts[warp][(g * kRowsB + 2 * l.t + i % 2) * kRowsA + l.g + i / 2 * 8] = sum[g][i];
  sync_block();
  for (int i = static_cast<int>(threadIdx.x); i < kResults; i += kMmaThreads) {
    float y = parts[0][i];
    for (int p = 1; p < kMmaParts; ++p) y += parts[p][i];
    store_result(a, first + i % kRowsA, i / kRowsA, y);
  }
}

// Up to 8 rows, which are split here.
TK_KERNEL(op_linear_mma_few, MmaArgs, kMmaThreads) {
  Place l = place_of_lane();
  int part = static_cast<int>(threadIdx.x / kWarp);
  int64_t first = int64_t{blockIdx.x} * kRowsA;
  RowsOfA rows(a.w, a.n, a.k, first);
  int64_t x = (l.g < a.rows ? l.g : a.rows - 1) * a.k + 8 * l.t;
  float sum[1][4] = {};
  constexpr int kAhead = 4;  // weights are loaded before they are used
  int64_t k = part_begin(a.k, part), end = part_begin(a.k, part + 1);
  auto step = [&](const FragmentA& fragment, int64_t at) {
    float v[8];
    load8(a.x, a.tx, x + at, v);
    multiply<3>(sum[0], fragment, split8(v).piece);
  };
  for (; k + kAhead * kMmaChunk <= end; k += kAhead * kMmaChunk) {
    FragmentA fragments[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) fragments[i] = rows.load(k + i * kMmaChunk);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) step(fragments[i], k + i * kMmaChunk);
  }
  for (; k < end; k += kMmaChunk) step(rows.load(k), k);
  join_parts<1>(a, first, sum);
}

template <int pieces>
TK_DEVICE void load_b(const MmaArgs& a, int64_t row, int64_t k, Words4 (&b)[pieces]) {
  int64_t at = (row < a.rows ? row : a.rows - 1) * a.k + k;
#pragma unroll
  for (int p = 0; p < pieces; ++p)
    b[p] =
        *reinterpret_cast<const Words4*>(static_cast<const uint16_t*>(a.x) + p * a.rows * a.k + at);
}

// Up to 32 rows.
template <int pieces>
TK_DEVICE void linear_some(const MmaArgs& a) {
  constexpr int kGroups = 4;
  Place l = place_of_lane();
  int part = static_cast<int>(threadIdx.x / kWarp);
  int64_t first = int64_t{blockIdx.x} * kRowsA;
  RowsOfA rows(a.w, a.n, a.k, first);
  float sum[kGroups][4] = {};
#pragma unroll 2
  for (int64_t k = part_begin(a.k, part); k < part_begin(a.k, part + 1); k += kMmaChunk) {
    FragmentA fragment = rows.load(k);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (g * kRowsB >= a.rows) continue;
      Words4 b[pieces];
      load_b(a, g * kRowsB + l.g, k + 8 * l.t, b);
      multiply<pieces>(sum[g], fragment, b);
    }
  }
  join_parts<kGroups>(a, first, sum);
}

// 64 x 128 results of a block: 8 warps of 32 x 32, each over all of k.
template <int pieces>
TK_DEVICE void linear_many(const MmaArgs& a) {
  constexpr int kA = 2, kGroups = 4;
  Place l = place_of_lane();
  int warp = static_cast<int>(threadIdx.x / kWarp);
  int64_t n = int64_t{blockIdx.x} * kMmaTileN + warp % 2 * (kA * kRowsA);
  int64_t m = int64_t{blockIdx.y} * kMmaTileM + warp / 2 * (kGroups * kRowsB);
  if (m >= a.rows || n >= a.n) return;
  RowsOfA upper(a.w, a.n, a.k, n), lower(a.w, a.n, a.k, n + kRowsA);
  float total[kA][kGroups][4];
  for (int part = 0; part < kMmaParts; ++part) {
    float sum[kA][kGroups][4] = {};
#pragma unroll 2
    for (int64_t k = part_begin(a.k, part); k < part_begin(a.k, part + 1); k += kMmaChunk) {
      FragmentA fragments[kA] = {upper.load(k), lower.load(k)};
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        Words4 b[pieces];
        load_b(a, m + g * kRowsB + l.g, k + 8 * l.t, b);
#pragma unroll
        for (int i = 0; i < kA; ++i) multiply<pieces>(sum[i][g], fragments[i], b);
      }
    }
#pragma unroll
    for (int i = 0; i < kA; ++i)
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          total[i][g][j] = part == 0 ? sum[i][g][j] : total[i][g][j] + sum[i][g][j];
  }
#pragma unroll
  for (int i = 0; i < kA; ++i)
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        store_result(a, n + i * kRowsA + l.g + j / 2 * 8, m + g * kRowsB + 2 * l.t + j % 2,
                     total[i][g][j]);
}

TK_KERNEL(op_linear_mma_some_1, MmaArgs, kMmaThreads) { linear_some<1>(a); }
TK_KERNEL(op_linear_mma_some_3, MmaArgs, kMmaThreads) { linear_some<3>(a); }
TK_KERNEL(op_linear_mma_many_1, MmaArgs, kMmaThreads) { linear_many<1>(a); }
TK_KERNEL(op_linear_mma_many_3, MmaArgs, kMmaThreads) { linear_many<3>(a); }

}  // namespace tokamak::cuda
