#pragma once
// Which tokens the device chooses itself (sample.h, decode_program.h), so that no logits travel.
#include <span>
#include <vector>

#include "backend/cuda/decode_program.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/sample.h"
#include "plan/step.h"

namespace tokamak::cuda {

// Whether sample_rows chooses the tokens of all outputs as the host would: temperature, min-p,
// top-k and top-p in the default order, without a mask and without log-probabilities.
bool device_can_sample(std::span<const SampleRow> samples);
// Whether the persistent kernel does: temperature alone, at the position after the row's input.
bool stream_can_sample(std::span<const SampleRow> samples, std::span<const int32_t> pos);

SampleRowParams sample_params(const SampleRow& sample);
DecodeSampling stream_params(const SampleRow& sample);

}  // namespace tokamak::cuda
