#pragma once
// Which tokens the device chooses itself (sample.h, decode_program.h), so that no logits travel.
#include <span>
#include <vector>

#include "backend/cuda/decode_program.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/sample.h"
#include "plan/step.h"

namespace tokamak::cuda {

// Whether the kernels of sample.cu know all filters of a row, and their order.
bool device_has_filters(const SampleSpec& spec);
// Whether sample_rows chooses the tokens of all outputs as the host would: temperature, min-p,
// top-k and top-p in the default order, without a mask and without log-probabilities.
bool device_can_sample(std::span<const SampleRow> samples);
// Whether sample_rows never leaves such a row to the host (kSampleOnHost).
bool never_on_host(const SampleSpec& spec, int64_t vocab);
// Whether the persistent kernel does: temperature alone, at the position after the row's input.
bool stream_can_sample(std::span<const SampleRow> samples, std::span<const int32_t> pos);

float log_min_p(float min_p);  // SampleRowParams::log_min_p
// What a kernel gave for a row, as the op choose_token gives it (ops/sampling.h).
int32_t token_or_failure(int32_t token);
SampleRowParams sample_params(const SampleRow& sample);
DecodeSampling stream_params(const SampleRow& sample);

}  // namespace tokamak::cuda
