#include "backend/common/rejection.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/common/logits_math.h"
#include "base/rng.h"
#include "ops/sampling_rows.h"

namespace tokamak {
namespace {

constexpr double kNoToken = -std::numeric_limits<double>::infinity();
constexpr uint64_t kRejectionKey = 0x9e3779b97f4a7c15;  // separates the noise from that of sampling

template <class T>
std::span<const T> list_of(const T* values, const int32_t* start, int64_t row) {
  if (!start || !values) return {};
  return {values + start[row], static_cast<size_t>(start[row + 1] - start[row])};
}

void bias_and_mask(const SampleArgs& args, int64_t row, Logits& x) {
  auto ids = list_of(args.bias_ids, args.bias_start, row);
  auto values = list_of(args.bias_values, args.bias_start, row);
  for (size_t i = 0; i < ids.size(); ++i)
    x[static_cast<size_t>(ids[i])] += static_cast<double>(values[i]);
  int32_t mask = args.keys[row * kSampleKeys + kKeyMask];
  if (!args.masks || mask < 0) return;
  const int32_t* bits = args.masks + mask * static_cast<int64_t>(mask_words(args.vocab));
  for (size_t id = 0; id < x.size(); ++id)
    if ((static_cast<uint32_t>(bits[id / 32]) >> (id % 32) & 1) == 0) x[id] = kNoToken;
}

}  // namespace

void sample_distribution(const SampleArgs& args, int64_t row, std::vector<float>& out) {
  out.clear();
  std::span<const float> logits(args.logits + row * args.vocab, static_cast<size_t>(args.vocab));
  if (std::isnan(finite_max(logits))) return;
  Logits x(logits.begin(), logits.end());
  const float* params = args.params + row * kSampleParams;
  std::vector<double> wide(params, params + kSampleParams);
  SamplingRow in{wide,
                 {args.keys + row * kSampleKeys, kSampleKeys},
                 list_of(args.history, args.history_start, row),
                 list_of(args.breakers, args.breaker_start, row)};
  penalize_row(x, in);
  penalize_repeats_row(x, in);
  bias_and_mask(args, row, x);
  bool greedy = wide[kParamTemperature] <= 0;
  if (args.order && args.order[row * kSampleStages] >= 0) {
    const float* ordered = args.ordered_params + row * kSampleParams;
    std::vector<double> own(ordered, ordered + kSampleParams);
    greedy = own[kParamTemperature] <= 0;
    SamplingRow other = in;
    other.params = own;
    stages_row(x, other, {args.order + row * kSampleStages, kSampleStages});
  }
  for (auto* stage : {keep_top_n_sigma_row, temper_row, keep_min_p_row, keep_top_k_row,
                      keep_typical_row, keep_top_p_row, exclude_top_row})
    stage(x, in);
  auto best = std::max_element(x.begin(), x.end());
  if (*best == kNoToken) return;
  out.assign(x.size(), 0.0f);
  if (greedy) {
    out[static_cast<size_t>(best - x.begin())] = 1.0f;
    return;
  }
  double peak = *best, total = 0;
  for (double& value : x) total += value = std::exp(value - peak);
  for (size_t i = 0; i < x.size(); ++i) out[i] = static_cast<float>(x[i] / total);
}

int32_t accept_or_replace(std::span<const float> p, std::span<const float> q, int32_t draft,
                          uint64_t seed, int32_t choice, int32_t position) {
  auto words = philox(seed ^ kRejectionKey, noise_counter(choice, position), 0);
  auto at = static_cast<size_t>(draft);
  if (to_unit_double(words[0], words[1]) * static_cast<double>(q[at]) < static_cast<double>(p[at]))
    return draft;
  auto rest = [&](size_t i) {
    return std::max(0.0, static_cast<double>(p[i]) - static_cast<double>(q[i]));
  };
  double total = 0;
  for (size_t i = 0; i < p.size(); ++i) total += rest(i);
  double left = to_unit_double(words[2], words[3]) * total;
  int32_t chosen = draft;  // if p and q differ by rounding only
  for (size_t i = 0; i < p.size(); ++i) {
    if (rest(i) <= 0) continue;
    chosen = static_cast<int32_t>(i);
    left -= rest(i);
    if (left < 0) break;
  }
  return chosen;
}

}  // namespace tokamak
