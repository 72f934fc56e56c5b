#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "backend/cpu/isa.h"
#include "base/rng.h"

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

}  // namespace
}  // namespace tokamak::cpu
