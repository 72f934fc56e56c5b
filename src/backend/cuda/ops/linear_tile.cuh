#pragma once
// Products with weights, a tile of results per warp: its lanes take turns at groups of eight values
// of k, so weights are read in long runs, and the sums of the lanes are added by a fixed tree. The
// order of the additions of a result depends on k alone: the tile sizes do not change a bit, and
// neither does the batch.
#include "backend/cuda/ops/args.h"
#include "backend/cuda/ops/blocks.cuh"

namespace tokamak::cuda {

constexpr int kLoad = 8;  // values of k per lane and turn

enum class WeightKind : int32_t { kF32, kF16, kBF16, kQ8_0, kQ4_0, kQ4_K, kQ6_K, kMXFP4, kBlocks };

template <WeightKind kind>
TK_DEVICE void load_weight8(const LinearArgs& a, const uint8_t* row, int64_t at,
                            float (&out)[kLoad]) {
  constexpr DType kPlain = kind == WeightKind::kF32   ? DType::kF32
                           : kind == WeightKind::kF16 ? DType::kF16
                                                      : DType::kBF16;
  if constexpr (kind == WeightKind::kQ8_0) {
    decode8_q8_0(row, at, out);
  } else if constexpr (kind == WeightKind::kQ4_0) {
    decode8_q45<false, false>(row, at, out);
  } else if constexpr (kind == WeightKind::kQ4_K) {
    decode8_k45<false>(row, at, out);
  } else if constexpr (kind == WeightKind::kQ6_K) {
    decode8_q6_k(row, at, out);
  } else if constexpr (kind == WeightKind::kMXFP4) {
    decode8_mxfp4(row, at, out);
  } else if constexpr (kind == WeightKind::kBlocks) {
    decode8(a.tw, row, at, out);
  } else if (a.vectors) {
    load8(row, kPlain, at, out);
  } else {
#pragma unroll
    for (int j = 0; j < kLoad; ++j) out[j] = at + j < a.k ? load(row, kPlain, at + j) : 0.0f;
  }
}

TK_DEVICE void load_x8(const LinearArgs& a, const uint8_t* row, int64_t at, float (&out)[kLoad]) {
  if (a.vectors) {
    load8(row, a.tx, at, out);
  } else {
#pragma unroll
    for (int j = 0; j < kLoad; ++j) out[j] = at + j < a.k ? load(row, a.tx, at + j) : 0.0f;
  }
}

// Which rows a block has, and how far rows of y are apart: those of one matrix.
struct WholeMatrix {
  TK_DEVICE int64_t first(int rows) const { return int64_t{blockIdx.y} * rows; }
  TK_DEVICE int64_t y_row(const LinearArgs& a) const { return a.n; }
};

// Every lane has all sums; each stores some of them.
template <int rows, int columns, class Where>
TK_DEVICE void store_tile(const LinearArgs& a, const Where& where, int64_t row, int64_t column,
                          const float (&sum)[rows * columns]) {
  unsigned lane = threadIdx.x % kWarp;
#pragma unroll
  for (int r = 0; r < rows; ++r)
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      if (lane != static_cast<unsigned>(r * columns + c) % kWarp || row + r >= a.rows ||
          column + c >= a.n)
        continue;
      float y = sum[r * columns + c];
      if (a.bias) y += load(a.bias, a.tb, column + c);
      store(a.y, a.ty, (row + r) * where.y_row(a) + column + c, y);
    }
}

