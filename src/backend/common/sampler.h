#pragma once
// Choosing tokens from logits, by data alone. Noise is keyed: the Gumbel noise of a token is a function of (seed,
// choice, position, token), so a seed gives the same tokens whatever else runs, and a draft is verified by
// comparing it with the target's own sample.
#include <cstdint>
#include <span>
#include <vector>

#include "plan/step.h"

namespace tokamak {

// Owned by an Executable; keeps per row the last chosen token and, where a spec needs it, the token history.
// Used by the executable's thread only. No allocation after warm-up.
class Sampler {
 public:
  Sampler(int64_t vocab, int64_t max_rows);
  // Before the step runs: takes the resets, and replaces ids that stand for a row's last token.
  void begin(const StepInputs& step, std::vector<int32_t>& ids_out);
  // After it: logits is [R, vocab], row-major. Fills ids, logprobs, top, accepted, failed.
  void finish(const StepInputs& step, const float* logits, StepResult& out);
  uint64_t bytes() const;

 private:
  struct Row {
    int32_t last = -1;
    int32_t prompt_tokens = 0;
    std::vector<int32_t> ids;  // only while a spec needs history
  };
  struct Candidate {
    float logit;
    int32_t id;
  };
  void adjust(const SampleRow& sample, const Row& row, std::span<float> logits);
  int32_t choose(const SampleRow& sample, std::span<const float> logits);

  int64_t vocab_;
  std::vector<Row> rows_;
  std::vector<float> scratch_;
  std::vector<Candidate> candidates_;
};

// Gumbel noise of one token: -log(-log(u)), u from Philox keyed by all four.
float keyed_gumbel(uint64_t seed, int32_t choice, int32_t position, int32_t token);

}  // namespace tokamak
