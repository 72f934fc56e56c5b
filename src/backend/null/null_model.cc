#include "backend/null/null_model.h"

#include <algorithm>

#include "base/rng.h"

namespace tokamak {

int32_t NullModel::pick(uint64_t chain, const SampleSpec* spec, int32_t choice,
                        int32_t generated) const {
  uint64_t h = null_mix(chain, seed_);
  if (spec != nullptr && spec->temperature > 0)
    h = null_mix(h, null_mix(spec->seed, static_cast<uint32_t>(choice)));
  int32_t id = static_cast<int32_t>(h % static_cast<uint64_t>(vocab_));
  if (spec == nullptr || generated >= spec->min_tokens) return id;
  const auto& banned = spec->banned_until_min;
  for (int64_t i = 0; i < vocab_; ++i) {
    if (std::find(banned.begin(), banned.end(), id) == banned.end()) break;
    id = static_cast<int32_t>((id + 1) % vocab_);
  }
  return id;
}

int32_t NullModel::choose(uint64_t chain, const SampleRow& row) const {
  int32_t id = pick(chain, row.spec.get(), row.choice, row.generated);
  bool wrong = row.mode == SampleRow::Mode::kDraft && null_mix(chain, seed_ + 2) % 4 == 0;
  return wrong ? static_cast<int32_t>((id + 1) % vocab_) : id;
}

float NullModel::logprob(uint64_t chain, int32_t token) const {
  uint64_t h = null_mix(null_mix(chain, seed_ + 1), static_cast<uint32_t>(token));
  return -1.0f - 8.0f * to_unit_float(static_cast<uint32_t>(h >> 32));
}

std::vector<int32_t> NullModel::continuation(std::span<const int32_t> prompt, int32_t max_tokens,
                                             const SampleSpec* spec, int32_t choice) const {
  uint64_t chain = 0;
  int32_t position = 0, last = 0;
  for (int32_t id : prompt) chain = extend(chain, id, position++);
  std::vector<int32_t> out;
  for (int32_t i = 0; i < max_tokens; ++i) {
    if (i > 0) chain = extend(chain, last, position++);
    last = pick(chain, spec, choice, i);
    out.push_back(last);
  }
  return out;
}

float NullModel::score(std::span<const int32_t> ids, int32_t position) const {
  uint64_t chain = 0;
  for (int32_t p = 0; p < position; ++p) chain = extend(chain, ids[static_cast<size_t>(p)], p);
  return logprob(chain, ids[static_cast<size_t>(position)]);
}

}  // namespace tokamak
