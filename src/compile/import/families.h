#pragma once
// Facts about each model family: one row per architecture, shared by GGUF and HF folders, and the
// list of weights that a configuration needs. A new model of a known kind is a new row here.
#include <span>
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
  std::string_view models;        // published models, for people
  NormKind norm = NormKind::kRms;
  bool norm_bias = true;  // of layer norms
  Activation activation = Activation::kSilu;
  bool gated = true;
  bool rotary = true;
  bool alibi = false;             // scores fall with the distance of a key instead
  bool gguf_interleaved = false;  // GGUF stores q and k for interleaved rotary pairs
  bool interleaved = false;       // so do all formats
  bool fused_qkv = false;         // q, k and v are one tensor
  bool fused_mlp = false;         // gate and up are one tensor
  bool conv1d = false;            // config.json folders store matrices as [in, out] (GPT-2)
  bool qk_norm = false;
  bool wide_qk_norm = false;
  bool gemma = false;  // embedding scaled by sqrt(hidden); HF stores norm weights minus one
  bool parallel = false;
  bool two_norms = false;
  bool late_qk_norm = false;
  bool unit_norms = false;
  bool embedding_norm = false;  // a norm after the embedding
  bool pre_norms = true;
  bool post_norms = false;
  bool tied = false;    // default if config.json does not say
  bool in_gguf = true;  // llama.cpp knows the architecture
  bool latent = false;  // latent attention
  bool experts = false;
  bool normalize_experts = false;  // default if the file does not say
  bool sigmoid_experts = false;
  bool recurrent = false;    // all layers have a recurrent state (Mamba-2)
  bool alone = false;        // a layer has one part (Mamba-2, Nemotron-H)
  bool hybrid = false;       // layers of Mamba-2, or of convolutions, beside attention
  bool gated_delta = false;  // most of them: linear attention beside gated attention (Qwen3-Next)
  bool centered_norms = false;   // HF stores norm weights minus one
  bool stacked_experts = false;  // HF has one tensor for all experts
  double rotary_share = 0;       // of a head if config.json does not say; 0: always the whole head
};

const Family* find_family(std::string_view architecture);
const Family* find_family_hf(std::string_view model_type);
std::string supported_architectures();  // "llama, qwen2, ..."
std::span<const Family> all_families();
std::span<const Family> mixed_families();  // those of them with experts or recurrent layers
// What a known architecture that is not supported would need: ", which needs ..."; otherwise "".
std::string missing_feature(std::string_view name);
// Supported names that resemble an unknown one: " (did you mean a or b?)"; otherwise "".
std::string similar_names(std::string_view name);

// The fields determined by the family alone.
void apply_family(const Family& family, ModelConfig& config);

// ALiBi: by how much scores of each head fall per token of distance. Heads beyond a power of two
// have the slopes between those of twice as many heads.
std::vector<double> alibi_slopes(int64_t heads, double max_bias);

// Apertus' activation from the numbers that files have, which training keeps positive by softplus.
XieluConfig xielu_of(double alpha_p, double alpha_n, double beta);

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
// The layers of ModelConfig::dense, as GGUF counts them: "dense_2", "dense_3".
std::string dense_stem(size_t index);

// Adds config.weights[slot.name()]: the tensors `sources` of the file (several: their rows one
// after the other) after `steps`, which must have the slot's shape. One-dimensional weights are
// cast to f32. Fails, naming the tensor, if it is missing, has another shape or a type that cannot
// be a weight.
void add_weight(ModelConfig& config, const WeightSource& file, std::string_view where,
                const WeightSlot& slot, const std::vector<std::string>& sources,
                std::vector<RecipeStep> steps);

// Where a weight is in a model file: its tensor, and the steps from that tensor to the weight.
struct WeightPlace {
  std::string tensor;
  std::vector<RecipeStep> steps;
};

// Norms with weights for each head: one list of numbers, in the order of the rows of q and k.
void add_head_norm_steps(const Family& family, const ModelConfig& config, const WeightSlot& slot,
                         std::vector<RecipeStep>& steps);

RecipeStep slice_rows(int64_t begin, int64_t end);
// Rows [begin, end) of each part of `period` rows.
RecipeStep slice_rows_of_each(int64_t begin, int64_t end, int64_t period);
RecipeStep permute_rows(int64_t heads, int64_t rotated = 0);
RecipeStep reshape(std::vector<int64_t> dims);

// A weight of latent attention in its tensor: the stem of that tensor in GGUF and the steps that
// lead to the slot. An empty stem: not one of them.
struct LatentPart {
  std::string_view stem;
  std::vector<RecipeStep> steps;
};
// YaRN's factor for scores, which latent attention applies here, not in the rotation.
void scale_latent(ModelConfig& config);
LatentPart latent_part(const ModelConfig& config, std::string_view stem);
// The same for a slot of a layer with a recurrent state: its tensor in GGUF, "ssm_in.weight".
struct RecurrentPart {
  std::string tensor;
  std::vector<RecipeStep> steps;
};
RecurrentPart recurrent_part(const ModelConfig& config, const WeightSlot& slot);
// The same for Qwen3-Next; early files (`joined`) have its matrices in one tensor, as the folder
// has.
RecurrentPart gguf_delta_part(const ModelConfig& config, const WeightSlot& slot, bool joined);
// The matrices between the copies of Gemma 3n's residual stream: "altup_proj_2" is matrix 2 of
// those that make copies, "altup_unembd_proj_2" of those back. GGUF has each kind in one tensor.
struct AltUpPart {
  int64_t index = -1;  // -1: not one of them
  bool back = false;
};
AltUpPart altup_part(std::string_view stem);
WeightPlace gguf_altup_place(const ModelConfig& config, AltUpPart part);
RecipeStep transpose();
RecipeStep add_scalar(double value);

// The rows of a fused tensor, [q; k; v] or [gate; up], that belong to `stem`.
struct FusedRows {
  int64_t begin = 0, end = 0, total = 0;
};
FusedRows fused_rows(const ModelConfig& config, std::string_view stem);

}  // namespace tokamak
