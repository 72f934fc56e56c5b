#pragma once
// The number of prompt tokens in a step, chosen so that its predicted time stays within a limit.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/clock.h"
#include "engine/sched/decode_pace.h"
#include "engine/sched/prompt_cost.h"

namespace tokamak {

// The limit of a step is the target or, where a streamed answer decodes and `pace` is given, `pace`
// times what the decodes take without prompts (DecodePace), with room for the spread of steps: that
// time is divided by how much longer than predicted the slowest of the last steps took. Steps that
// are shorter than kShortest need no such room.
//
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
  static constexpr double kShortest = 0.01;  // seconds: shorter pauses are not worth small chunks

  TokenBudget(int64_t most, Nanos target, double pace = 0)
      : most_(most), target_(seconds(target)), pace_factor_(pace) {}

  bool bounded() const { return target_ > 0; }
  // Seconds of a step in which `decodes` sequences decode, some of them `streamed`.
  double limit(int64_t decodes, bool streamed) const {
    if (!bounded()) return std::numeric_limits<double>::infinity();
    if (pace_factor_ > 0 && decodes > 0 && streamed) {
      double most = alone() > 0 ? pace_factor_ * alone() : kShortest;
      return std::max(std::min(kShortest, most), most / spread_);
    }
    return std::max({target_, std::max(2.0, pace_factor_) * alone(), decodes > 0 ? 0 : kLongest});
  }
  // Seconds that a step with these prompts takes.
  double predict(const Prompts& p) const { return slack_ * (alone() + cost(p)); }
  // The most prompt tokens from position `start` on that a step with `taken` can take in addition,
  // so that it is predicted to take at most `limit`.
  int64_t fit(const Prompts& taken, double limit, int64_t start) const {
    if (!std::isfinite(limit)) return most_;
    if (measured_.tokens == 0) return std::clamp<int64_t>(kFirst - taken.tokens, 0, most_);
    int64_t fits = 0, exceeds = most_ + 1;
    while (exceeds - fits > 1) {
      int64_t n = fits + (exceeds - fits) / 2;
      Prompts all = taken;
      all.add(n, start);
      (predict(all) <= limit ? fits : exceeds) = n;
    }
    return fits;
  }
  // A prompt makes progress in every step: by this many tokens, or as many as take as much time as
  // the decodes.
  int64_t least(int64_t start) const {
    if (measured_.tokens == 0 || alone() == 0) return kLeastPrefill;
    return std::clamp<int64_t>(fit({}, slack_ * 2 * alone(), start), 2, kLeastPrefill);
  }
  // Whether the next step should have no prompts, because the pace of this number of decodes was
  // not measured, or not recently. Twice at most where the number is new: the first of two steps
  // in flight is not measured yet when the second one is planned. Prompts do not wait for more than
  // two steps, however the number changes.
  bool measure_pace(int64_t decodes) {
    if (!bounded() || pace_factor_ == 0 || decodes == 0) return false;
    if (pace_.covers(decodes))
      asks_ = 0;
    else if (asks_ < 2)
      return ask(asks_ + 1);
    return ++mixed_ >= (pace_.settled() ? kRefresh : kSettle) && ask(1);
  }
  // A step took this long.
  void observe(const Prompts& prompts, int64_t decodes, Nanos duration) {
    double took = seconds(duration);
    if (!bounded() || took <= 0) return;
    if (prompts.tokens == 0) {
      if (decodes > 0) pace_.observe(decodes, took);
      mixed_ = 0;
      return;
    }
    if (decodes == 0) took += alone();  // as it would be with them
    double predicted = took;
    if (measured_.tokens > 0) {
      predicted = alone() + cost(prompts);
      double ratio = took / predicted, longer = ratio / kTolerance;
      // A step that took even longer was interrupted, which shorter steps do not prevent.
      if (ratio < kMostSpread) spread_ = std::max({kLeastSpread, ratio, kKeepSpread * spread_});
      slack_ = std::clamp(std::max(longer, kKeep * slack_ + (1 - kKeep) * longer), 1.0, kMaxSlack);
    }
    cost_.observe(prompts, std::max(took - alone(), 0.0), took);
    // The end of a prompt says little about larger chunks.
    if (2 * prompts.tokens < measured_.tokens && ++small_ < kSmall) return;
    small_ = 0;
    measured_ = prompts;
    added_ = std::max(0.5 * (took + predicted) - alone(), 0.0);
  }

