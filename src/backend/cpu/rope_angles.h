#pragma once
// cos and sin of the rotations of a step, computed in double, once for all ops that turn by the
// same frequencies at the same positions.
#include <cmath>
#include <vector>

#include "backend/cpu/exec.h"

namespace tokamak::cpu {

// Shared by the ops of a plan; made by a call of its own at the start of the plan, or by the first
// stage of the op that owns it.
class RopeAngles {
 public:
  RopeAngles(int64_t half, float scale, int64_t rows)
      : half_(half), scale_(scale), values_(static_cast<size_t>(rows * half * 2)) {}

  bool same(const RopeAngles& o) const {
    return half_ == o.half_ && scale_ == o.scale_ && values_.size() == o.values_.size();
  }
  int64_t half() const { return half_; }
  uint64_t bytes() const { return values_.capacity() * sizeof(float); }

  // This thread's rows.
  void make(const Tensor& positions, const float* frequencies, const StepContext& c) {
    auto [begin, end] = c.part(positions.elements(), 1);
    for (int64_t t = begin; t < end; ++t) {
      float* to = values_.data() + t * half_ * 2;
      for (int64_t j = 0; j < half_; ++j) {
        double angle =
            static_cast<double>(positions.i32()[t]) * static_cast<double>(frequencies[j]);
        to[j] = static_cast<float>(std::cos(angle) * static_cast<double>(scale_));
        to[half_ + j] = static_cast<float>(std::sin(angle) * static_cast<double>(scale_));
      }
    }
  }
  void touch(const Tensor& positions, const StepContext& c, AccessList& list) const {
    auto [begin, end] = c.part(positions.elements(), 1);
    if (begin >= end) return;
    list.read_rows(positions, 4, begin, end);
    touch_rows(begin, end, true, list);
  }
  void touch_rows(int64_t begin, int64_t end, bool write, AccessList& list) const {
    list.memory(cosines(begin), (end - begin) * half_ * 8, write);
  }
  const float* cosines(int64_t row) const { return values_.data() + row * half_ * 2; }
  const float* sines(int64_t row) const { return cosines(row) + half_; }
  std::span<uint8_t> memory() {
    return {reinterpret_cast<uint8_t*>(values_.data()), values_.size() * sizeof(float)};
  }

 private:
  int64_t half_;
  float scale_;
  std::vector<float> values_;
};

// Makes angles that several ops of a plan use. `args` are those of one of them.
class MakeAngles final : public CpuOp {
 public:
  MakeAngles(const RopeUse& use, const Tensor* args) : use_(use), args_(args) {}
  void run(const Tensor*, const Tensor*, const StepContext& c) const override {
    use_.angles->make(args_[use_.positions], args_[use_.frequencies].f32(), c);
  }
  void touch(const Tensor*, const Tensor*, const StepContext& c, AccessList& list) const override {
    use_.angles->touch(args_[use_.positions], c, list);
  }
  uint64_t own_bytes() const override {  // all users have an equal part of it
    return use_.angles->bytes() / static_cast<uint64_t>(use_.angles.use_count());
  }

 private:
  RopeUse use_;
  const Tensor* args_;
};

}  // namespace tokamak::cpu
