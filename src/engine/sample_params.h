#pragma once
// The sampling parameters by name: one table of ranges for the HTTP API, the C++ API and the
// command line.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/value.h"
#include "plan/step.h"

namespace tokamak {

struct SampleSetting {
  std::string_view name;                // as OpenAI, vLLM and llama.cpp spell it
  double low, high;                     // both allowed
  float SampleSpec::*number = nullptr;  // where the value is stored: one of the two is set
  int32_t SampleSpec::*integer = nullptr;
};
std::span<const SampleSetting> sample_params();
const SampleSetting& sample_param(std::string_view name);  // the name must be in the table

// Sets one value. Throws Error(kInvalidArgument) naming the parameter and its range.
void set_sample_param(SampleSpec& spec, std::string_view name, double value);

// Stages by llama.cpp's names. Throws Error(kInvalidArgument) for an unknown name and for one that
// occurs twice.
std::vector<SampleStage> sample_order(std::span<const std::string> names);

// Penalties for tokens that occurred before are on.
bool penalizes(const SampleSpec& spec);

// DoLa's layers "low" and "high" of a model with `layers` layers, as in transformers.
std::vector<int32_t> dola_half(int64_t layers, bool shares_embedding, bool high);

// Throws Error(kInvalidArgument) for a bias out of range or for an id outside the vocabulary.
constexpr float kMaxLogitBias = 100;
void check_logit_bias(const SampleSpec& spec, int64_t vocab);

// Call it when all values are set: top_k -1 means all tokens, top_p 0 means greedy.
void normalize_sampling(SampleSpec& spec);

// The values of a model's generation_config.json. What is absent or out of range keeps the
// default; nullopt: it has no value that counts.
std::optional<SampleSpec> sampling_defaults(const Value& generation_config);
// The same from the metadata of a GGUF file (general.sampling.*).
std::optional<SampleSpec> gguf_sampling_defaults(const Value& metadata);

}  // namespace tokamak
