#pragma once
// The number of prompt tokens in a step, chosen so that its predicted time meets a target for the
// time per output token.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/clock.h"

namespace tokamak {

// A step is predicted from one that was measured, of n tokens that took t: with k * n tokens at the
// same depth it takes at most max(a + k * (t - a), k * t), where a is the time of a step without
// prompts. The first holds for fewer tokens, the second for more, whether prompts add to the time
// of the decodes or are hidden behind the reading of weights. Deeper tokens cost more (attention):
// by a line fitted to the steps of the last prompts. Shallower ones are taken to cost at least
// half, until they have been measured. The result is corrected by how much longer than predicted
// the last steps took. If decodes alone take more than half of the target, prompts get as much time
// as decodes. Steps without decodes are bounded too, so that an engine reacts to cancellations and
// arrivals. Pure arithmetic; owned by the scheduler.
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
  static constexpr int64_t kLeastPrefill = 16;

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
    if (tokens_ == 0) return std::min(most_, kFirst);
    int64_t fits = 0, exceeds = most_ + 1;
    while (exceeds - fits > 1) {
      int64_t n = fits + (exceeds - fits) / 2;
      Prompts chunk;
      chunk.add(n, start);
      (cost(chunk) <= time ? fits : exceeds) = n;
    }
    return fits;
  }
  // A prompt makes progress in every step: by this many tokens, or as many as take as much time as
  // the decodes.
  int64_t least(int64_t start) const {
    if (tokens_ == 0 || alone_ == 0) return kLeastPrefill;
    return std::clamp<int64_t>(fit(alone_, start), 2, kLeastPrefill);
  }
  // Seconds that these prompts add to a step.
  double cost(const Prompts& p) const {
    if (tokens_ == 0 || p.tokens == 0) return 0;
    double deeper =
        std::max(0.5, depth(p.positions / static_cast<double>(p.tokens)) / depth(position_));
    double part = deeper * static_cast<double>(p.tokens) / tokens_;
    return std::max(part * (took_ - alone_), part * took_ - alone_);
  }
  // A step took this long.
  void observe(const Prompts& prompts, int64_t decodes, Nanos duration) {
    double took = seconds(duration);
    if (!bounded() || took <= 0) return;
    if (prompts.tokens == 0) {
      if (decodes > 0) alone_ = alone_ == 0 ? took : kKeep * alone_ + (1 - kKeep) * took;
      return;
    }
    if (decodes == 0) took += alone_;  // as it would be with them
    double predicted = tokens_ > 0 ? alone_ + cost(prompts) : took;
    if (tokens_ > 0) {
      double ratio = took / predicted;
      slack_ = std::clamp(std::max(ratio, kKeep * slack_ + (1 - kKeep) * ratio), 1.0, kMaxSlack);
    }
    auto n = static_cast<double>(prompts.tokens);
    double position = prompts.positions / n;
    learn_depth(position, std::max(took - alone_, 0.0) / n, std::min(1.0, n / 32));
    // The end of a prompt says little about larger chunks.
    if (n < 0.5 * tokens_ && ++small_ < kSmall) return;
    small_ = 0;
    tokens_ = n;
    position_ = position;
    took_ = std::max(0.5 * (took + predicted), alone_);
  }

 private:
  double depth(double position) const { return base_ + slope_ * position; }

  // A linear regression of the cost per token in which older steps count less.
  void learn_depth(double x, double y, double weight) {
    for (double* sum : {&weight_, &x_, &xx_, &y_, &xy_}) *sum *= kKeepDepth;
    weight_ += weight;
    x_ += weight * x;
    xx_ += weight * x * x;
    y_ += weight * y;
    xy_ += weight * x * y;
    double mean_x = x_ / weight_, mean_y = y_ / weight_;
    double spread = std::sqrt(std::max(0.0, xx_ / weight_ - mean_x * mean_x));
    // Positions that are all alike say nothing about the slope.
    if (spread > std::max(kSpread, kRelativeSpread * mean_x)) {
      slope_ = std::max(0.0, (xy_ / weight_ - mean_x * mean_y) / (spread * spread));
      slope_known_ = true;
    }
    if (!slope_known_) slope_ = mean_y / (kDoubles + mean_x);
    base_ = std::max({mean_y - slope_ * mean_x, 0.05 * mean_y, 1e-12});
  }

  static constexpr int64_t kFirst = 32;   // tokens of the first step, whose cost is not known
  static constexpr double kLongest = 1;   // seconds of a step without decodes
  static constexpr double kKeep = 0.8;    // weight of the past in the correction, per step
  static constexpr double kMaxSlack = 4;  // bound of the correction for steps that took too long
  static constexpr int kSmall = 8;        // small chunks in a row after which they count
  static constexpr double kKeepDepth = 0.9;
  static constexpr double kSpread = 32, kRelativeSpread = 0.2;  // standard deviation of positions
  static constexpr double kDoubles = 1000;  // position at which a token is taken to cost twice as
                                            // much, until it is known
  int64_t most_;
  double target_;
  double alone_ = 0;  // seconds of a step without prompts
  double slack_ = 1;  // how much longer than predicted the last steps took
  // The measured step: tokens, their mean position, seconds. 0 tokens: none yet.
  double tokens_ = 0, position_ = 0, took_ = 0;
  bool slope_known_ = false;
  int small_ = 0;                // smaller chunks since then
  double base_ = 0, slope_ = 0;  // seconds per token by position
  double weight_ = 0, x_ = 0, xx_ = 0, y_ = 0, xy_ = 0;
};

}  // namespace tokamak
