#pragma once
// Choosing tokens on the device: the plain order of backend/common/sampler.h (temperature, min-p,
// top-k, top-p, then keyed Gumbel noise), with the same noise, so equal logits give equal tokens.
#include <cstdint>

namespace tokamak::cuda {

constexpr int32_t kSampleFailed = -1;  // a logit is not finite
constexpr int32_t kSampleOnHost = -2;  // too many candidates for the device: the host has to choose
constexpr int32_t kSampleNothing = -3;     // every token was removed
constexpr int32_t kSampleNone = -4;        // nothing was asked for
constexpr int32_t kSampleTargetNone = -2;  // SampleTableRow::target: no token is asked for
constexpr int kSampleThreads = 1024;
constexpr int kSampleCandidates = 4096;

struct SampleRowParams {
  uint64_t seed;
  float temperature;  // <= 0: greedy
  float top_p;        // >= 1: off
  float log_min_p;    // natural logarithm of min(min_p, 1); -infinity: off
  int32_t top_k;      // 0: off
  int32_t choice, position;
  int32_t row;  // of the executable, whose last token this is; kSamplePadding: nothing is chosen
};
constexpr int32_t kSamplePadding = -1;

// The largest logit of a part of a row.
struct SamplePeak {
  float logit;
  int32_t token;  // kSampleFailed: a logit is not finite
};
constexpr int kSampleParts = 8, kPeakThreads = 512;

// One block per row; sample_peaks before it: one per part of a row.
struct SampleLaunch {
  const float* logits;          // [rows, vocab]
  const SampleRowParams* rows;  // [rows]
  int32_t* const* host_tokens;  // [rows] in pinned memory: another one in each step
  int32_t vocab;
  SamplePeak* peaks;  // [rows, kSampleParts]; null: sample_rows finds them
  int32_t* last;      // [rows of the executable]; may be null
};

// Copies the inputs of a step from pinned memory. Ids that are below zero stand for the last token
// of a row (plan/step.h).
struct alignas(16) StagedPiece {
  int32_t words[4];
};
// A block table. Its rows have a fixed distance on the device, so that launches do not depend on
// the longest sequence of a step.
struct StagedTable {
  StagedPiece* to;
  int32_t first, pieces;  // of StageLaunch::from
  int32_t width, stride;  // of a row, in pieces: what is copied, and the distance
};
constexpr int kMostTables = 8;
struct StageLaunch {
  const StagedPiece* from;
  StagedPiece* to;
  const int32_t* last;
  int32_t pieces;         // in all
  int32_t plain;          // before those of tables
  int32_t first_id, ids;  // words
  int32_t tables;
  StagedTable table[kMostTables];
};
constexpr int kStageThreads = 256;

// A row of the function "sample" (ops/sampling.h): changes of single logits, then a choice or a
// given token, then log-probabilities under the model's own distribution.
struct SampleCount {  // a token of the history
  int32_t token;
  float generated;  // how often it was
};
struct SampleBias {  // also what DRY takes away
  int32_t token;
  float value;
};
struct SampleTableRow {
  SampleRowParams choice;
  float repetition, presence, frequency;
  int32_t first_count, counts;  // of SampleTableLaunch::counts; a token is there once
  int32_t first_bias, biases;   // of SampleTableLaunch::biases; sorted by token
  int32_t mask;                 // of SampleTableLaunch::masks; -1: every token is allowed
  int32_t target;               // a token that is given; -1: choose; kSampleTargetNone
  int32_t tops;                 // best tokens that are reported; -1: no log-probabilities
};

// One block per row.
struct SampleTableLaunch {
  const float* logits;  // [rows, vocab]
  float* edited;        // [rows, vocab]
  const SampleTableRow* rows;
  const SampleCount* counts;
  const SampleBias* biases;
  const uint32_t* masks;  // [masks, mask_words]
  int32_t* tokens;        // [rows]
  float* logprobs;        // [rows]
  int32_t* tops;          // [rows, most_tops]; -1: none. kSampleOnHost in the first: too many ties
  float* values;          // [rows, most_tops]
  int32_t vocab, mask_words, most_tops;
};

}  // namespace tokamak::cuda
