#pragma once
// Choosing tokens on the device: the plain order of backend/common/sampler.h (temperature, min-p,
// top-k, top-p, then keyed Gumbel noise), with the same noise, so equal logits give equal tokens.
#include <cstdint>

namespace tokamak::cuda {

constexpr int32_t kSampleFailed = -1;  // a logit is not finite
constexpr int32_t kSampleOnHost = -2;  // too many candidates for the device: the host has to choose
constexpr int kSampleThreads = 1024;
constexpr int kSampleCandidates = 4096;

struct SampleRowParams {
  uint64_t seed;
  float temperature;  // <= 0: greedy
  float top_p;        // >= 1: off
  float log_min_p;    // natural logarithm of min(min_p, 1); -infinity: off
  int32_t top_k;      // 0: off
  int32_t choice, position;
};

// One block per row.
struct SampleLaunch {
  const float* logits;          // [rows, vocab]
  const SampleRowParams* rows;  // [rows]
  int32_t* tokens;              // [rows]
  int32_t vocab;
};

}  // namespace tokamak::cuda