// Rows and columns beyond the end are computed from the last ones and not stored.
template <WeightKind kind, int rows, int columns, class Where>
TK_DEVICE void linear_tile(const LinearArgs& a, const Where& where) {
  unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int64_t column = (int64_t{blockIdx.x} * kTileWarps + warp) * columns;
  int64_t row = where.first(rows);
  if (column >= a.n) return;
  const uint8_t* w[columns];
  const uint8_t* x[rows];
#pragma unroll
  for (int c = 0; c < columns; ++c)
    w[c] = a.w + (column + c < a.n ? column + c : a.n - 1) * a.w_row_bytes;
#pragma unroll
  for (int r = 0; r < rows; ++r)
    x[r] = static_cast<const uint8_t*>(a.x) +
           (row + r < a.rows ? row + r : a.rows - 1) * a.x_row_bytes;
  float sum[rows * columns] = {};
#pragma unroll(rows == 1 ? 4 : 1)
  for (int64_t at = lane * kLoad; at < a.k; at += kWarp * kLoad) {
    float wv[columns][kLoad];
#pragma unroll
    for (int c = 0; c < columns; ++c) load_weight8<kind>(a, w[c], at, wv[c]);
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      float xv[kLoad];
      load_x8(a, x[r], at, xv);
#pragma unroll
      for (int c = 0; c < columns; ++c)
#pragma unroll
        for (int j = 0; j < kLoad; ++j)
          sum[r * columns + c] = fmaf(xv[j], wv[c][j], sum[r * columns + c]);
    }
  }
  warp_sums(sum);
  store_tile<rows, columns>(a, where, row, column, sum);
}

// Quantised activations: exact integer dot products of eight values, then scaled.
struct Bytes8 {
  int low, high;
  float scale;
};
TK_DEVICE Bytes8 load_bytes8_x(const uint8_t* row, int64_t at) {
  const uint8_t* block = row + at / 32 * 40;
  Words2 q = *reinterpret_cast<const Words2*>(block + 8 + at % 32);
  return {static_cast<int>(q.x), static_cast<int>(q.y), *reinterpret_cast<const float*>(block)};
}
template <WeightKind kind>
TK_DEVICE Bytes8 load_bytes8(const uint8_t* row, int64_t at) {
  if constexpr (kind == WeightKind::kQ8_0) {
    const uint8_t* block = row + at / 32 * 34;
    const uint8_t* q = block + 2 + at % 32;
    return {static_cast<int>(word_at(q)), static_cast<int>(word_at(q + 4)), half_at(block)};
  } else {
    const uint8_t* block = row + at / 32 * 18;
    int offset = static_cast<int>(at % 32), shift = offset >= 16 ? 4 : 0;
    const uint8_t* q = block + 2 + offset % 16;
    return {static_cast<int>(word_at(q) >> shift & 0x0f0f0f0fu),
            static_cast<int>(word_at(q + 4) >> shift & 0x0f0f0f0fu), half_at(block)};
  }
}

template <WeightKind kind, int rows, int columns, class Where>
TK_DEVICE void linear_bytes_tile(const LinearArgs& a, const Where& where) {
  constexpr int kOnes = 0x01010101;
  unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int64_t column = (int64_t{blockIdx.x} * kTileWarps + warp) * columns;
  int64_t row = where.first(rows);
  if (column >= a.n) return;
  float sum[rows * columns] = {};
#pragma unroll(rows == 1 ? 4 : 1)
  for (int64_t at = lane * kLoad; at < a.k; at += kWarp * kLoad) {
    Bytes8 w[columns];
#pragma unroll
    for (int c = 0; c < columns; ++c)
      w[c] = load_bytes8<kind>(a.w + (column + c < a.n ? column + c : a.n - 1) * a.w_row_bytes, at);
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      Bytes8 x = load_bytes8_x(static_cast<const uint8_t*>(a.x) +
                                   (row + r < a.rows ? row + r : a.rows - 1) * a.x_row_bytes,
                               at);
      // q4_0 stores values plus 8.
      int start = 0;
      if (kind == WeightKind::kQ4_0) start = -8 * __dp4a(x.low, kOnes, __dp4a(x.high, kOnes, 0));
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        int dot = __dp4a(x.low, w[c].low, __dp4a(x.high, w[c].high, start));
        sum[r * columns + c] =
            fmaf(x.scale * w[c].scale, static_cast<float>(dot), sum[r * columns + c]);
      }
    }
  }
  warp_sums(sum);
  store_tile<rows, columns>(a, where, row, column, sum);
}

}  // namespace tokamak::cuda
