#pragma once
// config.json of a Hugging Face folder and its tensor names -> ModelConfig.
#include <string_view>

#include "base/value.h"
#include "compile/import/model_config.h"
#include "plan/weight_source.h"

namespace tokamak {

// `where` names the folder in messages. Reads both forms of the rotary parameters (rope_theta +
// rope_scaling, and rope_parameters, also per layer type). Fails with kUnsupported (architecture,
// quantisation method or feature named) or kCorrupt (field or tensor named).
ModelConfig config_from_hf(const Value& config_json, const WeightSource& weights,
                           std::string_view where = "config.json");

}  // namespace tokamak
