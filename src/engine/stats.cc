#include "engine/stats.h"

#include <algorithm>

namespace tokamak {
namespace {

constexpr std::array<double, 28> kSeconds = {.0005, .001, .002, .005, .01, .015, .02, .03, .04, .06,
                                             .08,   .1,   .15,  .2,   .3,  .5,   .75, 1,   2.5, 5,
                                             7.5,   10,   20,   40,   80,  160,  640, 2560};
constexpr std::array<double, 21> kTokens = {1,     2,     4,     8,      16,     32,     64,
                                            128,   256,   512,   1024,   2048,   4096,   8192,
                                            16384, 32768, 65536, 131072, 262144, 524288, 1048576};
constexpr std::array<double, 14> kRatios = {.25, .5,   .75, .9, 1, 1.1, 1.25,
                                            1.5, 1.75, 2,   3,  4, 6,   8};
static_assert(kSeconds.size() < Histogram::kBuckets && kTokens.size() < Histogram::kBuckets);

}  // namespace

std::span<const double> Histogram::bounds() const {
  switch (unit_) {
    case Unit::kSeconds:
      return kSeconds;
    case Unit::kTokens:
      return kTokens;
    case Unit::kRatio:
      break;
  }
  return kRatios;
}

void Histogram::add(double value, uint64_t times) {
  auto b = bounds();
  auto at = std::lower_bound(b.begin(), b.end(), value) - b.begin();
  counts_[static_cast<size_t>(at)] += times;
  count_ += times;
  sum_ += value * static_cast<double>(times);
}

}  // namespace tokamak
