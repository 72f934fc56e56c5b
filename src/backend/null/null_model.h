#pragma once
// The "model" of the null backend: a hash chain over the tokens of a sequence. Pure functions, so
// that tests can predict an answer without an engine.
#include <cstdint>
#include <span>
#include <vector>

#include "plan/step.h"

namespace tokamak {

inline uint64_t null_mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u ^ (b + 0x632be59bd9b4e019u);
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 32)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class NullModel {
 public:
  NullModel(uint64_t seed, int64_t vocab, bool whole_history)
      : seed_(seed), vocab_(vocab), whole_history_(whole_history) {}

  // The chain value after `token` at `position`; `before` is that of the position before (0 at the
  // start). Without whole_history the past does not matter.
  uint64_t extend(uint64_t before, int32_t token, int32_t position) const {
    uint64_t key = whole_history_ ? before : static_cast<uint64_t>(position);
    return null_mix(key, static_cast<uint32_t>(token)) | 1;  // never 0
  }
  // The token chosen after a chain value. Greedy depends on the chain alone, sampling also on the
  // seed and the choice. A draft is wrong once in four times.
  int32_t choose(uint64_t chain, const SampleRow& row) const;
  float logprob(uint64_t chain, int32_t token) const;  // a made-up one, in (-9, -1)
  // Element `i` of the vector of a chain value, in [-1, 1).
  static float element(uint64_t chain, int64_t i) {
    uint64_t bits = null_mix(chain, static_cast<uint64_t>(i)) >> 40;  // 24 of them
    return static_cast<float>(bits) / 0x1p23f - 1.0f;
  }
  // The chain value of a whole prompt.
  uint64_t chain_of(std::span<const int32_t> ids) const {
    uint64_t chain = 0;
    for (size_t i = 0; i < ids.size(); ++i) chain = extend(chain, ids[i], static_cast<int32_t>(i));
    return chain;
  }

  // The whole answer to a prompt: max_tokens ids, stop ids not considered.
  std::vector<int32_t> continuation(std::span<const int32_t> prompt, int32_t max_tokens,
                                    const SampleSpec* spec = nullptr, int32_t choice = 0) const;
  // The score of token `position` given the ones before it.
  float score(std::span<const int32_t> ids, int32_t position) const;

  int64_t vocab() const { return vocab_; }

 private:
  int32_t pick(uint64_t chain, const SampleSpec* spec, int32_t choice, int32_t generated) const;

  uint64_t seed_;
  int64_t vocab_;
  bool whole_history_;
};

}  // namespace tokamak
