#pragma once
// A model's configuration and vocabulary, written as the metadata of a model file: the inverse of
// the importers.
#include <string>

#include "base/value.h"
#include "compile/import/gguf_writer.h"
#include "compile/import/model_config.h"
#include "plan/tokenizer_spec.h"

namespace tokamak {

// Adds all keys but those of the vocabulary, and the tensors that hold rotary factors. Fails
// (kUnsupported) where GGUF has no key for a property.
void describe_gguf(const ModelConfig& config, GgufWriter& writer);
// The architecture that GGUF has for a family of encoders; empty: none.
std::string_view gguf_encoder(std::string_view architecture);
// `tokens`: rows of the embedding; ids without a piece are filled.
void describe_gguf_tokenizer(const TokenizerSpec& spec, int64_t tokens, GgufWriter& writer);

// config.json; `dtype` is torch's name of the weights' type.
Value config_json(const ModelConfig& config, std::string_view dtype);
struct TokenizerJson {
  Value tokenizer, config, generation;  // tokenizer.json, tokenizer_config.json, ...
};
TokenizerJson tokenizer_json(const TokenizerSpec& spec);

// "" if both describe the same computation, otherwise the name of a property that differs. Weights
// and names are not compared.
std::string config_difference(const ModelConfig& a, const ModelConfig& b);

}  // namespace tokamak
