#pragma once
// Scratch of attention.
#include <cstdint>

#include "backend/cpu/kernel_table.h"

namespace tokamak::cpu {

constexpr int64_t kTileSlots = 64;

// The scratch of one work item; columns are (row, query head of the group), padded to a multiple
// of 4.
struct Workspace {
  float* query = nullptr;   // [columns / 4][d][4], scaled
  float* scores = nullptr;  // [columns][64]
  float* powers = nullptr;  // [columns / 4][16][4]: weights of one panel of values
  float* dots = nullptr;    // [2][columns][16]: scores of one panel of keys
  float* sums = nullptr;    // [dv / 16][columns][16]: what this segment has accumulated
  float* total = nullptr;   // the same for the segments before it
  float *max = nullptr, *sum = nullptr, *total_max = nullptr, *total_sum = nullptr;  // [columns]
  float* panel = nullptr;  // key or value panels as f32

  Workspace() = default;
  // `padded` is dv in whole panels, `panels` the floats of `panel`.
  Workspace(uint8_t* scratch, int64_t columns, int64_t d, int64_t padded, int64_t panels) {
    auto take = [&](int64_t floats) {
      auto* p = reinterpret_cast<float*>(scratch);
      scratch += (floats * 4 + 63) / 64 * 64;
      return p;
    };
    query = take(columns * d);
    scores = take(columns * kTileSlots);
    powers = take(columns * kPanel);
    dots = take(2 * columns * kPanel);
    sums = take(columns * padded);
    total = take(columns * padded);
    for (float** list : {&max, &sum, &total_max, &total_sum}) *list = take(columns);
    panel = take(panels);
  }
  static int64_t bytes(int64_t columns, int64_t d, int64_t padded, int64_t panels) {
    int64_t floats = columns * (d + kTileSlots + 2 * padded + 4 + 3 * kPanel) + panels;
    return floats * 4 + 11 * 64;
  }
};

}  // namespace tokamak::cpu
