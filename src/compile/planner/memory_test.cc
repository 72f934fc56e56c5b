#include <gtest/gtest.h>

#include "base/rng.h"
#include "compile/planner/planner.h"

namespace tokamak {
namespace {

// The law: values alive at the same time never share a byte; the peak is where the last byte ends.
void expect_sound(const std::vector<Lifetime>& values, const Packing& p) {
  uint64_t end = 0;
  for (size_t a = 0; a < values.size(); ++a) {
    EXPECT_EQ(p.offsets[a] % kArenaAlignment, 0u);
    end = std::max(end, p.offsets[a] + values[a].bytes);
    for (size_t b = a + 1; b < values.size(); ++b) {
      bool together = values[a].first <= values[b].last && values[b].first <= values[a].last;
      bool apart = p.offsets[a] + values[a].bytes <= p.offsets[b] ||
                   p.offsets[b] + values[b].bytes <= p.offsets[a];
      EXPECT_TRUE(!together || apart) << a << " and " << b;
    }
  }
  EXPECT_GE(p.peak, end);
  EXPECT_LT(p.peak, end + kArenaAlignment);
}

TEST(PackArena, RandomLifetimesNeverCollide) {
  Rng rng(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<Lifetime> values(1 + rng.below(40));
    for (Lifetime& v : values) {
      v.bytes = 1 + rng.below(5000);
      v.first = static_cast<uint32_t>(rng.below(30));
      v.last = v.first + static_cast<uint32_t>(rng.below(8));
    }
    expect_sound(values, pack_arena(values));
  }
}

TEST(PackArena, AChainNeedsTwoBuffers) {
  std::vector<Lifetime> chain;
  for (uint32_t i = 0; i < 50; ++i) chain.push_back({1024, i, i + 1});
  EXPECT_EQ(pack_arena(chain).peak, 2048u);
}

}  // namespace
}  // namespace tokamak
