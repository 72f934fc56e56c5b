#pragma once
// Contrastive search (Su et al. 2022): of the k likeliest tokens, the one that is likely and whose
// hidden state resembles that of no token before it. A round computes the k candidates as the
// sequences of a beam search do (engine/beam.cc), and one of them goes on.
#include <cstdint>
#include <span>
#include <vector>

#include "plan/step.h"

namespace tokamak {

// Owned by a BeamSearch, engine thread only. Memory: one hidden state per token of prompt and
// answer.
class ContrastiveSearch {
 public:
  explicit ContrastiveSearch(float alpha) : alpha_(alpha) {}

  // A sequence whose last token was computed: a candidate, or the prompt in the first round.
  struct Computed {
    int32_t choice = 0;
    float logprob = 0;          // of that token
    std::vector<float> hidden;  // its state
    std::vector<TokenLogprob> next;
  };
  void add_context(std::span<const float> hidden);  // the states of the tokens, in order
  // Ends the round: the best of the sequences, whose state joins the context.
  Computed choose();

  std::vector<Computed> round;

 private:
  // (1 - alpha) * probability - alpha * the largest cosine with a state of the context
  double score(const Computed& candidate) const;

  float alpha_;
  std::vector<float> context_;  // of length 1
};

}  // namespace tokamak
