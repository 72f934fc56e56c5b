#pragma once
// The operands that the sampling ops share: one row of numbers for each row of logits. docs/ops.md
// has the ops.
#include <cstdint>

namespace tokamak {

// Columns of `params`, f32[r, kSampleParams]. A neutral value switches a stage off.
enum SampleParam : uint8_t {
  kParamTemperature,  // <= 0: greedy; 1: neutral
  kParamTopK,         // 0: neutral
  kParamTopP,         // 1
  kParamMinP,         // 0
  kParamTypicalP,     // 1
  kParamXtcProbability,
  kParamXtcThreshold,
  kParamRepetition,  // 1
  kParamPresence,
  kParamFrequency,
  kParamDryMultiplier,
  kParamDryBase,
  kParamTopNSigma,         // 0
  kParamDynatempRange,     // 0
  kParamDynatempExponent,  // 1
  kSampleParams,
};

// Columns of `keys`, i32[r, kSampleKeys].
enum SampleKey : uint8_t {
  kKeySeedLow,
  kKeySeedHigh,
  kKeyChoice,    // which of the request's n answers
  kKeyPosition,  // of the token to be chosen
  kKeyPrompt,    // tokens of the history that are prompt
  kKeyDryAllowed,
  kKeyDryLast,  // tokens of the history that are searched; < 0: all
  kKeyMask,     // row of `masks`, -1: all tokens are allowed
  kKeyTarget,   // a token: it is scored, none is chosen; or one of these:
  kKeyTops,     // best tokens to report; -1: no log-probabilities at all
  kSampleKeys,
};
constexpr int32_t kTargetChoose = -1, kTargetNone = -2;

// What choose_token gives where there is no token.
constexpr int32_t kTokenNone = -1;        // nothing was asked for
constexpr int32_t kTokenNotAllowed = -2;  // every token was removed
constexpr int32_t kTokenNotFinite = -3;   // a logit is not a finite number

// Best tokens that a row may ask for.
constexpr int32_t kMostTops = 256;

// Columns of `order`: stages (plan/step.h, SampleStage) in the order in which they run, then -1.
constexpr int64_t kSampleStages = 9;

// The least dynamic temperature: there the likeliest token is certain.
constexpr float kLeastTemperature = 1e-3f;

// The counter of Philox that an answer's choice at a position uses.
constexpr uint64_t noise_counter(int32_t choice, int32_t position) {
  return uint64_t{static_cast<uint32_t>(choice)} << 32 | static_cast<uint32_t>(position);
}
// Gumbel noise of one token: -log(-log(u)), u from Philox keyed by all four.
float keyed_gumbel(uint64_t seed, int32_t choice, int32_t position, int32_t token);
// The keyed draw of exclude_top, uniform in (0, 1).
float keyed_draw(uint64_t seed, int32_t choice, int32_t position);

}  // namespace tokamak
