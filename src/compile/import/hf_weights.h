#pragma once
// Hugging Face tensor names -> canonical weights with recipes.
#include "compile/import/families.h"
#include "compile/import/quantized.h"

namespace tokamak {

// Whether one tensor holds the matrices of all experts.
bool is_stacked(const Family& family, const WeightSlot& slot);

// The prefix of "layers.0." (or "h.0.") in this file, e.g. "model." or "model.language_model.".
// Fails if no layer is found.
std::string hf_prefix(const WeightSource& weights, const Family& family, std::string_view where);

// The name of a layer's tensor, or of one beside the layers, after "layers.0." and without
// ".weight"; {} stands for the number of an expert.
std::string_view hf_stem(const Family& family, std::string_view stem);

// Name of a slot's tensor in the file, with prefix; for parts of a fused tensor, the name of the
// whole.
std::string hf_tensor_name(const Family& family, const std::string& prefix, const WeightSlot& slot);

// Where a weight is in a Hugging Face model, without a prefix; {} stands for the number of an
// expert, whose matrices are tensors of their own.
WeightPlace hf_place(const Family& family, const ModelConfig& config, const WeightSlot& slot);

// Fills config.weights; everything else in `config` is already set.
void map_hf_weights(const WeightSource& weights, const QuantizedWeights& quantized,
                    const Family& family, std::string_view where, ModelConfig& config);

}  // namespace tokamak
