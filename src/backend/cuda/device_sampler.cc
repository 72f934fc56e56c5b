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
  return device_has_filters(spec) && !spec.needs_history() && spec.logit_bias.empty() &&
         spec.top_logprobs < 0 && (s.generated >= spec.min_tokens || spec.banned_until_min.empty());
}

bool filters(const SampleSpec& spec) {
  return spec.temperature > 0 && (spec.top_k > 0 || spec.top_p < 1 || spec.min_p > 0);
}

}  // namespace

// Every field is named, so that a new one does not compile until it is decided who runs it.
bool device_has_filters(const SampleSpec& spec) {
  const auto& [temperature, top_k, top_p, min_p, typical_p, min_keep, top_n_sigma, dynatemp_range,
               dynatemp_exponent, dry_multiplier, dry_base, dry_allowed_length, dry_last_n,
               dry_breakers, xtc_probability, xtc_threshold, mirostat, mirostat_tau, mirostat_eta,
               order, repetition_penalty, presence_penalty, frequency_penalty, penalty_last_n,
               penalize_prompt, logit_bias, banned_until_min, min_tokens, top_logprobs,
               report_sampled, seed, guidance_scale, dola_layers, penalty_alpha, rejection] = spec;
  // In the kernels of sample.cu.
  (void)temperature, (void)top_k, (void)top_p, (void)min_p, (void)seed;
  // Changes of single logits and reports: table_sampler.h.
  (void)dry_multiplier, (void)dry_base, (void)dry_allowed_length, (void)dry_last_n;
  (void)dry_breakers, (void)repetition_penalty, (void)presence_penalty, (void)frequency_penalty;
  (void)penalty_last_n, (void)penalize_prompt, (void)penalty_alpha;
  (void)logit_bias, (void)banned_until_min, (void)min_tokens, (void)top_logprobs;
  // On the host.
  (void)dynatemp_exponent, (void)xtc_threshold, (void)mirostat_tau, (void)mirostat_eta;
  return order.empty() && typical_p >= 1 && xtc_probability <= 0 && top_n_sigma <= 0 &&
         dynatemp_range <= 0 && mirostat == 0 && min_keep <= 1 && guidance_scale == 1 &&
         dola_layers.empty() && !rejection && !report_sampled;
}

bool device_can_sample(std::span<const SampleRow> samples) {
  return !samples.empty() && std::all_of(samples.begin(), samples.end(), takes);
}

bool never_on_host(const SampleSpec& spec, int64_t vocab) {
  return spec.temperature <= 0 || spec.top_k <= 1 || spec.top_k >= vocab;
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
