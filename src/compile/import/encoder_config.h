#pragma once
// Encoders (BERT and related models): config.json or GGUF metadata, and tensor names ->
// ModelConfig.
#include <string_view>

#include "base/value.h"
#include "compile/import/gguf_file.h"
#include "compile/import/model_config.h"
#include "plan/weight_source.h"

namespace tokamak {

bool is_encoder_hf(const Value& config_json);         // by its model_type
bool is_encoder_gguf(std::string_view architecture);  // by general.architecture

// Fail as config_from_hf and config_from_gguf do.
ModelConfig encoder_from_hf(const Value& config_json, const WeightSource& weights,
                            std::string_view where);
ModelConfig encoder_from_gguf(const GgufFile& file);

}  // namespace tokamak
