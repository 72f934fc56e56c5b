#include "backend/cuda/device_sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/sampling.h"

namespace tokamak::cuda {
namespace {

bool takes(const SampleRow& s) {
  if (s.mode != SampleRow::Mode::kSample && s.mode != SampleRow::Mode::kDraft) return false;
  if (s.masked || !s.spec) return false;
  const SampleSpec& spec = *s.spec;
  return !spec.needs_history() && spec.logit_bias.empty() && spec.order.empty() &&
         spec.typical_p >= 1 && spec.xtc_probability <= 0 && spec.top_logprobs < 0 &&
         (s.generated >= spec.min_tokens || spec.banned_until_min.empty());
}

bool filters(const SampleSpec& spec) {
  return spec.temperature > 0 && (spec.top_k > 0 || spec.top_p < 1 || spec.min_p > 0);
}

}  // namespace

bool device_can_sample(std::span<const SampleRow> samples) {
  return !samples.empty() && std::all_of(samples.begin(), samples.end(), takes);
}

bool stream_can_sample(std::span<const SampleRow> samples, std::span<const int32_t> pos) {
  if (samples.size() != pos.size()) return false;
  for (size_t i = 0; i < samples.size(); ++i)
    if (!takes(samples[i]) || filters(*samples[i].spec) || samples[i].position != pos[i] + 1)
      return false;
  return true;
}

float log_min_p(float min_p) {
  return min_p > 0 ? std::log(std::min(min_p, 1.0f)) : -std::numeric_limits<float>::infinity();
}

int32_t token_or_failure(int32_t token) {
  return token >= 0                ? token
         : token == kSampleNothing ? kTokenNotAllowed
         : token == kSampleNone    ? kTokenNone
                                   : kTokenNotFinite;
}

SampleRowParams sample_params(const SampleRow& sample) {
  const SampleSpec& spec = *sample.spec;
  SampleRowParams p{};
  p.seed = spec.seed;
  p.temperature = spec.temperature;
  p.top_p = spec.top_p;
  p.log_min_p = log_min_p(spec.min_p);
  p.top_k = spec.top_k;
  p.choice = sample.choice;
  p.position = sample.position;
  return p;
}

DecodeSampling stream_params(const SampleRow& sample) {
  return {sample.spec->seed, sample.spec->temperature, sample.choice};
}

}  // namespace tokamak::cuda
