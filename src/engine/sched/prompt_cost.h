#pragma once
// How long the prompt tokens of a step take, learned from measured steps.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace tokamak {

// The prompt tokens of a step.
struct PromptTokens {
  int64_t tokens = 0;
  double depth = 0;      // sum of the positions at which chunks start
  double positions = 0;  // sum of the positions of all tokens
  void add(int64_t count, int64_t start) {
    auto n = static_cast<double>(count), from = static_cast<double>(start);
    tokens += count;
    depth += from;
    positions += n * (from + 0.5 * n);
  }
};

// The seconds of a chunk are a constant, a part that grows with its depth (keys and values are read
// once for all of its tokens), one with its tokens, and one with the sum of their positions. No
// part is negative. They are fitted to the measured steps by least squares of relative errors;
// older steps count less, and where the steps do not tell two parts apart the fit stays as it is.
// Pure arithmetic.
class PromptCost {
 public:
  double seconds(const PromptTokens& p) const {
    Row x = row(p);
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += parts_[i] * x[i];
    return sum;
  }

  // The prompts of a step of `all` seconds took `seconds` of it.
  void observe(const PromptTokens& p, double seconds, double all) {
    Row x = row(p);
    if (!known_) {  // a token at position 1000 is taken to cost twice as much as the first
      known_ = true;
      parts_[2] = parts_[3] = seconds / (x[2] + x[3]);
    }
    double weight = 1 / (all * all);
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t j = 0; j < x.size(); ++j)
        normal_[i][j] = kKeep * normal_[i][j] + weight * x[i] * x[j];
      target_[i] = kKeep * target_[i] + weight * x[i] * seconds;
    }
    solve();
  }

 private:
  using Row = std::array<double, 4>;

  static Row row(const PromptTokens& p) {
    if (p.tokens == 0) return {};
    return {1, p.depth / 1000, static_cast<double>(p.tokens) / 32, p.positions / 32000};
  }

  // Coordinate descent from the last fit, which is also what the fit is drawn to.
  void solve() {
    Row last = parts_;
    for (int sweep = 0; sweep < kSweeps; ++sweep)
      for (size_t i = 0; i < parts_.size(); ++i) {
        double pull = kPull * normal_[i][i];
        if (normal_[i][i] <= 0) continue;
        double rest = target_[i] + pull * last[i];
        for (size_t j = 0; j < parts_.size(); ++j)
          if (j != i) rest -= normal_[i][j] * parts_[j];
        parts_[i] = std::max(0.0, rest / (normal_[i][i] + pull));
      }
  }

  static constexpr double kKeep = 0.95, kPull = 0.02;
  static constexpr int kSweeps = 40;

  bool known_ = false;
  Row parts_{};
  std::array<Row, 4> normal_{};
  Row target_{};
};

}  // namespace tokamak
