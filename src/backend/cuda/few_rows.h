#pragma once
// Products of few rows of values with a large matrix of bf16 weights, as the decode steps of a
// batch need them (few_rows.cu). The time is that of reading the weights, so a launch begins to
// read them before the launches that compute the values are done.
#include <cstdint>

namespace tokamak::cuda {

constexpr int kFewRowsTile = 128;     // rows of the matrix that a block works on at a time
constexpr int kFewRowsWidth = 64;     // values of a row in a box of a copy: 128 bytes
constexpr int kFewRowsThreads = 160;  // four warps that multiply, one that copies

// CUtensorMap: how the copy engine finds boxes of a matrix.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

// The tiles of the matrix, each cut along its width, are divided evenly among the blocks, so a tile
// may be shared. The block that has a tile's beginning adds what the others leave in `parts`.
struct FewRowsArgs {
  TensorMap w, x;   // boxes of 64 rows of the matrix, and of all rows of values
  void* y;          // [rows, n], bf16 or f32
  float* parts;     // [blocks, kFewRowsTile, most rows]
  uint32_t* ready;  // [blocks]: a part can be read; zero before and after a launch
  int32_t rows, n;
  int32_t tiles, steps;  // steps: along the width
  int32_t second;        // distance of the tile's two boxes in rows
  int32_t in_flight;     // stages whose weights may be loading at a time
  bool gated;            // y = silu(first box) * second box
  bool f32;              // type of y
};

// Bytes of shared memory of a stage: weights, then values.
constexpr int few_rows_stage(int most_rows, int boxes) {
  return boxes * (kFewRowsTile + most_rows) * kFewRowsWidth * 2;
}
constexpr int kFewRowsRoom = 221184;  // for the stages
constexpr int few_rows_stages(int most_rows, int boxes) {
  return kFewRowsRoom / few_rows_stage(most_rows, boxes);
}
// The stages start at a multiple of 1024; barriers follow them.
constexpr int few_rows_shared_bytes(int most_rows, int boxes) {
  return 1024 + few_rows_stages(most_rows, boxes) * (few_rows_stage(most_rows, boxes) + 24);
}

}  // namespace tokamak::cuda
