#pragma once
// One step of the engine as data: what goes to a backend and what comes back. Serialisable; no
// pointers to requests. Vectors keep their capacity between steps, so a warmed-up engine does not
// allocate.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

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
};

// How a row's next token is chosen. Immutable once a request runs; shared by all its steps.
struct SampleSpec {
  float temperature = 1.0f;  // <= 0: greedy
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0f, min_p = 0.0f;
  float typical_p = 1.0f;  // 1: off
  // DRY: a token that would repeat a sequence of more than dry_allowed_length tokens loses
  // dry_multiplier * dry_base ^ (length - dry_allowed_length). 0: off.
  float dry_multiplier = 0.0f, dry_base = 1.75f;
  int32_t dry_allowed_length = 2, dry_last_n = -1;  // last_n: tokens looked at; -1: all
  std::vector<int32_t> dry_breakers;                // ids no repetition reaches across
  // XTC: with this probability all tokens that reach the threshold but the least likely one go.
  float xtc_probability = 0.0f, xtc_threshold = 0.1f;
  std::vector<SampleStage> order;   // empty: the default; stages left out do not run
  float repetition_penalty = 1.0f;  // over prompt and output
  float presence_penalty = 0.0f, frequency_penalty = 0.0f;  // over output
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<int32_t>
      banned_until_min;  // ids that may not be chosen before min_tokens (end-of-text ids)
  int32_t min_tokens = 0;
  int32_t top_logprobs = -1;  // -1: none; 0: the chosen token's only; n: also the n best
  uint64_t seed = 0;          // noise = f(seed, choice, position, token)
  bool needs_history() const {
    return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f ||
           dry_multiplier > 0.0f;
  }
};

// One row of logits that the step is asked for; parallel to StepInputs::out_rows.
struct SampleRow {
  enum class Mode : uint8_t {
    kSample,  // choose a token
    kScore,   // report the log-probability of `target`
    kHidden,  // no token: logits or hidden states only
  };
  Mode mode = Mode::kSample;
  int32_t target = -1;    // kScore: the id to score. kSample: the drafted next id, or -1
  int32_t choice = 0;     // which of n
  int32_t position = 0;   // of the token to be chosen, in the sequence (key of the noise)
  int32_t generated = 0;  // tokens generated before it (for min_tokens)
  std::shared_ptr<const SampleSpec> spec;
};

struct BlockCopy {
  uint32_t group;
  int32_t from, to;
};

// Tells the backend the token history of a row (penalties). Sent when a sequence takes a row or is
// rewound.
struct RowReset {
  int32_t row;
  int32_t prompt_tokens;  // the first so many of `ids` are prompt
  std::vector<int32_t> ids;
};

struct StepInputs {
  std::string function = "step";  // "step", "decode", "verify<k>"
  // T tokens of B sequences, each sequence's tokens together and in order.
  // An id < 0 stands for the last token the device chose for row (-1 - id).
  std::vector<int32_t> ids, pos, seq, slot;  // [T]
  std::vector<int32_t> q_start;              // [B+1]
  std::vector<int32_t> kv_len;   // [B] logical slots in use after the step's rows are appended
  std::vector<int32_t> row;      // [B] the sequence's persistent row, 0 <= row < max_rows
  std::vector<int32_t> adapter;  // [T] or empty
  std::vector<int32_t> mask;     // [T, mask_width] or empty (tree verification)
  int32_t mask_width = 0;
  std::vector<int32_t> out_rows;   // [R] indices into T
  std::vector<SampleRow> samples;  // [R]
  struct Table {
    std::vector<int32_t> blocks;  // [B, stride], -1 = no block
    int32_t stride = 0;
  };
  std::vector<Table> tables;      // one per group
  std::vector<BlockCopy> copies;  // done before the step
  std::vector<RowReset> resets;
  bool return_logits = false;  // tests and tools: bring the logits back

  int64_t tokens() const { return static_cast<int64_t>(ids.size()); }
  int64_t sequences() const { return static_cast<int64_t>(kv_len.size()); }
  void clear();  // keeps capacity
};

struct TokenLogprob {
  int32_t id;
  float logprob;
};

struct StepResult {
  std::vector<int32_t> ids;  // [R] chosen ids (kSample), target (kScore), -1 (kHidden)
  std::vector<float>
      logprobs;  // [R] of ids; 0 unless asked for. Raw model distribution, before penalties
  std::vector<int32_t>
      accepted;  // [B] chosen ids that hold: drafts agreed with, plus one; 0 if no row sampled
  std::vector<uint8_t> failed;  // [B] logits were not finite: this sequence cannot go on
  std::vector<std::pair<int32_t, TokenLogprob>> top;  // (index into R, alternative), best first
  std::vector<float> logits;                          // [R, vocab] when asked for
  std::vector<float> hidden;                          // [R, hidden] when asked for
  double seconds = 0;                                 // device time
  void clear();
};

}  // namespace tokamak
