#include "backend/common/token_chooser.h"

#include <algorithm>
#include <cmath>

#include "backend/common/logits_math.h"

namespace tokamak {

TokenChooser::TokenChooser(int64_t vocab) : vocab_(vocab) {
  auto n = static_cast<size_t>(vocab);
  scratch_.resize(n);
  maxima_.resize((n + kRun - 1) / kRun);
  selected_.resize(maxima_.size());
  candidates_.reserve(n);
  surprise_.reserve(n);
  counts_.resize(n);
}

uint64_t TokenChooser::bytes(int64_t vocab) {
  auto n = static_cast<uint64_t>(vocab);
  return n * (sizeof(float) + sizeof(Candidate) + sizeof(Count) + sizeof(surprise_[0])) +
         2 * (n / kRun + 1) * sizeof(float);
}

// In the order of SampleParam.
constexpr float kNeutralParams[kSampleParams] = {1, 0, 1, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1};

TokenChooser::Settings TokenChooser::settings(const SampleArgs& args, int64_t row) const {
  const int32_t* k = args.keys + row * kSampleKeys;
  Settings s{};
  if (args.order) {
    const int32_t* order = args.order + row * kSampleStages;
    size_t stages = 0;
    while (stages < kSampleStages && order[stages] >= 0 && order[stages] < kSampleStages) ++stages;
    s.order = {order, stages};
  }
  const float* given = (s.order.empty() ? args.params : args.ordered_params) + row * kSampleParams;
  float p[kSampleParams];
  for (uint32_t i = 0; i < kSampleParams; ++i)
    p[i] = args.done >> i & 1 ? kNeutralParams[i] : given[i];
  // Greedy rows stay greedy, wherever the division took place.
  s.temperature = given[kParamTemperature] <= 0 ? 0 : p[kParamTemperature];
  s.top_k = static_cast<int64_t>(std::max(0.0f, p[kParamTopK]));
  s.min_keep = args.min_keep;
  s.top_p = p[kParamTopP];
  s.min_p = p[kParamMinP];
  s.typical_p = p[kParamTypicalP];
  s.xtc_probability = p[kParamXtcProbability];
  s.xtc_threshold = p[kParamXtcThreshold];
  s.repetition = p[kParamRepetition];
  s.presence = p[kParamPresence];
  s.frequency = p[kParamFrequency];
  s.dry_multiplier = p[kParamDryMultiplier];
  s.dry_base = p[kParamDryBase];
  s.top_n_sigma = p[kParamTopNSigma];
  s.dynatemp_range = p[kParamDynatempRange];
  s.dynatemp_exponent = p[kParamDynatempExponent];
  s.seed = uint64_t{static_cast<uint32_t>(k[kKeySeedHigh])} << 32 |
           static_cast<uint32_t>(k[kKeySeedLow]);
  s.choice = k[kKeyChoice];
  s.position = k[kKeyPosition];
  s.prompt_tokens = k[kKeyPrompt];
  s.dry_allowed_length = k[kKeyDryAllowed];
  s.dry_last_n = k[kKeyDryLast];
  auto list = [&](const auto* values, const int32_t* start) {
    if (!start) return std::span(values, 0);
    return std::span(values + start[row], static_cast<size_t>(start[row + 1] - start[row]));
  };
  s.history = list(args.history, args.history_start);
  s.dry_breakers = list(args.breakers, args.breaker_start);
  s.bias_ids = list(args.bias_ids, args.bias_start);
  s.bias_values = list(args.bias_values, args.bias_start);
  auto words = static_cast<int64_t>(mask_words(vocab_));
  if (args.masks && k[kKeyMask] >= 0)
    s.mask = {args.masks + k[kKeyMask] * words, static_cast<size_t>(words)};
  return s;
}

int32_t TokenChooser::choose(const SampleArgs& args, int64_t row) {
  int32_t target = args.keys[row * kSampleKeys + kKeyTarget];
  if (target == kTargetNone) return kTokenNone;
  std::span<const float> logits(args.logits + row * vocab_, static_cast<size_t>(vocab_));
  if (std::isnan(finite_max(logits))) return kTokenNotFinite;
  if (target != kTargetChoose) return target;
  Settings s = settings(args, row);
  if (args.x) logits = {args.x + row * vocab_, static_cast<size_t>(vocab_)};
  // Only filters that choose_plain() knows, in its order.
  bool plain = s.order.empty() && s.typical_p >= 1.0f && s.xtc_probability <= 0 &&
               s.top_n_sigma <= 0 && s.dynatemp_range <= 0 && s.min_keep <= 1;
  return plain ? choose_plain(s, adjust(s, logits)) : choose_staged(s, logits);
}

void TokenChooser::report(const SampleArgs& args, int64_t row, int32_t id,
                          std::span<const int32_t> ranks, float& logprob, int32_t* tops,
                          float* values) {
  std::fill_n(tops, ranks.size(), kTokenNone);
  std::fill_n(values, ranks.size(), 0.0f);
  logprob = 0;
  int64_t count = args.keys[row * kSampleKeys + kKeyTops];
  if (count < 0 || id < 0) return;
  std::span<const float> logits(args.logits + row * vocab_, static_cast<size_t>(vocab_));
  double total = log_sum_exp(logits, finite_max(logits));
  auto of = [&](int32_t token) {
    return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(token)]) - total);
  };
  logprob = of(id);
  count = std::min(count, vocab_);
  if (count == 0) return;
  collect(logits, top_k_bound(logits, count));
  keep_best(static_cast<size_t>(count));
  std::sort(candidates_.begin(), candidates_.end());
  for (size_t k = 0; k < ranks.size(); ++k) {
    if (ranks[k] < 0 || ranks[k] >= std::ssize(candidates_)) continue;
    tops[k] = candidates_[static_cast<size_t>(ranks[k])].id;
    values[k] = of(tops[k]);
  }
}

}  // namespace tokamak
