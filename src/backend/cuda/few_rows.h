#pragma once
// Products of few rows of values with a large matrix of bf16 weights, as the decode steps of a
// batch need them (few_rows.cu). The time is that of reading the weights, so a launch begins to
// read them before the launches that compute the values are done.
#include <cstdint>

#include "backend/cuda/host_device.h"
#include "backend/cuda/tensor_map.h"

namespace tokamak::cuda {

constexpr int kFewRowsTile = 128;     // rows of the matrix that a block works on at a time
constexpr int kFewRowsWidth = 64;     // values of a row in a box of a copy: 128 bytes
constexpr int kFewRowsBoxes = 2;      // along the width, per stage
constexpr int kFewRowsThreads = 192;  // four warps that multiply, two that copy

// The tiles of the matrix, each cut along its width into steps, are divided evenly among the
// blocks, so a tile may be shared. Its sums then are those of several blocks, at most most_shares()
// of them.
struct FewRowsShares {
  int32_t tiles, steps, blocks;
  TK_HOST_DEVICE int block_of(int unit) const {  // unit: tile * steps + step
    return static_cast<int>(((unit + 1) * static_cast<int64_t>(blocks) - 1) /
                            (static_cast<int64_t>(tiles) * steps));
  }
  TK_HOST_DEVICE int first_of(int tile) const { return block_of(tile * steps); }
  TK_HOST_DEVICE int last_of(int tile) const { return block_of((tile + 1) * steps - 1); }
  TK_HOST_DEVICE int of_column(int column) const {  // without gate
    return last_of(column / kFewRowsTile) - first_of(column / kFewRowsTile) + 1;
  }
  int most_shares() const { return (blocks + tiles - 1) / tiles + 1; }
};

// The sums of a product that the reader adds up: those of the first block of each tile, then those
// of the second, and so on.
struct FewRowsSums {
  float* planes;  // [most_shares, rows, n]; null: there are none
  int64_t plane;  // elements
  FewRowsShares shares;
};

struct FewRowsArgs {
  TensorMap w, x;    // boxes of 64 rows of the matrix, and of all rows of values
  FewRowsSums sums;  // without planes the block with a tile's beginning adds the sums of the others
  void* y;           // [rows, n], bf16 or f32, where there are no planes
  float* parts;      // [blocks, kFewRowsTile, most rows]: what is left for others to add
  uint32_t* ready;   // [blocks]: a part can be read; zero before and after a launch
  int32_t rows, n;
  int32_t second;     // distance of the tile's two boxes in rows
  int32_t in_flight;  // stages whose weights may be loading at a time
  bool gated;         // y = silu(first box) * second box
  bool f32;           // type of y
};

// Stages in shared memory. Weights are loaded before the values are known, so they get more room.
// A few KB are left for the small kernels between the products, which run beside them.
constexpr int few_rows_stages(int most_rows) { return most_rows <= 32 ? 6 : 5; }
constexpr int few_rows_value_stages(int most_rows) { return most_rows <= 16 ? 6 : 3; }
// They start at a multiple of 1024; barriers follow them.
constexpr int few_rows_shared_bytes(int most_rows) {
  constexpr int kBox = kFewRowsBoxes * kFewRowsWidth * 2;  // bytes of a row
  return 1024 + few_rows_stages(most_rows) * (kFewRowsTile * kBox + 16) +
         few_rows_value_stages(most_rows) * (most_rows * kBox + 8);
}

}  // namespace tokamak::cuda
