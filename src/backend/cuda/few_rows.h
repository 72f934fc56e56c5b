#pragma once
// Products of few rows of values with a large matrix of weights, as the decode steps of a batch
// need them (few_rows.cu). The time is that of reading the weights, so a launch begins to read them
// before the launches that compute the values are done.
#include <cstdint>

#include "backend/cuda/host_device.h"
#include "backend/cuda/tensor_map.h"
#include "tensor/dtype.h"

namespace tokamak::cuda {

constexpr int kFewRowsTile = 128;         // rows of the matrix that a block works on at most
constexpr int kFewRowsWidth = 64;         // 16-bit values of a row in a box of a copy: 128 bytes
constexpr int kFewRowsMultipliers = 256;  // threads: a warp has 16 lines of a tile
// Lines of a tile are rows of the matrix in order. Where one half of the matrix gates the other,
// eight rows of the first half and those that they gate take turns, so that they meet in a lane.
constexpr int kFewRowsTurn = 8;

// How weights of a type come to shared memory. bf16 is multiplied there. Other types are made bf16
// in registers: f16 from boxes like those of bf16, blocks from copies of their bytes. Tensor copies
// of rows whose steps do not begin at multiples of 16 bytes fail on the device; such steps are
// copied by threads, 16 bytes at a time.
struct FewRowsType {
  DType type;
  int columns;  // of a step along the width
  int bytes;    // of a row in a step
  int pitch;    // bytes from row to row in shared memory, so that eight rows differ in banks
  TK_HOST_DEVICE constexpr bool blocks() const { return columns > 2 * kFewRowsWidth; }
  TK_HOST_DEVICE constexpr int stage_bytes() const { return kFewRowsTile * pitch; }
  TK_HOST_DEVICE constexpr bool copied_by_threads() const { return bytes % 16 != 0; }
  TK_HOST_DEVICE constexpr int copiers() const { return copied_by_threads() ? 96 : 32; }
  // The most rows of values. With more bf16 the library is faster; others lack the room.
  TK_HOST_DEVICE constexpr int most_rows() const { return type == DType::kBF16 ? 128 : 64; }
};
constexpr FewRowsType kFewRowsTypes[] = {
    {DType::kBF16, 128, 256, 256}, {DType::kF16, 128, 256, 256},  {DType::kQ8_0, 256, 272, 272},
    {DType::kQ4_0, 256, 144, 144}, {DType::kQ4_1, 256, 160, 160}, {DType::kQ5_0, 256, 176, 176},
    {DType::kQ5_1, 256, 192, 192}, {DType::kQ4_K, 256, 144, 144}, {DType::kQ5_K, 256, 176, 176},
    {DType::kQ6_K, 256, 210, 240}};
// Those that multiply, those that copy weights, and a warp that copies values.
TK_HOST_DEVICE constexpr int few_rows_threads(const FewRowsType& type) {
  return kFewRowsMultipliers + type.copiers() + 32;
}
// Null: few_rows.cu does not read this type.
TK_HOST_DEVICE constexpr const FewRowsType* few_rows_type(DType type) {
  for (const FewRowsType& t : kFewRowsTypes)
    if (t.type == type) return &t;
  return nullptr;
}

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
// of the second, and so on. They are bf16: writing them is time in which no weights are read.
struct FewRowsSums {
  uint16_t* planes;  // [most_shares, rows, pitch()]; null: there are none
  int64_t plane;     // elements
  FewRowsShares shares;
  TK_HOST_DEVICE int pitch() const { return shares.tiles * kFewRowsTile; }
};
// Where a column is in a row of these: of sixteen, the four that one lane has are neighbours.
TK_HOST_DEVICE constexpr int few_rows_place(int column) {
  const int eight = column >> 3 & 1, pair = column >> 1 & 3;
  return (column & ~15) | pair << 2 | eight << 1 | (column & 1);
}

struct FewRowsArgs {
  TensorMap w, x;        // boxes of a tile of the matrix (or of its bytes), of all rows of values
  const uint8_t* bytes;  // the matrix, for types that are copied by threads
  int32_t row_bytes, w_rows;  // of it
  FewRowsSums sums;  // without planes the block with a tile's beginning adds the sums of the others
  void* y;           // [rows, n], bf16 or f32, where there are no planes
  int64_t pitch;     // elements from row to row of y
  float* parts;  // [blocks, kFewRowsTile, most rows]: what is left for others to add; bf16 if y is
  uint32_t* ready;  // [blocks]: a part can be read; zero before and after a launch
  int32_t rows, n;
  int32_t lines;      // of a tile: a multiple of 16; kFewRowsTile where there are planes
  int32_t in_flight;  // stages whose weights may be loading at a time
  bool whole_tiles;   // no tile is shared
  bool gated;         // y = silu(x * first half) * (x * second half)
  bool f32;           // type of y
};

// Stages in shared memory. Weights are loaded before the values are known, so they get more room.
// A few KB are left for the small kernels between the products, which run beside them.
struct FewRowsStages {
  int weights, values;
  int value_bytes;  // of a stage
};
TK_HOST_DEVICE constexpr FewRowsStages few_rows_stages(const FewRowsType& type, int most_rows) {
  const int value_bytes = most_rows * type.columns * 2;
  if (!type.blocks()) {
    if (most_rows > 64) return {4, 2, value_bytes};
    return {most_rows <= 32 ? 6 : 5, most_rows <= 16 ? 6 : 3, value_bytes};
  }
  constexpr int kRoom = 216 * 1024, kMost = 10;
  const int values = most_rows <= 16 ? 4 : most_rows <= 32 ? 3 : 2;
  const int fit = (kRoom - values * value_bytes) / type.stage_bytes();
  return {fit < kMost ? fit : kMost, values, value_bytes};
}
// They start at a multiple of 1024; barriers follow them.
constexpr int few_rows_shared_bytes(const FewRowsType& type, int most_rows) {
  const FewRowsStages s = few_rows_stages(type, most_rows);
  return 1024 + s.weights * (type.stage_bytes() + 16) + s.values * (s.value_bytes + 8);
}

}  // namespace tokamak::cuda
