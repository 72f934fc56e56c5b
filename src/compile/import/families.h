#pragma once
// Facts about each model family: one row per architecture, shared by GGUF and HF folders, and the
// list of weights that a configuration needs. A new model of a known kind is a new row here.
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "compile/import/model_config.h"
#include "plan/weight_source.h"

namespace tokamak {

struct Family {
  std::string_view architecture;  // GGUF's name; also ModelConfig::architecture
  std::string_view hf_names;      // model_type values of config.json, separated by spaces
  NormKind norm = NormKind::kRms;
  Activation activation = Activation::kSilu;
  bool gated = true;
  bool rotary = true;
  bool gguf_interleaved = false;  // GGUF stores q and k for interleaved rotary pairs
  bool fused = false;             // q, k, v in one tensor, gate and up in another (when gated)
  bool qk_norm = false;
  bool gemma = false;  // embedding scaled by sqrt(hidden); HF stores norm weights minus one
  bool post_norms = false;
  bool tied = false;  // default if config.json does not say
};

const Family* find_family(std::string_view architecture);
const Family* find_family_hf(std::string_view model_type);
std::string supported_architectures();  // "llama, qwen2, ..."

// The fields determined by the family alone.
void apply_family(const Family& family, ModelConfig& config);

// Rejects impossible values; `where` is the file. Does not change the configuration.
void check_config(const ModelConfig& config, std::string_view where);

// One weight of the graph: canonical name and the shape it must have after its recipe.
struct WeightSlot {
  int64_t layer = -1;  // -1: not in a layer
  std::string stem;    // "attn_q", "token_embd"
  std::string suffix;  // "weight" or "bias"
  std::vector<int64_t> dims;
  std::string name() const;  // "blk.3.attn_q.weight"
};
std::vector<WeightSlot> weight_slots(const ModelConfig& config);

// Adds config.weights[slot.name()]: the tensor `source` of the file after `steps`, which must have
// the slot's shape. One-dimensional weights are cast to f32. Fails, naming the tensor, if it is
// missing, has another shape or a type that cannot be a weight.
void add_weight(ModelConfig& config, const WeightSource& file, std::string_view where,
                const WeightSlot& slot, const std::string& source, std::vector<RecipeStep> steps);

RecipeStep slice_rows(int64_t begin, int64_t end);
RecipeStep permute_rows(int64_t heads);
RecipeStep transpose();
RecipeStep add_scalar(double value);

// The rows of a fused tensor, [q; k; v] or [gate; up], that belong to `stem`.
struct FusedRows {
  int64_t begin = 0, end = 0, total = 0;
};
FusedRows fused_rows(const ModelConfig& config, std::string_view stem);

}  // namespace tokamak
