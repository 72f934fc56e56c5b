#pragma once
// The stages of sampling on one row of logits, as docs/ops.md defines them: in double, without any
// trick. A token that a stage removes gets -infinity.
#include <cstdint>
#include <span>
#include <vector>

#include "ops/sampling.h"

namespace tokamak {

// The operands of one row.
struct SamplingRow {
  std::span<const double> params;  // kSampleParams; empty for ops that do not read them
  std::span<const int32_t> keys;   // kSampleKeys
  std::span<const int32_t> history, breakers;
  uint64_t seed() const {
    return uint64_t{static_cast<uint32_t>(keys[kKeySeedHigh])} << 32 |
           static_cast<uint32_t>(keys[kKeySeedLow]);
  }
};

using Logits = std::vector<double>;
void penalize_row(Logits& x, const SamplingRow& row);
void penalize_repeats_row(Logits& x, const SamplingRow& row);
void temper_row(Logits& x, const SamplingRow& row);
void keep_top_k_row(Logits& x, const SamplingRow& row);
void keep_top_p_row(Logits& x, const SamplingRow& row);
void keep_min_p_row(Logits& x, const SamplingRow& row);
void keep_typical_row(Logits& x, const SamplingRow& row);
void keep_top_n_sigma_row(Logits& x, const SamplingRow& row);
void exclude_top_row(Logits& x, const SamplingRow& row);
void stages_row(Logits& x, const SamplingRow& row, std::span<const int32_t> order);
int32_t choose_row(const Logits& x, const SamplingRow& row);  // kTokenNotAllowed: none is left

}  // namespace tokamak
