#pragma once
// One step of the engine as data: what is sent to a backend and what comes back. Serialisable; no
// pointers to requests. Vectors keep their capacity between steps, so a warmed-up engine does not
// allocate.
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/dtype.h"

namespace tokamak {

// The stages of sampling, in the order a SampleSpec gives or the default one
// (backend/common/sampler.h).
enum class SampleStage : uint8_t {
  kPenalties,  // repetition, presence, frequency
  kDry,
  kTemperature,
  kTopK,
  kTypical,
  kTopP,
  kMinP,
  kXtc,
  kTopNSigma,
};

// How a row's next token is chosen. Immutable once a request runs; shared by all its steps.
struct SampleSpec {
  float temperature = 1.0f;  // <= 0: greedy
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0f, min_p = 0.0f;
  float typical_p = 1.0f;    // 1: off
  int32_t min_keep = 0;      // top-p, min-p, typical and XTC leave at least as many tokens
  float top_n_sigma = 0.0f;  // keep logits within n standard deviations of the largest; 0: off
  // The temperature follows the entropy, between temperature - range and temperature + range; 0:
  // it is fixed.
  float dynatemp_range = 0.0f, dynatemp_exponent = 1.0f;
  // DRY: a token that would repeat a sequence of more than dry_allowed_length tokens loses
  // dry_multiplier * dry_base ^ (length - dry_allowed_length). 0: off.
  float dry_multiplier = 0.0f, dry_base = 1.75f;
  int32_t dry_allowed_length = 2, dry_last_n = -1;  // last_n: tokens searched; -1: all
  std::vector<int32_t> dry_breakers;                // a repetition does not extend across these ids
  // XTC: with this probability, all tokens that reach the threshold are removed except the least
  // likely one.
  float xtc_probability = 0.0f, xtc_threshold = 0.1f;
  // Mirostat 1 or 2 instead of the filters (top-k to XTC): tokens are cut off so that the surprise
  // of the answer stays near tau bits per token; eta is the learning rate. 0: off.
  int32_t mirostat = 0;
  float mirostat_tau = 5.0f, mirostat_eta = 0.1f;
  std::vector<SampleStage> order;   // empty: the default; stages that are left out do not run
  float repetition_penalty = 1.0f;  // over prompt and output
  float presence_penalty = 0.0f, frequency_penalty = 0.0f;  // over output
  // Penalties count the last n tokens of prompt and output only; -1: all. With DRY it must be -1.
  int32_t penalty_last_n = -1;
  bool penalize_prompt = false;  // presence and frequency penalties count the prompt too
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<int32_t>
      banned_until_min;  // ids that may not be chosen before min_tokens (end-of-text ids)
  int32_t min_tokens = 0;
  // -1: none; 0: the chosen token's only; n: also the n best (kMostTops at most)
  int32_t top_logprobs = -1;
  bool report_sampled = false;  // logprobs and top are those after all stages, not the model's own
  uint64_t seed = 0;            // noise = f(seed, choice, position, token)
  // Classifier-free guidance, before everything else: u + scale * (c - u), where c and u are the
  // log-probabilities after the prompt and after the negative prompt. 1: off.
  float guidance_scale = 1.0f;
  // DoLa, before everything else: the answer keeps away from what one of these layers predicts, the
  // one that differs most from the last (0: the embeddings). Empty: off.
  std::vector<int32_t> dola_layers;
  // Contrastive search: how much a candidate's resemblance to the text before counts; 0: off. The
  // engine compares hidden states, which steps return for its rows.
  float penalty_alpha = 0.0f;
  // A draft is accepted with probability min(1, p / q) where its distribution q is known. The
  // tokens then depend on the drafts, their distribution does not. false: it is accepted if it is
  // the token that is sampled here.
  bool rejection = false;
  bool needs_history() const {
    return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f ||
           dry_multiplier > 0.0f;
  }
};

// Ids below zero stand for tokens that the device has chosen and the host may not know yet: the
// last token of a row, or the token chosen by an output of an earlier phase of the same step (0 if
// it chose none; the outputs that follow from it mean nothing then).
constexpr int32_t last_id_of_row(int32_t row) { return -1 - row; }
constexpr int32_t id_of_output(int32_t output) { return INT32_MIN + output; }
constexpr bool is_output_id(int32_t id) { return id < INT32_MIN / 2; }
constexpr int32_t row_of_id(int32_t id) { return -1 - id; }
constexpr int32_t output_of_id(int32_t id) { return id - INT32_MIN; }

// One row of logits that the step is asked for; parallel to StepInputs::out_rows.
struct SampleRow {
  enum class Mode : uint8_t {
    kSample,  // choose the sequence's next token
    kScore,   // report the log-probability of `target`
    kHidden,  // no token: logits or hidden states only
    kDraft,   // choose a token that a later phase of the step verifies; not kept
  };
  Mode mode = Mode::kSample;
  int32_t target = -1;    // kScore: the id to score
  int32_t choice = 0;     // which of n
  int32_t position = 0;   // of the token to be chosen, in the sequence (key of the noise)
  int32_t generated = 0;  // tokens generated before it (for min_tokens)
  std::shared_ptr<const SampleSpec> spec;
  // kSample: -1, or the output (index into R, before this one) whose chosen id must equal this
  // row's input token: the row continues a drafted token. Outputs with parents form a chain or a
  // tree; see StepResult::path.
  int32_t parent = -1;
  bool masked = false;              // chooses among the tokens given by Executable::set_mask
  bool keep_probabilities = false;  // report them: StepResult::probabilities
  // For a row that continues a drafted token: what that one was drawn from; null: not known here.
  std::shared_ptr<const std::vector<float>> draft_probabilities = nullptr;
  // kSample: -1, or the output (kHidden, before this one) whose logits its guidance_scale is
  // relative to.
  int32_t guide = -1;
};

// The rows of the result kLayerLogits that an output uses. They follow those of the outputs before.
inline size_t layer_rows(const SampleRow& row) {
  return row.mode == SampleRow::Mode::kSample && row.spec ? row.spec->dola_layers.size() : 0;
}

// The output's row of StepResult::hidden is wanted.
inline bool wants_hidden(const SampleRow& row) {
  return row.mode == SampleRow::Mode::kHidden || (row.spec && row.spec->penalty_alpha > 0);
}

// A bit set over the vocabulary: token i is allowed when bit i % 32 of word i / 32 is set.
constexpr size_t mask_words(int64_t vocab) { return static_cast<size_t>((vocab + 31) / 32); }

struct BlockCopy {
  uint32_t group;
  int32_t from, to;
};

// Moves the KV of one token. A physical slot is block * block_size + offset.
struct SlotMove {
  uint32_t group;
  int32_t from, to;
};

// Mirostat's bound on the surprise of a token, in bits, before the first token.
inline constexpr float kMirostatStart = std::numeric_limits<float>::infinity();

// Tells the backend the token history of a row (penalties). Sent when a sequence takes a row or is
// rewound.
struct RowReset {
  int32_t row;
  int32_t prompt_tokens;  // number of `ids` that are prompt
  std::vector<int32_t> ids = {};
  float mirostat_mu = kMirostatStart;
};

// A tensor with a name: an input beyond the fields of StepInputs, or an output of a function.
struct StepTensor {
  std::string name;
  DType dtype = DType::kI32;
  std::vector<int64_t> dims;
  std::vector<std::byte> bytes;  // row-major
};

// A part of a step that runs one function: the next `tokens` tokens, `sequences` sequences and
// `outputs` outputs of the step's vectors.
struct StepPhase {
  std::string function;
  int32_t tokens = 0, sequences = 0, outputs = 0;
};

struct StepInputs {
  std::string function = "step";  // any function of the PlanSet: "step", "decode", "verify<k>", ...
  // Several functions in one step, in order, instead of `function`: a draft model and its target.
  // A phase may use the tokens that earlier phases chose (id_of_output).
  std::vector<StepPhase> phases;
  // T tokens of B sequences, each sequence's tokens together and in order. A function without a
  // token axis (an encoder) has none.
  std::vector<int32_t> ids, pos, seq, slot;  // [T]
  std::vector<int32_t> q_start;              // [B+1]
  std::vector<int32_t> kv_len;  // [B] logical slots in use after the step's rows are appended
  std::vector<int32_t> row;     // [B] the sequence's persistent row, 0 <= row < max_rows
  std::vector<int32_t> mask;    // [T, mask_width] or empty: which of its sequence's rows a row sees
  int32_t mask_width = 0;
  std::vector<int32_t> out_rows;   // [R] indices into T
  std::vector<SampleRow> samples;  // [R]
  struct Table {
    std::vector<int32_t> blocks;  // [B, stride], -1 = no block
    int32_t stride = 0;
  };
  std::vector<Table> tables;       // one per group
  std::vector<StepTensor> inputs;  // what else the function reads, by name
  std::vector<BlockCopy> copies;   // done before the step, in order
  std::vector<SlotMove> moves;     // done after the copies and before the step, in order
  std::vector<RowReset> resets;
  bool return_logits = false;  // tests and tools: bring the logits back

