#pragma once
// How long a step takes that only decodes.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>

namespace tokamak {

// The lower quartile of the last steps of about as many sequences: other programs make steps only
// slower, several in a row, and what was measured meanwhile must not set the pace. After a change
// of the number of sequences a step is taken to cost at most in proportion, until several were
// measured. Pure arithmetic.
class DecodePace {
 public:
  double seconds() const { return quartile_; }  // 0: not known
  // Whether it was measured with a similar number of sequences.
  bool covers(int64_t decodes) const {
    return count_ > 0 && 4 * std::abs(decodes - decodes_) <= decodes_;
  }
  bool settled() const { return count_ >= 4; }
  void observe(int64_t decodes, double took) {
    if (!covers(decodes)) {
      auto now = static_cast<double>(decodes), before = static_cast<double>(decodes_);
      bound_ = decodes_ == 0 ? took : quartile_ * std::max(1.0, now / before);
      count_ = 0;
    }
    decodes_ = decodes;
    last_[count_++ % last_.size()] = took;
    auto sorted = last_;
    size_t n = std::min(count_, last_.size());
    std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(n));
    quartile_ = sorted[(n - 1) / 4];
    if (!settled()) quartile_ = std::min(quartile_, bound_);
  }

 private:
  std::array<double, 16> last_{};
  size_t count_ = 0;  // steps in a row with about as many sequences
  int64_t decodes_ = 0;
  double quartile_ = 0, bound_ = 0;
};

}  // namespace tokamak
