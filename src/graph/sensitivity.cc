#include "graph/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace tokamak {
namespace {

// gelu computes 1 + erf(x): where that cancels, its result is exact only to this.
constexpr double kGeluTail = 1e-14;

class Disturber {
 public:
  Disturber(double delta, uint64_t seed, const std::function<double(const Node&)>& weight)
      : delta_(delta), rng_(seed), weight_(weight) {}

  void record(const EvalTensor<double>& t) {
    if (t.integer) integers_.push_back(t.i);
  }
  void start() { next_ = 0; }
  void disturb(const Node& node, EvalTensor<double>& t) {
    if (t.integer) {
      TK_CHECK(next_ < integers_.size() && integers_[next_].size() == t.i.size());
      t.i = integers_[next_++];
      return;
    }
    bool tail = node.op->name == "gelu";
    double delta = weight_ ? delta_ * weight_(node) : delta_;
    for (double& v : t.f) {
      double by = direction();
      v *= 1 + by * delta;
      if (tail && v <= 0 && v > -1e-3) v += by * kGeluTail;
    }
  }

 private:
  // In -1..-0.5 or 0.5..1.
  double direction() {
    if (left_ == 0) {
      bits_ = rng_.next_u32();
      left_ = 4;
    }
    uint32_t byte = bits_ & 255;
    bits_ >>= 8;
    --left_;
    double size = 0.5 + (byte >> 1) / 254.0;
    return byte & 1 ? size : -size;
  }

  double delta_;
  Rng rng_;
  const std::function<double(const Node&)>& weight_;
  uint32_t bits_ = 0;
  int left_ = 0;
  std::vector<std::vector<int32_t>> integers_;
  size_t next_ = 0;
};

double change(double from, double to) {
  if (std::isfinite(from) && std::isfinite(to)) return std::abs(from - to);
  bool both = !std::isfinite(from) && !std::isfinite(to);
  return both && from != -to ? 0 : std::numeric_limits<double>::infinity();
}

}  // namespace

Spread measure_spread(const SpreadRunner& run, double delta, int samples, uint64_t seed,
                      const std::function<double(const Node&)>& weight) {
  Disturber disturber(delta, seed, weight);
  Spread out;
  out.values = run([&](const Node&, const EvalTensor<double>& t) { disturber.record(t); });
  for (const std::vector<double>& v : out.values) out.by.emplace_back(v.size(), 0.0);
  for (int sample = 0; sample < samples; ++sample) {
    disturber.start();
    auto moved = run([&](const Node& node, EvalTensor<double>& t) { disturber.disturb(node, t); });
    for (size_t r = 0; r < moved.size(); ++r)
      for (size_t i = 0; i < moved[r].size(); ++i)
        out.by[r][i] = std::max(out.by[r][i], change(out.values[r][i], moved[r][i]));
  }
  return out;
}

}  // namespace tokamak
