#pragma once
// Scratch of attention.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "backend/cpu/kernel_table.h"

namespace tokamak::cpu {

constexpr int64_t kTileSlots = 64;

// The scratch of one work item; columns are (row, query head of the group), padded to a multiple
// of 4.
struct Workspace {
  float* query = nullptr;   // [columns / 4][d][4], scaled
  float* scores = nullptr;  // [columns][64]
  float* powers = nullptr;  // [columns / 4][64][4], or [16] for one panel: weights of values
  float* dots = nullptr;    // [64 / 16][columns][16]: scores of panels of keys
  float* sums = nullptr;    // [dv / 16][columns][16]: what this segment has accumulated
  float* total = nullptr;   // the same for the segments before it
  float *max = nullptr, *sum = nullptr, *total_max = nullptr, *total_sum = nullptr;  // [columns]
  float* panel = nullptr;  // keys or values as f32

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
    powers = take(columns * kTileSlots);
    dots = take(columns * kTileSlots);
    sums = take(columns * padded);
    total = take(columns * padded);
    for (float** list : {&max, &sum, &total_max, &total_sum}) *list = take(columns);
    panel = take(panels);
  }
  static int64_t bytes(int64_t columns, int64_t d, int64_t padded, int64_t panels) {
    int64_t floats = columns * (d + 3 * kTileSlots + 2 * padded + 4) + panels;
    return floats * 4 + 11 * 64;
  }

  // `columns` is that of the item here, `padded` the same in whole tiles, `dv` in whole panels.
  static constexpr float kNothing = -std::numeric_limits<float>::infinity();
  void clear_segment(int64_t padded, int64_t dv) const {
    std::fill_n(max, padded, kNothing);
    std::fill_n(sum, padded, 0.0f);
    std::fill_n(sums, dv * padded, 0.0f);
  }
  void clear_totals(int64_t padded, int64_t dv) const {
    std::fill_n(total_max, padded, kNothing);
    std::fill_n(total_sum, padded, 0.0f);
    std::fill_n(total, dv * padded, 0.0f);
  }
  void scale_sums(int64_t col, int64_t padded, int64_t dv, float factor) const {
    for (int64_t v = 0; v < dv / kPanel; ++v) {
      float* s = sums + (v * padded + col) * kPanel;
      for (int i = 0; i < kPanel; ++i) s[i] *= factor;
    }
  }
  // Adds the segment to those before it.
  void merge(const KernelTable& k, int64_t columns, int64_t padded, int64_t dv) const {
    for (int64_t col = 0; col < columns; ++col) {
      if (max[col] == kNothing) continue;
      float top = std::max(max[col], total_max[col]),
            shift[2] = {total_max[col] - top, max[col] - top};
      float factor[2];
      k.unary[static_cast<int>(Unary::kExp)](shift, factor, 2, 0);
      total_max[col] = top;
      total_sum[col] = total_sum[col] * factor[0] + sum[col] * factor[1];
      for (int64_t v = 0; v < dv / kPanel; ++v) {
        float* a = total + (v * padded + col) * kPanel;
        const float* b = sums + (v * padded + col) * kPanel;
        for (int i = 0; i < kPanel; ++i) a[i] = a[i] * factor[0] + b[i] * factor[1];
      }
    }
  }
};

}  // namespace tokamak::cpu