 private:
  bool ask(int asks) {
    asks_ = asks;
    mixed_ = 0;
    return true;
  }
  static double ratio(double a, double b) { return b > 0 ? a / b : 1; }
  double alone() const { return pace_.seconds(); }  // of a step without prompts
  // Seconds that these prompts add to a step. Not additive: chunks are priced together.
  double cost(const Prompts& p) const {
    if (measured_.tokens == 0 || p.tokens == 0) return 0;
    double part = static_cast<double>(p.tokens) / static_cast<double>(measured_.tokens);
    Prompts same{measured_.tokens, p.depth, p.positions / part};  // as many as measured, here
    double fitted = cost_.seconds(same);
    double here = added_ * std::max(0.5, ratio(fitted, cost_.seconds(measured_)));
    double predicted = here * std::max(std::min(part, 1.0), ratio(cost_.seconds(p), fitted));
    double more = static_cast<double>(p.tokens - kFree) / static_cast<double>(measured_.tokens);
    return std::max(predicted, more * (here + alone()) - alone());
  }

  static constexpr int64_t kFree = 2;        // tokens by which a chunk grows as fitted
  static constexpr int64_t kFirst = 32;      // tokens of the first step, whose cost is not known
  static constexpr double kLongest = 1;      // seconds of a step without decodes
  static constexpr double kKeep = 0.8;       // weight of the past in the correction, per step
  static constexpr double kTolerance = 1.1;  // steps that take this much longer are as predicted
  static constexpr double kMaxSlack = 4;     // bound of the correction for steps that took too long
  static constexpr int kSmall = 8;           // small chunks in a row after which they count
  static constexpr double kLeastSpread = 1.25, kMostSpread = 1.5, kKeepSpread = 0.995;
  static constexpr int kSettle = 8, kRefresh = 16;  // steps after which the pace is measured again
  int64_t most_;
  double target_;
  double pace_factor_;  // 0: streamed answers are treated as others
  DecodePace pace_;
  int asks_ = 0;                  // steps without prompts that measure_pace() asked for, in a row
  int mixed_ = 0;                 // steps with prompts since then
  double slack_ = 1;              // how much longer than predicted the last steps took
  double spread_ = kLeastSpread;  // ... and the slowest of many
  Prompts measured_;              // the measured step; no tokens: none yet
  double added_ = 0;              // seconds that its prompts took
  int small_ = 0;                 // smaller chunks since then
  PromptCost cost_;
};

// The prompts of a step that is being put together. No chunk that fits makes the step longer than
// its limit, by the prediction; the first chunk may be as small as TokenBudget::least() instead.
class StepPrompts {
 public:
  StepPrompts(const TokenBudget& budget, int64_t decodes, bool streamed)
      : budget_(&budget), limit_(budget.limit(decodes, streamed)) {}

  double limit() const { return limit_; }
  double predicted() const { return budget_->predict(taken_); }
  const PromptTokens& taken() const { return taken_; }
  // The most tokens of another chunk at this position.
  int64_t fit(int64_t start) const {
    int64_t least = taken_.tokens > 0 ? 0 : budget_->least(start);
    return std::max(least, budget_->fit(taken_, limit_, start));
  }
  void add(int64_t tokens, int64_t start) { taken_.add(tokens, start); }
  bool full() const { return budget_->fit(taken_, limit_, 0) == 0; }

 private:
  const TokenBudget* budget_;
  double limit_;
  PromptTokens taken_;
};

}  // namespace tokamak
