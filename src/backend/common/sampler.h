#pragma once
// Choosing tokens from logits. Noise is keyed: the Gumbel noise of a token is a function of (seed,
// choice, position, token), so a seed gives the same tokens whatever else runs, and a draft is
// verified by comparing it with the target's own sample.
//
// The order of OpenAI's API and vLLM: penalties, DRY, bias, ids banned before min_tokens and the
// mask, temperature, min-p, top-k, typical, top-p, XTC; then the remaining token with the largest
// log-probability + noise is chosen, which draws from their softmax. Among equal logits the lower
// id comes first, everywhere. A spec may name another order: then bias, bans and the mask come
// first, and stages that are not named do not run (without kTemperature, the temperature is 1).
#include <cstdint>
#include <span>
#include <vector>

#include "plan/step.h"

namespace tokamak {

// A phase of a step whose logits have been computed. A step without phases is one phase.
struct SamplePhase {
  SamplePhase(const StepInputs& step) : inputs(step), ids(step.ids) {}
  SamplePhase(const StepInputs& phase, std::span<const int32_t> token_ids, int32_t output,
              int32_t sequence)
      : inputs(phase), ids(token_ids), first_output(output), first_sequence(sequence) {}
  const StepInputs& inputs;
  std::span<const int32_t> ids;                  // of its tokens, none below zero
  int32_t first_output = 0, first_sequence = 0;  // its place in the step
};

// Owned by an Executable; keeps the last chosen token of each row and, where a spec needs it, the
// token history. Used by the executable's thread only. No allocation after warm-up. Greedy rows
// cost two passes over the vocabulary, filtered ones about three; the vocabulary is never sorted.
class Sampler {
 public:
  Sampler(int64_t vocab, int64_t max_rows);
  // Before a step runs: takes its resets.
  void begin(const StepInputs& step);
  // Before a phase runs: replaces ids below zero. `earlier` has the results of earlier phases.
  // Throws Error(kInternal) when a row has not chosen a token yet.
  void resolve(std::vector<int32_t>& ids, const StepResult& earlier) const;
  // After it: logits is [R, vocab], row-major. Fills ids, logprobs, top, path and failed. When an
  // output is masked, the logits are kept and complete() does this.
  void finish(const SamplePhase& phase, const float* logits, StepResult& out);
  // The tokens that output `output` of the step may choose.
  void set_mask(int32_t output, std::span<const uint32_t> allowed);
  void complete(StepResult& out);  // does nothing unless an output is masked
  // After a phase without logits: no output chooses a token.
  static void skip(const SamplePhase& phase, StepResult& out);
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
  // A phase with masked outputs, and the logits that they will choose from.
  struct Waiting {
    bool active = false;
    StepInputs inputs;  // what finish() reads
    std::vector<int32_t> ids;
    int32_t first_output = 0, first_sequence = 0;
    std::vector<float> logits;
    std::vector<uint32_t> masks;  // [R, words]; 0 until set
  };
  void keep(const SamplePhase& phase, const float* logits);
  void choose_all(const SamplePhase& phase, const float* logits, StepResult& out);
  bool holds(const SamplePhase& phase, size_t r, const StepResult& out) const;
  void finish_row(const SamplePhase& phase, size_t r, std::span<const float> logits,
                  StepResult& out);
  void choose_row(const SamplePhase& phase, size_t r, std::span<const float> logits,
                  StepResult& out);
  void add_paths(const SamplePhase& phase, StepResult& out);
  bool allows(int32_t id) const;  // by mask_
  void report(const SampleRow& sample, size_t r, std::span<const float> logits, float peak,
              StepResult& out);
  std::span<const float> adjust(const SampleRow& sample, const Row& row,
                                std::span<const float> logits);
  void penalize(const SampleSpec& spec, const Row& row);
  void discourage_repeats(const SampleSpec& spec, const Row& row);
  void bias(const SampleRow& sample);  // also bans and the mask
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
  std::vector<int32_t> tip_;        // per sequence: the last output on its path, or -1
  std::vector<uint8_t> on_path_;    // per output
  std::span<const uint32_t> mask_;  // of the row being chosen; empty: none
  Waiting waiting_;
  uint32_t stamp_ = 0;
};

// Gumbel noise of one token: -log(-log(u)), u from Philox keyed by all four.
float keyed_gumbel(uint64_t seed, int32_t choice, int32_t position, int32_t token);

}  // namespace tokamak
