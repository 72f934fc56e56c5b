#pragma once
// How long a step takes that only decodes.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>

namespace tokamak {

// The median of the last few steps of about as many sequences, so that one slow step does not
// count. Pure arithmetic.
class DecodePace {
 public:
  double seconds() const { return median_; }  // 0: not known
  // Whether it was measured with a similar number of sequences.
  bool covers(int64_t decodes) const {
    return count_ > 0 && 4 * std::abs(decodes - decodes_) <= decodes_;
  }
  bool settled() const { return count_ >= 3; }
  void observe(int64_t decodes, double took) {
    if (!covers(decodes)) count_ = 0;
    decodes_ = decodes;
    last_[count_++ % last_.size()] = took;
    auto sorted = last_;
    size_t n = std::min(count_, last_.size());
    std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(n));
    median_ = sorted[(n - 1) / 2];
  }

 private:
  std::array<double, 5> last_{};
  size_t count_ = 0;  // steps in a row with about as many sequences
  int64_t decodes_ = 0;
  double median_ = 0;
};

}  // namespace tokamak
