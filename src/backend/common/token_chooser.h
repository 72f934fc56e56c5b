#pragma once
// The function "sample" on the host: the operands of its ops (ops/sampling.h), and what chooses the
// token of one row. It gives what the ops give one after the other, without sorting the vocabulary
// and without noise for tokens that cannot win.
//
// The order of OpenAI's API and vLLM: penalties, DRY, bias, mask, top-n-sigma, temperature, min-p,
// top-k, typical, top-p, XTC; then the remaining token with the largest log-probability + noise is
// chosen, which draws from their softmax. Among equal logits the lower id comes first, everywhere.
// A row may name another order: then bias and mask come first, and stages that are not named do not
// run (without kTemperature, the temperature is 1).
#include <cstdint>
#include <span>
#include <vector>

#include "ops/sampling.h"
#include "plan/step.h"

namespace tokamak {

// Row-major; lists of rows are entries start[r] to start[r + 1]. Lists, masks and orders may be
// absent.
struct SampleArgs {
  int64_t rows = 0, vocab = 0;
  const float* logits = nullptr;   // [rows, vocab]
  const float* x = nullptr;        // after stages that ran elsewhere; null: the logits
  const float* params = nullptr;   // [rows, kSampleParams]
  const int32_t* keys = nullptr;   // [rows, kSampleKeys]
  const int32_t* order = nullptr;  // [rows, kSampleStages]
  const float* ordered_params =
      nullptr;  // of rows with an order of their own, whose params are neutral
  const int32_t *history = nullptr, *history_start = nullptr;
  const int32_t *breakers = nullptr, *breaker_start = nullptr;
  const int32_t *bias_ids = nullptr, *bias_start = nullptr;
  const float* bias_values = nullptr;
  const int32_t* masks = nullptr;  // [masks, mask_words(vocab)]
  uint32_t done = 0;               // bits of params whose stage ran elsewhere
  int32_t min_keep = 0;            // of all rows: SampleSpec::min_keep
};

// Used by one thread at a time. No allocation after warm-up. Greedy rows cost two passes over the
// vocabulary, filtered ones about three; the vocabulary is never sorted.
class TokenChooser {
 public:
  explicit TokenChooser(int64_t vocab);
  // As the op choose_token: a token, or one of kToken...
  int32_t choose(const SampleArgs& args, int64_t row);
  // As the op token_logprobs, under the model's own distribution. `tops` and `values`: as many as
  // `ranks`.
  void report(const SampleArgs& args, int64_t row, int32_t id, std::span<const int32_t> ranks,
              float& logprob, int32_t* tops, float* values);
  struct Repeat {
    int32_t id;
    float penalty;
  };
  // What DRY takes from the logits of tokens, each named once. Valid until the next call.
  std::span<const Repeat> repeats(const SampleArgs& args, int64_t row);
  static uint64_t bytes(int64_t vocab);  // that one holds

 private:
  struct Settings {
    float temperature, top_p, min_p, typical_p, xtc_probability, xtc_threshold;
    float top_n_sigma, dynatemp_range, dynatemp_exponent;
    float repetition, presence, frequency, dry_multiplier, dry_base;
    int64_t top_k, min_keep;
    uint64_t seed;
    int32_t choice, position, prompt_tokens, dry_allowed_length, dry_last_n;
    std::span<const int32_t> history, dry_breakers, order, bias_ids, mask;
    std::span<const float> bias_values;
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
  Settings settings(const SampleArgs& args, int64_t row) const;
  std::span<const float> adjust(const Settings& s, std::span<const float> logits);
  void penalize(const Settings& s);
  void find_repeats(const Settings& s);
  void discourage_repeats(const Settings& s);
  void bias(const Settings& s);  // also the mask
  // token_chooser_plain.cc: the default order without typical and XTC
  int32_t choose_plain(const Settings& s, std::span<const float> logits);
  int32_t choose_among_all(const Settings& s, std::span<const float> logits, float peak);
  int32_t draw(const Settings& s, float temperature, float peak);
  float top_k_bound(std::span<const float> logits, int64_t k);
  void collect(std::span<const float> logits, float at_least);
  void keep_best(size_t k);
  void keep_top_p(float top_p, float inverse_temperature, float peak, double total);
  // token_chooser_staged.cc: any order, any filter
  int32_t choose_staged(const Settings& s, std::span<const float> logits);
  void run_stage(SampleStage stage, const Settings& s);
  void refresh();  // candidates' logits after scratch_ changed
  double candidate_mass(float peak);
  void keep_typical(const Settings& s);
  template <class Filter>
  void keep_enough(const Settings& s, Filter filter);
  void exclude_top(const Settings& s);
  void keep_top_n_sigma(float n);
  float temperature_of(const Settings& s);

  int64_t vocab_;
  std::vector<float> scratch_;   // adjusted logits of one row
  std::vector<float> maxima_;    // of runs of logits
  std::vector<float> selected_;  // for finding the k-th largest of them
  std::vector<Candidate> candidates_;
  std::vector<int32_t> matches_;  // of the history with its own end (DRY)
  std::vector<Repeat> repeats_;
  std::vector<std::pair<float, int32_t>> surprise_;  // of candidates (typical)
  std::vector<Count> counts_;                        // per token, while penalties are computed
  uint32_t stamp_ = 0;
};

}  // namespace tokamak
