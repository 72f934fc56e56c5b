#pragma once
// Choosing tokens from logits, by data alone. Noise is keyed: the Gumbel noise of a token is a
// function of (seed, choice, position, token), so a seed gives the same tokens whatever else runs,
// and a draft is verified by comparing it with the target's own sample.
//
// The order of OpenAI's API and vLLM: penalties, DRY, bias, ids banned before min_tokens,
// temperature, min-p, top-k, typical, top-p, XTC; then the kept token with the largest
// log-probability + noise wins, which draws from their softmax. Of equal logits the lower id comes
// first, everywhere. A spec may name another order: then bias and bans come first and stages that
// are not named do not run (without kTemperature, the temperature is 1).
#include <cstdint>
#include <span>
#include <vector>

#include "plan/step.h"

namespace tokamak {

// Owned by an Executable; keeps per row the last chosen token and, where a spec needs it, the token
// history. Used by the executable's thread only. No allocation after warm-up. Greedy rows cost two
// passes over the vocabulary, filtered ones about three; nothing sorts the vocabulary.
class Sampler {
 public:
  Sampler(int64_t vocab, int64_t max_rows);
  // Before the step runs: takes the resets, and replaces ids that stand for a row's last token.
  // Throws Error(kInternal) when a row has not chosen one yet.
  void begin(const StepInputs& step, std::vector<int32_t>& ids_out);
  // After it: logits is [R, vocab], row-major. Fills ids, logprobs, top, accepted, failed. The ids
  // of a sequence's rows behind its first rejected draft mean nothing.
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
    bool operator<(const Candidate& o) const {  // better first
      return logit != o.logit ? logit > o.logit : id < o.id;
    }
  };
  struct Count {
    uint32_t stamp = 0;
    int32_t in_output = 0;
  };
  void finish_row(const StepInputs& step, size_t r, std::span<const float> logits, StepResult& out);
  void report(const SampleRow& sample, size_t r, std::span<const float> logits, float peak,
              StepResult& out);
  std::span<const float> adjust(const SampleRow& sample, const Row& row,
                                std::span<const float> logits);
  void penalize(const SampleSpec& spec, const Row& row);
  void discourage_repeats(const SampleSpec& spec, const Row& row);
  void bias(const SampleRow& sample);
  // sampler_stages.cc: any order, any filter
  int32_t choose_staged(const SampleRow& sample, const Row& row, std::span<const float> logits);
  void run_stage(SampleStage stage, const SampleRow& sample, const Row& row);
  void refresh();  // candidates' logits after scratch_ changed
  double candidate_mass(float peak);
  void keep_typical(float typical_p);
  void exclude_top(const SampleRow& sample);
  int32_t draw(const SampleRow& sample, float temperature, float peak);
  int32_t choose(const SampleRow& sample, std::span<const float> logits);
  int32_t choose_among_all(const SampleRow& sample, std::span<const float> logits, float peak);
  float top_k_bound(std::span<const float> logits, int64_t k);
  void collect(std::span<const float> logits, float at_least);
  void keep_best(size_t k);
  void keep_top_p(float top_p, float inverse_temperature, float peak, double total);

  int64_t vocab_;
  std::vector<Row> rows_;
  std::vector<float> scratch_;   // adjusted logits of one row
  std::vector<float> maxima_;    // of runs of logits
  std::vector<float> selected_;  // for finding the k-th largest of them
  std::vector<Candidate> candidates_;
  std::vector<int32_t> matches_;                     // of the history with its own end (DRY)
  std::vector<std::pair<float, int32_t>> surprise_;  // of candidates (typical)
  std::vector<Count> counts_;                        // per token, while penalties are computed
  std::vector<uint8_t> drafting_;                    // per sequence: no draft was rejected yet
  uint32_t stamp_ = 0;
};

// Gumbel noise of one token: -log(-log(u)), u from Philox keyed by all four.
float keyed_gumbel(uint64_t seed, int32_t choice, int32_t position, int32_t token);

}  // namespace tokamak
