#pragma once
// Classical rejection sampling of drafted tokens: a draft is accepted with probability
// min(1, p / q), and replaced by a token drawn from max(0, p - q) otherwise. The result has
// distribution p, whatever q is.
#include <cstdint>
#include <span>
#include <vector>

#include "backend/common/token_chooser.h"

namespace tokamak {

// The probabilities with which a row chooses, after all stages of sampling, as docs/ops.md defines
// them. Empty: no token can be chosen. Sorts the vocabulary where a filter needs that.
void sample_distribution(const SampleArgs& args, int64_t row, std::vector<float>& probabilities);

// Chooses the token at a position for which `draft` was drawn from q. The noise is keyed like that
// of sampling, and independent of it.
int32_t accept_or_replace(std::span<const float> p, std::span<const float> q, int32_t draft,
                          uint64_t seed, int32_t choice, int32_t position);

}  // namespace tokamak
