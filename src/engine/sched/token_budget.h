#pragma once
// The number of prompt tokens in a step, chosen so that its predicted time meets a target for the
// time per output token.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/clock.h"

namespace tokamak {

// Two predictions of a step's time, of which the longer one counts. Both have a cost per prompt
// token that grows linearly with the position of the token (attention) and is fitted to the last
// steps with prompts: one adds it to the time of a step without prompts, which is right for small
// chunks after large ones; the other divides the whole time among the prompt tokens, which is right
// for larger chunks than before, also if a few tokens cost nothing because weights must be read
// anyway. If decodes alone take more than half of the target, prompts get as much time as decodes.
// Steps without decodes are bounded too, so that an engine reacts to cancellations and arrivals.
// Pure arithmetic; owned by the scheduler.
class TokenBudget {
 public:
  struct Prompts {  // prompt tokens of a step
    int64_t tokens = 0;
    double positions = 0;  // sum of their positions
    void add(int64_t count, int64_t start) {
      tokens += count;
      positions += static_cast<double>(count) *
                   (static_cast<double>(start) + 0.5 * static_cast<double>(count));
    }
  };
  static constexpr int64_t kLeastPrefill = 16;  // a prompt always makes progress

  TokenBudget(int64_t most, Nanos target) : most_(most), target_(seconds(target)) {}

  bool bounded() const { return target_ > 0; }
  // Seconds for the prompts of a step in which `decodes` sequences decode.
  double time(int64_t decodes) const {
    if (!bounded()) return std::numeric_limits<double>::infinity();
    double all = std::max({target_, 2 * alone_, decodes > 0 ? 0 : kLongest});
    return all / slack_ - alone_;
  }
  // The most prompt tokens from position `start` on that take at most `time`.
  int64_t fit(double time, int64_t start) const {
    if (!std::isfinite(time)) return most_;
    if (weight_ == 0) return std::min(most_, kFirst);
    double n = std::min(added_.fit(time, start), whole_.fit(time + alone_, start));
    return std::clamp<int64_t>(static_cast<int64_t>(std::min(n, 1e9)), 0, most_);
  }
  double cost(const Prompts& p) const { return std::max(added_.cost(p), whole_.cost(p)); }
  // A step took this long.
  void observe(const Prompts& prompts, int64_t decodes, Nanos duration) {
    double took = seconds(duration);
    if (!bounded() || took <= 0) return;
    if (prompts.tokens == 0) {
      if (decodes > 0) alone_ = alone_ == 0 ? took : 0.5 * (alone_ + took);
      return;
    }
    if (weight_ > 0) {
      double ratio = took / std::max(alone_ + added_.cost(prompts), whole_.cost(prompts));
      slack_ = std::clamp(std::max(ratio, kKeep * slack_ + (1 - kKeep) * ratio), 1.0, kMaxSlack);
    }
    auto n = static_cast<double>(prompts.tokens);
    double position = prompts.positions / n, weight = std::min(1.0, n / 32);
    for (double* sum : {&weight_, &x_, &xx_}) *sum *= kKeep;
    weight_ += weight;
    x_ += weight * position;
    xx_ += weight * position * position;
    double mean = x_ / weight_, variance = xx_ / weight_ - mean * mean;
    for (Cost* c : {&added_, &whole_})
      c->learn((c == &added_ ? std::max(took - alone_, 0.0) : took) / n, position, weight, weight_,
               mean, variance);
  }

 private:
  // Seconds per token, base + slope * position: a linear regression in which older steps count
  // less.
  struct Cost {
    double base = 0, slope = 0, y = 0, xy = 0;

    double cost(const Prompts& p) const {
      return base * static_cast<double>(p.tokens) + slope * p.positions;
    }
    // n * (base + slope * (start + n / 2)) = time
    double fit(double time, int64_t start) const {
      double first = base + slope * static_cast<double>(start);
      double root = std::sqrt(first * first + 2 * slope * std::max(0.0, time));
      return first + root > 0 ? 2 * time / (first + root) : 1e9;
    }
    void learn(double cost, double position, double weight, double all, double mean_x,
               double variance) {
      y = kKeep * y + weight * cost;
      xy = kKeep * xy + weight * position * cost;
      double mean_y = y / all;
      // Positions that are all alike say nothing about the slope.
      if (variance > kSpread * kSpread)
        slope = std::max(0.0, (xy / all - mean_x * mean_y) / variance);
      base = std::max(mean_y - slope * mean_x, 0.05 * mean_y);
    }
  };

  static constexpr int64_t kFirst = 32;   // tokens of the first step, whose cost is not known
  static constexpr double kLongest = 1;   // seconds of a step without decodes
  static constexpr double kKeep = 0.8;    // weight of the past, per step
  static constexpr double kMaxSlack = 4;  // bound of the correction for steps that took too long
  static constexpr double kSpread = 64;   // standard deviation of positions
  int64_t most_;
  double target_;
  double alone_ = 0;  // seconds of a step without prompts
  double slack_ = 1;  // how much longer than predicted the last steps took
  double weight_ = 0, x_ = 0, xx_ = 0;
  Cost added_, whole_;
};

}  // namespace tokamak
