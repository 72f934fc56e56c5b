#pragma once
// Mirostat (Basu et al. 2021), versions 1 and 2, as llama.cpp runs it: tokens are cut off so that
// the surprise of the chosen ones, in bits, stays near a target. The bound `mu` is a state of the
// sequence: it starts at 2 tau and moves by eta times the error after every token.
#include <cstdint>
#include <span>
#include <vector>

#include "plan/step.h"

namespace tokamak {

// Owned by a Sampler. It works on the distribution after bias, mask and temperature; penalties and
// the other filters do not run. Costs three passes over the vocabulary in double, and a sort of the
// likeliest tokens for version 1.
class Mirostat {
 public:
  explicit Mirostat(int64_t vocab) : vocab_(vocab) {}
  static bool applies(const SampleRow& sample) {
    return sample.spec && sample.spec->mirostat != 0 && sample.spec->temperature > 0 &&
           (sample.mode == SampleRow::Mode::kSample || sample.mode == SampleRow::Mode::kDraft);
  }
  static float bound(const SampleSpec& spec, float mu) {
    return mu == kMirostatStart ? 2 * spec.mirostat_tau : mu;
  }

  // The tokens of a row that are left: a subset of `mask` (empty: all tokens). Valid until the next
  // call.
  std::span<const uint32_t> filter(const SampleRow& sample, float mu, std::span<const float> logits,
                                   std::span<const uint32_t> mask);
  // The bound after one of the tokens that filter() left has been chosen. `log_total` is what
  // log_total() was after filter().
  float after(const SampleRow& sample, float mu, std::span<const float> logits, int32_t id,
              double log_total) const;
  double log_total() const { return log_total_; }  // log of the sum of e^x over the tokens left

 private:
  double value(const SampleRow& sample, std::span<const float> logits, int32_t id) const;
  void keep_likeliest(float mu);
  void keep_unsurprising(float mu);
  double log_sum() const;  // over ids_

  int64_t vocab_;
  std::vector<double> x_;  // by token; -infinity: not allowed
  std::vector<int32_t> ids_;
  std::vector<uint32_t> left_;
  double log_total_ = 0;
};

}  // namespace tokamak
