#pragma once
// The number of tokens of a step, chosen to meet a target for the time per output token.
#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace tokamak {

// Keeps steps with decodes near `target`: after each one the budget is scaled by target / time,
// starting from a small budget. If decodes alone take more than half of the target, prompts get as
// much time as decodes. Pure arithmetic; owned by EngineCore.
class TokenBudget {
 public:
  TokenBudget(int64_t most, Nanos target)
      : most_(most), target_(target), tokens_(std::min(most, kFirst)) {}

  // The budget of a step in which `decodes` sequences decode.
  int64_t tokens(int64_t decodes) const {
    if (target_ == 0 || decodes == 0) return most_;
    return std::min(most_, std::max(tokens_, decodes + kLeastPrefill));
  }
  // A step took this long.
  void observe(int64_t tokens, int64_t decodes, Nanos duration) {
    if (target_ == 0 || decodes == 0 || duration <= 0) return;
    if (tokens == decodes) alone_ = duration;
    Nanos target = std::max(target_, 2 * alone_);
    double ratio = static_cast<double>(target) / static_cast<double>(duration);
    bool limited = tokens * 10 >= this->tokens(decodes) * 9;  // more would have been used
    if (ratio > 1 && !limited) return;
    ratio = std::clamp(ratio, 0.5, 1.25);
    double next = static_cast<double>(std::min(tokens_, most_)) * ratio;
    tokens_ = std::clamp<int64_t>(static_cast<int64_t>(next), kLeastPrefill, most_);
  }

 private:
  static constexpr int64_t kLeastPrefill = 16;  // a prompt always makes progress
  static constexpr int64_t kFirst = 128;
  int64_t most_;
  Nanos target_;
  int64_t tokens_;
  Nanos alone_ = 0;  // of the last step without prompts
};

}  // namespace tokamak