  int64_t tokens() const { return static_cast<int64_t>(ids.size()); }
  int64_t sequences() const { return static_cast<int64_t>(kv_len.size()); }
  // Adds or replaces an input of type i32.
  void set_input(std::string_view name, std::span<const int32_t> values);
  void clear();  // keeps capacity
};

// The input of encoders that says which text of a pair a token belongs to: i32[T], 0 or 1.
inline constexpr std::string_view kSegmentInput = "types";

// The fields of StepInputs that functions can read, with their dimensions ("T", "B + 1").
struct StepField {
  std::string_view name;
  std::vector<int32_t> StepInputs::*values;
  std::array<std::string_view, 2> dims;  // the second may be empty
};
std::span<const StepField> step_fields();
const StepField* find_step_field(std::string_view name);  // nullptr: no such field

struct TokenLogprob {
  int32_t id;
  float logprob;
};

// Why a sequence cannot go on.
enum class StepFailure : uint8_t {
  kNone,
  kNotFinite,       // its logits are not finite numbers
  kNothingAllowed,  // its mask, or what the mask leaves of the vocabulary, allows no token
};

struct StepResult {
  // [R] chosen ids (kSample, kDraft), target (kScore), -1 (kHidden, and rows that are not on the
  // path)
  std::vector<int32_t> ids;
  // [R] of ids; 0 unless asked for. The model's own distribution, before penalties
  std::vector<float> logprobs;
  // The outputs that hold, by sequence and in order: path_of(b) begins with the sequence's first
  // kSample output and goes on with the drafted rows that agree. The id that each of them chose is
  // the next token; their input rows are the slots to keep.
  std::vector<int32_t> path;
  std::vector<int32_t> path_start;                    // [B+1]
  std::vector<StepFailure> failed;                    // [B]
  std::vector<std::pair<int32_t, TokenLogprob>> top;  // (index into R, alternative), best first
  std::vector<float> mirostat_mu;  // [R] after the output, of outputs with Mirostat; or empty
  // [R] or empty: what drafted rows chose that are not on the path; -1: all other outputs
  std::vector<int32_t> guesses;
  // (index into R, probability of every token) of outputs with keep_probabilities
  std::vector<std::pair<int32_t, std::vector<float>>> probabilities;
  std::vector<float> logits;        // [R, vocab] when asked for
  std::vector<float> hidden;        // [R, hidden] when asked for
  std::vector<StepTensor> outputs;  // the function's other results, in the plan's order
  double seconds = 0;               // device time

  std::span<const int32_t> path_of(size_t sequence) const {
    return std::span(path).subspan(
        static_cast<size_t>(path_start[sequence]),
        static_cast<size_t>(path_start[sequence + 1] - path_start[sequence]));
  }
  void clear();
};

}  // namespace tokamak
