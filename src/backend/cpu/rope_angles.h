#pragma once
// cos and sin of the rotations of a step, computed in double, once for all ops that turn by the
// same frequencies at the same positions.
#include <cmath>
#include <vector>

#include "backend/cpu/exec.h"

namespace tokamak::cpu {

// Shared by the ops of a plan; computed by the first of them that runs in a step.
class RopeAngles {
 public:
  RopeAngles(int64_t half, float scale, int64_t rows)
      : half_(half), scale_(scale), values_(static_cast<size_t>(rows * half * 2)) {}

  bool same(const RopeAngles& o) const {
    return half_ == o.half_ && scale_ == o.scale_ && values_.size() == o.values_.size();
  }
  int64_t half() const { return half_; }
  uint64_t bytes() const { return values_.capacity() * sizeof(float); }

  void ensure(const StepContext& c, const int32_t* positions, const float* frequencies,
              int64_t rows) {
    if (step_ == c.number) return;
    step_ = c.number;
    for (int64_t t = 0; t < rows; ++t) {
      float* to = values_.data() + t * half_ * 2;
      for (int64_t j = 0; j < half_; ++j) {
        double angle = static_cast<double>(positions[t]) * static_cast<double>(frequencies[j]);
        to[j] = static_cast<float>(std::cos(angle) * static_cast<double>(scale_));
        to[half_ + j] = static_cast<float>(std::sin(angle) * static_cast<double>(scale_));
      }
    }
  }
  const float* cosines(int64_t row) const { return values_.data() + row * half_ * 2; }
  const float* sines(int64_t row) const { return cosines(row) + half_; }

 private:
  int64_t half_;
  float scale_;
  uint64_t step_ = 0;
  std::vector<float> values_;
};

}  // namespace tokamak::cpu
