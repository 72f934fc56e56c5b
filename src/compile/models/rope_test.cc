#include "compile/models/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace tokamak {
namespace {

RopeConfig base() {
  RopeConfig r;
  r.dims = 8;
  r.theta = 10000;
  return r;
}

TEST(RopeTable, PlainFrequencies) {
  RopeTable t = rope_table(base(), 128);
  ASSERT_EQ(t.inv_freq.size(), 4u);
  EXPECT_DOUBLE_EQ(t.inv_freq[0], 1.0);
  EXPECT_NEAR(t.inv_freq[1], 0.1, 1e-15);
  EXPECT_NEAR(t.inv_freq[3], 1e-3, 1e-18);
  EXPECT_EQ(t.scale, 1.0);
}

TEST(RopeTable, LinearDividesAll) {
  RopeConfig r = base();
  r.scaling = RopeConfig::Scaling::kLinear;
  r.factor = 4;
  EXPECT_NEAR(rope_table(r, 128).inv_freq[2], 0.01 / 4, 1e-15);
}

TEST(RopeTable, Llama3KeepsShortAndStretchesLongWaves) {
  RopeConfig r = base();
  r.scaling = RopeConfig::Scaling::kLlama3;
  r.factor = 8;
  r.original_context = 256;
  RopeTable t = rope_table(r, 2048);
  EXPECT_DOUBLE_EQ(t.inv_freq[0], 1.0);         // wavelength 6.3 < 256/4
  EXPECT_NEAR(t.inv_freq[3], 1e-3 / 8, 1e-18);  // wavelength 6283 > 256
}

TEST(RopeTable, YarnScalesSinAndCos) {
  RopeConfig r = base();
  r.scaling = RopeConfig::Scaling::kYarn;
  r.factor = 4;
  r.original_context = 64;
  EXPECT_NEAR(rope_table(r, 256).scale, 0.1 * std::log(4.0) + 1, 1e-15);
}

TEST(RopeTable, LongRopeChoosesByContext) {
  RopeConfig r = base();
  r.scaling = RopeConfig::Scaling::kLongRope;
  r.original_context = 64;
  r.short_factor = {1, 1, 1, 1};
  r.long_factor = {2, 2, 2, 2};
  EXPECT_DOUBLE_EQ(rope_table(r, 64).inv_freq[0], 1.0);
  EXPECT_DOUBLE_EQ(rope_table(r, 65).inv_freq[0], 0.5);
  r.long_factor.pop_back();
  EXPECT_THROW(rope_table(r, 65), Error);
}

}  // namespace
}  // namespace tokamak
