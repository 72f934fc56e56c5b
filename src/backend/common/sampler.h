#pragma once
// Decides which outputs of a step choose tokens and which of these are accepted: histories, masks
// that arrive late, paths of accepted drafts. The tokens themselves are chosen by the
// function "sample" of the plan; without one, by the host (token_chooser.h).
//
// Noise is keyed: the Gumbel noise of a token is a function of (seed, choice, position, token), so
// a seed gives the same tokens whatever else runs, and a draft is verified by comparing it with the
// target's own sample.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/common/mirostat.h"
#include "backend/common/sample_table.h"
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

// Copies what a SamplePhase needs of its inputs, for an executable that chooses tokens after the
// step is gone. Vectors keep their capacity.
void keep_sample_inputs(const StepInputs& from, StepInputs& to);

// Runs the function "sample" on the rows of a table.
using SampleFunction = std::function<void(const SampleTable& table, SampleTokens& out)>;

// Owned by an Executable; keeps the last chosen token of each row and, where a spec needs it, the
// token history. Used by the executable's thread only. No allocation after warm-up.
class Sampler {
 public:
  // `function`: empty: the host chooses.
  Sampler(int64_t vocab, int64_t max_rows, SampleFunction function = {});
  // Before a step runs: takes its resets.
  void begin(const StepInputs& step);
  // Before a phase runs: replaces ids below zero. `earlier` has the results of earlier phases; an
  // output that chose no token stands for token 0.
  // Throws Error(kInternal) when a row has not chosen a token yet.
  void resolve(std::vector<int32_t>& ids, const StepResult& earlier) const;
  // After it: logits is [R, vocab], row-major, or null where the function has them elsewhere;
  // layer_logits is the result kLayerLogits, for outputs that need it (layer_rows()). Fills
  // ids, logprobs, top, path and failed. When an output is masked, the logits are kept and
  // complete() does this.
  void finish(const SamplePhase& phase, const float* logits, StepResult& out,
              std::span<const float> layer_logits = {});
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
    float mirostat_mu = kMirostatStart;
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
  // The logits with those of guided rows replaced, as SampleSpec::guidance_scale says.
  const float* guide(const SamplePhase& phase, const float* logits);
  // The logits with those of rows with DoLa replaced, as SampleSpec::dola_layers says.
  const float* contrast(const SamplePhase& phase, const float* logits,
                        std::span<const float> layer_logits);
  void fill_table(const SamplePhase& phase, const float* logits);
  std::span<const int32_t> history_of(const SamplePhase& phase, size_t r, const Row& row);
  bool holds(const SamplePhase& phase, size_t r, const StepResult& out) const;
  void reject_drafts(const SamplePhase& phase, StepResult& out);
  void report_sampled(const SamplePhase& phase);
  const std::vector<float>* drawn_from(const SamplePhase& phase, size_t r,
                                       const StepResult& out) const;
  void finish_row(const SamplePhase& phase, size_t r, StepResult& out);
  std::span<const uint32_t> mirostat_mask(const SampleRow& sample, size_t r, const Row& row,
                                          const float* logits, std::span<const uint32_t> mask);
  // With min_keep: the one token that the host chooses.
  std::span<const uint32_t> min_keep_mask(const SamplePhase& phase, size_t r, const Row& row,
                                          const float* logits, std::span<const uint32_t> mask);
  void add_paths(const SamplePhase& phase, StepResult& out);

  int64_t vocab_;
  SampleFunction function_;
  std::optional<TokenChooser> host_;  // without a function
  std::vector<Row> rows_;
  SampleTable table_;
  SampleTokens tokens_;
  std::unique_ptr<TokenChooser> keeper_;  // of rows with min_keep, made for the first
  std::vector<uint32_t> kept_;            // the mask of such a row
  Mirostat mirostat_;
  std::vector<double> mirostat_totals_;  // per output
  std::vector<float> guided_;            // logits of a phase with guided rows
  std::vector<float> contrasted_;        // logits of a phase with DoLa
  std::vector<int32_t> drafted_;         // the history of an output that continues drafted tokens
  std::vector<int32_t> tip_;             // per sequence: the last output on its path, or -1
  std::vector<uint8_t> on_path_;         // per output
  std::vector<int32_t> children_;        // per output: how many continue it
  std::vector<float> probabilities_;     // of one output
  std::vector<int32_t> ranked_;          // its tokens that can be chosen
  Waiting waiting_;
};

}  // namespace tokamak
