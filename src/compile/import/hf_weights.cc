#include "compile/import/hf_weights.h"

#include <set>

namespace tokamak {
namespace {

struct Renamed {
  std::string_view stem, hf;
};
constexpr Renamed kLlama[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"token_embd", "embed_tokens"},
    {"output_norm", "norm"},
};
constexpr Renamed kPostNorms[] = {
    // with norms after the blocks, the name of the one before the MLP changes
    {"ffn_norm", "pre_feedforward_layernorm"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
};
constexpr Renamed kFused[] = {
    {"attn_q", "self_attn.qkv_proj"}, {"attn_k", "self_attn.qkv_proj"},
    {"attn_v", "self_attn.qkv_proj"}, {"ffn_gate", "mlp.gate_up_proj"},
    {"ffn_up", "mlp.gate_up_proj"},
};
constexpr Renamed kGpt2Names[] = {
    {"attn_norm", "ln_1"},     {"attn_q", "attn.c_attn"},      {"attn_k", "attn.c_attn"},
    {"attn_v", "attn.c_attn"}, {"attn_output", "attn.c_proj"}, {"ffn_norm", "ln_2"},
    {"ffn_up", "mlp.c_fc"},    {"ffn_down", "mlp.c_proj"},     {"token_embd", "wte"},
    {"position_embd", "wpe"},  {"output_norm", "ln_f"},
};

std::string_view lookup(std::span<const Renamed> table, std::string_view stem) {
  for (const Renamed& r : table)
    if (r.stem == stem) return r.hf;
  return "";
}

std::string_view hf_stem(const Family& family, std::string_view stem) {
  if (!family.rotary) return lookup(kGpt2Names, stem);
  std::string_view name;
  if (family.post_norms) name = lookup(kPostNorms, stem);
  if (name.empty() && family.fused) name = lookup(kFused, stem);
  return name.empty() ? lookup(kLlama, stem) : name;
}

std::string_view layers_name(const Family& family) { return family.rotary ? "layers" : "h"; }

bool is_fused_part(const Family& family, std::string_view stem) {
  if (!family.fused) return false;
  if (stem == "attn_q" || stem == "attn_k" || stem == "attn_v") return true;
  return family.gated && (stem == "ffn_gate" || stem == "ffn_up");
}

// Masks and frequencies that old checkpoints saved as tensors; they are derived from the
// configuration.
bool is_buffer(std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.bias") ||
         name.ends_with(".attn.masked_bias");
}

// Slicing a tensor with too many rows would succeed with wrong results.
void check_fused_size(const WeightSource& weights, std::string_view where,
                      const std::string& source, int64_t rows, bool transposed) {
  const TensorView* tensor = weights.find(source);
  if (!tensor || tensor->dims.empty()) return;  // add_weight reports the error
  int64_t found = transposed ? tensor->dims.back() : tensor->dims[0];
  if (found != rows)
    fail(ErrorCode::kCorrupt, "{}: tensor {} has {} rows, expected {}", where, source, found, rows);
}

bool is_norm(std::string_view stem) { return stem.ends_with("_norm"); }

}  // namespace

std::string hf_prefix(const WeightSource& weights, const Family& family, std::string_view where) {
  WeightSlot first{0, "attn_norm", "weight", {}};
  for (const char* prefix :
       {"model.", "", "transformer.", "language_model.model.", "model.language_model."})
    if (weights.find(hf_tensor_name(family, prefix, first))) return prefix;
  fail(ErrorCode::kCorrupt, "{}: tensor {} is missing", where,
       hf_tensor_name(family, "model.", first));
}

std::string hf_tensor_name(const Family& family, const std::string& prefix,
                           const WeightSlot& slot) {
  if (slot.stem == "output") {
    // The head is stored next to the model, not inside it.
    bool nested = prefix == "language_model.model.";
    return nested ? "language_model.lm_head.weight" : "lm_head.weight";
  }
  std::string_view stem = hf_stem(family, slot.stem);
  TK_CHECK(!stem.empty(), "{} has no tensor name in {}", slot.stem, family.architecture);
  if (slot.layer < 0) return fmt::format("{}{}.{}", prefix, stem, slot.suffix);
  return fmt::format("{}{}.{}.{}.{}", prefix, layers_name(family), slot.layer, stem, slot.suffix);
}

void map_hf_weights(const WeightSource& weights, const Family& family, std::string_view where,
                    ModelConfig& config) {
  std::string prefix = hf_prefix(weights, family, where);
  std::set<std::string> used;
  for (const WeightSlot& slot : weight_slots(config)) {
    std::string source = hf_tensor_name(family, prefix, slot);
    std::vector<RecipeStep> steps;
    bool matrix_in_layer = slot.dims.size() == 2 && slot.layer >= 0;
    if (!family.rotary && matrix_in_layer) steps.push_back(transpose());  // GPT-2 stores [in, out]
    if (is_fused_part(family, slot.stem)) {
      FusedRows rows = fused_rows(config, slot.stem);
      check_fused_size(weights, where, source, rows.total, !steps.empty());
      steps.push_back(slice_rows(rows.begin, rows.end));
    }
    if (family.gemma && is_norm(slot.stem)) steps.push_back(add_scalar(1.0));
    used.insert(source);
    add_weight(config, weights, where, slot, source, std::move(steps));
  }
  std::string layers = fmt::format("{}{}.", prefix, layers_name(family));
  for (const std::string& name : weights.names())
    if (name.starts_with(layers) && !used.contains(name) && !is_buffer(name))
      fail(ErrorCode::kUnsupported, "{}: tensor {} is not a known part of a {} model", where, name,
           family.architecture);
}

}  // namespace tokamak
