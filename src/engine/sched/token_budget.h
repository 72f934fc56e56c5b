#pragma once
// The number of prompt tokens in a step, chosen so that its predicted time meets a target for the
// time per output token.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/clock.h"

namespace tokamak {

// A step takes the time of its decodes, as last measured without prompts, and for each prompt token
// a cost that grows linearly with the position of the token (attention); both numbers are fitted to
// the last steps with prompts. If decodes alone take more than half of the target, prompts get as
// much time as decodes. Steps without decodes are bounded too, so that an engine reacts to
// cancellations and arrivals. Pure arithmetic; owned by the scheduler.
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
    double all = decodes > 0 ? std::max(target_, 2 * alone_) : std::max(target_, kLongest) + alone_;
    return (all - alone_) / slack_;
  }
  // The most prompt tokens from position `start` on that take at most `time`.
  int64_t fit(double time, int64_t start) const {
    if (!std::isfinite(time)) return most_;
    if (weight_ == 0) return std::min(most_, kFirst);
    // n * (base + slope * (start + n / 2)) = time
    double first = base_ + slope_ * static_cast<double>(start);
    double n = 2 * time / (first + std::sqrt(first * first + 2 * slope_ * std::max(0.0, time)));
    return std::clamp<int64_t>(static_cast<int64_t>(std::min(n, 1e9)), 0, most_);
  }
  double cost(const Prompts& p) const {
    return base_ * static_cast<double>(p.tokens) + slope_ * p.positions;
  }
  // A step took this long.
  void observe(const Prompts& prompts, int64_t decodes, Nanos duration) {
    double took = seconds(duration);
    if (!bounded() || took <= 0) return;
    if (prompts.tokens == 0) {
      if (decodes > 0) alone_ = alone_ == 0 ? took : 0.5 * (alone_ + took);
      return;
    }
    if (weight_ > 0) {
      double ratio = took / (alone_ + cost(prompts));
      slack_ = std::clamp(std::max(ratio, kKeep * slack_ + (1 - kKeep) * ratio), 1.0, kMaxSlack);
    }
    auto n = static_cast<double>(prompts.tokens);
    learn(std::max(took - alone_, 0.2 * took) / n, prompts.positions / n, std::min(1.0, n / 32));
  }

 private:
  // A linear regression of the cost of a token on its position; older steps count less.
  void learn(double cost, double position, double weight) {
    for (double* sum : {&weight_, &x_, &y_, &xx_, &xy_}) *sum *= kKeep;
    weight_ += weight;
    x_ += weight * position;
    y_ += weight * cost;
    xx_ += weight * position * position;
    xy_ += weight * position * cost;
    double mean_x = x_ / weight_, mean_y = y_ / weight_;
    double variance = xx_ / weight_ - mean_x * mean_x;
    // Positions that are all alike say nothing about the slope.
    if (variance > kSpread * kSpread)
      slope_ = std::max(0.0, (xy_ / weight_ - mean_x * mean_y) / variance);
    base_ = std::max(mean_y - slope_ * mean_x, 0.05 * mean_y);
  }

  static constexpr int64_t kFirst = 32;   // tokens of the first step, whose cost is not known
  static constexpr double kLongest = 1;   // seconds of a step without decodes
  static constexpr double kKeep = 0.8;    // weight of the past, per step
  static constexpr double kMaxSlack = 4;  // bound of the correction for steps that took too long
  static constexpr double kSpread = 64;   // standard deviation of positions
  int64_t most_;
  double target_;
  double alone_ = 0;  // seconds of a step without prompts
  double slack_ = 1;  // how much longer than predicted the last steps took
  double base_ = 0, slope_ = 0;
  double weight_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
};

}  // namespace tokamak
