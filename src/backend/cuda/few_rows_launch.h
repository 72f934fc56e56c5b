#pragma once
// Launches of few_rows.cu.
#include <cstddef>
#include <string>

#include "backend/cuda/driver.h"
#include "backend/cuda/few_rows.h"

namespace tokamak::cuda {

// y[rows, n] = x[rows, k] * w[n, k]^T. gated: w has n rows more, and y = silu(x * w^T) * (x * of
// those rows). x is bf16, and w is rounded to it if it is not.
struct FewRowsProduct {
  DeviceAddress x = 0, w = 0, y = 0;
  int64_t rows = 0, n = 0, k = 0;
  bool gated = false;
  bool f32 = false;           // type of y; else bf16
  DType type = DType::kBF16;  // of w: one of kFewRowsTypes
  int64_t pitch = 0;          // elements from row to row of y; 0: n
};

constexpr int64_t kMostFewRows = 64;  // of all types; see FewRowsType::most_rows()
constexpr int kFewRowsBlocks = 160;   // that memory is planned for
// Memory that the launches of a stream share; zeros at first.
constexpr size_t kFewRowsParts =
    size_t{kFewRowsBlocks} * kFewRowsTile * 2 * kMostFewRows * sizeof(float);
constexpr size_t kFewRowsMemory = 4 * kFewRowsParts + kFewRowsBlocks * sizeof(uint32_t);

bool few_rows_reads(DType weights, int64_t k);  // rows of k values
bool few_rows_takes(const FewRowsProduct& p, int blocks);
// Whether the sums may be left to the reader: there are few enough.
bool few_rows_splits(const FewRowsProduct& p, int blocks);

struct FewRowsLaunch {
  std::string kernel;  // of few_rows.cu
  int blocks, threads, shared_bytes;
  FewRowsArgs args;
};
// split: the sums are left to the reader (args.sums). in_flight: parts of 32 KB of the matrix that
// a block asks for at a time.
FewRowsLaunch few_rows_launch(const FewRowsProduct& p, DeviceAddress memory, int blocks, bool split,
                              int in_flight = 2);

}  // namespace tokamak::cuda
