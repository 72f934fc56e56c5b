#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/isa.h"
#include "base/rng.h"
#include "tensor/block_formats.h"

namespace tokamak::cpu {
namespace {

// The scores of `columns` columns lie panel by panel; those of hidden keys are -infinity.
TEST(VectorKernels, SoftmaxOfFourColumnsIsThatOfEach) {
  Rng rng(9);
  constexpr int64_t n = 5 * kPanel, columns = 6, seen = n - 3;
  std::vector<float> scores(n * columns);
  for (float& s : scores) s = static_cast<float>(rng.normal());
  for (int64_t i = seen; i < n; ++i)
    for (int64_t c = 0; c < columns; ++c)
      scores[(i / kPanel * columns + c) * kPanel + i % kPanel] = -INFINITY;
  for (const KernelTable* table : available_tables()) {
    std::vector<float> tile(n * kTile), sums(kTile);
    table->softmax_x4(scores.data() + kPanel, columns, n, tile.data(), sums.data());
    for (int64_t c = 0; c < kTile; ++c) {
      std::vector<float> one(n);
      for (int64_t i = 0; i < n; ++i)
        one[i] = scores[(i / kPanel * columns + c + 1) * kPanel + i % kPanel];
      float max = -INFINITY, sum = 0;
      table->softmax_tile(one.data(), n, &max, &sum);
      EXPECT_EQ(sums[c], sum) << table->name;
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(tile[i * kTile + c], one[i]) << table->name;
    }
  }
}

// Tile after tile: maxima, sums and factors are those of softmax_tile, also while nothing is
// visible.
TEST(VectorKernels, OnlineSoftmaxOfFourColumnsIsThatOfEach) {
  Rng rng(10);
  constexpr int64_t n = 4 * kPanel, columns = 5, tiles = 4;
  for (const KernelTable* table : available_tables()) {
    std::vector<float> max(kTile, -INFINITY), sum(kTile), max_of(max), sum_of(sum);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      std::vector<float> scores(n * columns), weights(n * kTile), factors(kTile);
      for (float& s : scores) s = static_cast<float>(rng.normal() * 4);
      for (int64_t c = 0; c < columns; ++c)
        for (int64_t i = tile == 0 ? c * 16 : n - 3; i < n; ++i)
          scores[(i / kPanel * columns + c) * kPanel + i % kPanel] = -INFINITY;
      table->softmax_tile_x4(scores.data(), columns, n, weights.data(), max.data(), sum.data(),
                             factors.data());
      for (int64_t c = 0; c < kTile; ++c) {
        std::vector<float> one(n);
        for (int64_t i = 0; i < n; ++i)
          one[i] = scores[(i / kPanel * columns + c) * kPanel + i % kPanel];
        auto at = static_cast<size_t>(c);
        float factor = table->softmax_tile(one.data(), n, &max_of[at], &sum_of[at]);
        EXPECT_EQ(factors[at], factor) << table->name;
        EXPECT_EQ(max[at], max_of[at]) << table->name;
        EXPECT_EQ(sum[at], sum_of[at]) << table->name;
        for (int64_t i = 0; i < n; ++i) ASSERT_EQ(weights[i * kTile + c], one[i]) << table->name;
      }
    }
  }
}

// Weights of bf16 and their sum, near those of double; slots i of two neighbouring panels lie side
// by side.
TEST(VectorKernels, WeightsOfBf16AreNearThoseOfDouble) {
  Rng rng(11);
  for (const KernelTable* table : available_tables()) {
    if (!table->weigh_bf16) continue;
    for (int64_t count : {0, 1, 15, 16, 17, 33, 64, 100, 128}) {
      constexpr int64_t n = 128, stride = 3 * kPanel;
      std::vector<float> scores(n / kPanel * stride, NAN);
      for (int64_t i = 0; i < count; ++i)
        scores[i / kPanel * stride + i % kPanel] = static_cast<float>(rng.normal() * 5);
      std::vector<uint16_t> weights(n, 0xffff);
      float max = 1.5F, sum = 2;
      float factor = table->weigh_bf16(scores.data(), stride, count, n / kTileStep, weights.data(),
                                       kTileStep, &max, &sum);
      float top = 1.5F;
      double total = 0;
      for (int64_t i = 0; i < count; ++i)
        top = std::max(top, scores[i / kPanel * stride + i % kPanel]);
      EXPECT_EQ(max, top);
      EXPECT_NEAR(factor, std::exp2(1.5 - top), 1e-4);
      for (int64_t i = 0; i < n; ++i) {
        float w = bf16_to_f32(weights[i / 32 * 32 + i % 16 * 2 + i / 16 % 2]);
        double wanted =
            i < count ? std::exp2(double(scores[i / kPanel * stride + i % kPanel]) - top) : 0;
        ASSERT_NEAR(w, wanted, wanted * 0.005) << count << " keys, " << i;
        total += w;
      }
      EXPECT_NEAR(sum, 2 * factor + total, 1e-4);
    }
  }
}

}  // namespace
}  // namespace tokamak::cpu
