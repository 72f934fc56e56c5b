#pragma once
// The number of prompt tokens in a step, chosen so that its predicted time meets a target for the
// time per output token.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/clock.h"
#include "engine/sched/prompt_cost.h"

namespace tokamak {

// A step is predicted from one that was measured, of n tokens that took t. It is moved to another
// depth and another number of tokens by the fitted costs (PromptCost). With k * n tokens, k > 1, it
// is assumed to take k * t, which holds whether prompts add to the time of the decodes or overlap
// with the reading of weights. Shallower tokens are assumed to cost at least half, until they have
// been measured. The result is corrected by how much longer than predicted the last steps took. If
// decodes alone take more than half of the target, prompts get as much time as decodes. Steps
// without decodes are bounded too, so that an engine reacts to cancellations and arrivals. Pure
// arithmetic; owned by the scheduler.
class TokenBudget {
 public:
  using Prompts = PromptTokens;
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
    if (measured_.tokens == 0) return std::min(most_, kFirst);
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
    if (measured_.tokens == 0 || alone_ == 0) return kLeastPrefill;
    return std::clamp<int64_t>(fit(alone_, start), 2, kLeastPrefill);
  }
  // Seconds that these prompts add to a step.
  double cost(const Prompts& p) const {
    if (measured_.tokens == 0 || p.tokens == 0) return 0;
    double part = static_cast<double>(p.tokens) / static_cast<double>(measured_.tokens);
    Prompts same{measured_.tokens, p.depth, p.positions / part};  // as many as measured, here
    double fitted = cost_.seconds(same);
    double here = added_ * std::max(0.5, ratio(fitted, cost_.seconds(measured_)));
    double predicted = here * std::max(std::min(part, 1.0), ratio(cost_.seconds(p), fitted));
    double more = static_cast<double>(p.tokens - kFree) / static_cast<double>(measured_.tokens);
    return std::max(predicted, more * (here + alone_) - alone_);
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
    double predicted = took;
    if (measured_.tokens > 0) {
      predicted = alone_ + cost(prompts);
      double longer = took / (kTolerance * predicted);
      slack_ = std::clamp(std::max(longer, kKeep * slack_ + (1 - kKeep) * longer), 1.0, kMaxSlack);
    }
    cost_.observe(prompts, std::max(took - alone_, 0.0), took);
    // The end of a prompt says little about larger chunks.
    if (2 * prompts.tokens < measured_.tokens && ++small_ < kSmall) return;
    small_ = 0;
    measured_ = prompts;
    added_ = std::max(0.5 * (took + predicted) - alone_, 0.0);
  }

 private:
  static double ratio(double a, double b) { return b > 0 ? a / b : 1; }

  static constexpr int64_t kFree = 2;        // tokens by which a chunk grows as fitted
  static constexpr int64_t kFirst = 32;      // tokens of the first step, whose cost is not known
  static constexpr double kLongest = 1;      // seconds of a step without decodes
  static constexpr double kKeep = 0.8;       // weight of the past in the correction, per step
  static constexpr double kTolerance = 1.1;  // steps that take this much longer are as predicted
  static constexpr double kMaxSlack = 4;     // bound of the correction for steps that took too long
  static constexpr int kSmall = 8;           // small chunks in a row after which they count
  int64_t most_;
  double target_;
  double alone_ = 0;  // seconds of a step without prompts
  double slack_ = 1;  // how much longer than predicted the last steps took
  Prompts measured_;  // the measured step; no tokens: none yet
  double added_ = 0;  // seconds that its prompts took
  int small_ = 0;     // smaller chunks since then
  PromptCost cost_;
};

}  // namespace tokamak
