// Which tensors of a GGUF file are the weights of a configuration.
#include <fmt/format.h>

#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "compile/import/families.h"
#include "compile/import/gguf_config.h"

namespace tokamak {
namespace {

// Tensors that are not weights of the graph: rotary factors are read above, the rest is left over
// from old converters.
// LFM2's norm before the output has the name of one after the embedding.
std::string output_norm(const ModelConfig& c, const WeightSlot& slot) {
  return slot.stem == "output_norm" && c.architecture.starts_with("lfm2") ? "token_embd_norm.weight"
                                                                          : "";
}

bool may_stay_unused(const std::string& name) {
  return !name.starts_with("blk.") || name.ends_with(".attn_rot_embd.weight") ||
         name.ends_with(".rope_freqs.weight");
}

// The converters of GLM-4.5, gpt-oss and Seed-OSS name the norm before the MLP by its place after
// attention.
bool norm_by_place(const Family& family) {
  return family.architecture == "glm4moe" || family.architecture == "gpt-oss" ||
         family.architecture == "seed_oss";
}

// Falcon-H1's has no suffix.
std::string mlp_norm(const Family& family, const WeightSlot& slot) {
  if (family.architecture == "dbrx")
    return fmt::format("blk.{}.attn_output_norm.{}", slot.layer, slot.suffix);
  if (family.architecture == "falcon-h1") return fmt::format("blk.{}.ffn_norm", slot.layer);
  if (!norm_by_place(family)) return slot.name();
  return fmt::format("blk.{}.post_attention_norm.{}", slot.layer, slot.suffix);
}

// Falcon 40B: the norm before the MLP has the name that the only norm of Falcon 7B has.
std::string falcon_norm(const ModelConfig& c, const WeightSlot& slot) {
  if (c.architecture != "falcon" || !c.two_norms) return "";
  const char* stem = slot.stem == "attn_norm"  ? "attn_norm_2"
                     : slot.stem == "ffn_norm" ? "attn_norm"
                                               : "";
  return *stem ? fmt::format("blk.{}.{}.{}", slot.layer, stem, slot.suffix) : "";
}

// Where a slot's values are in the file: one tensor, a part of a fused one, or one per expert.
std::vector<std::string> sources_of(const GgufFile& file, const Family& family,
                                    const ModelConfig& c, const WeightSlot& slot,
                                    std::vector<RecipeStep>& steps) {
  std::string name = slot.name();
  if (AltUpPart part = altup_part(slot.stem); part.index >= 0) {
    WeightPlace place = gguf_altup_place(c, part);
    steps = std::move(place.steps);
    return {place.tensor};
  }
  if (c.recurrent.heads > 0) {
    bool joined = file.find(fmt::format("blk.{}.ssm_in.weight", slot.layer)) != nullptr;
    RecurrentPart part =
        c.recurrent.delta ? gguf_delta_part(c, slot, joined) : recurrent_part(c, slot);
    steps = std::move(part.steps);
    if (!part.tensor.empty()) return {part.tensor};
  }
  if (LatentPart part = latent_part(c, slot.stem); !part.stem.empty()) {
    if (slot.dims.size() == 3 && file.find(name)) return {name};
    steps = std::move(part.steps);
    return {fmt::format("blk.{}.{}.weight", slot.layer, part.stem)};
  }
  bool attention_part = slot.stem == "attn_q" || slot.stem == "attn_k" || slot.stem == "attn_v";
  bool mlp_part = family.fused_mlp && (slot.stem == "ffn_gate" || slot.stem == "ffn_up");
  if (attention_part || mlp_part) {
    WeightSlot whole{slot.layer, attention_part ? "attn_qkv" : "ffn_up", slot.suffix, {}};
    const TensorView* fused = file.find(whole.name());
    FusedRows rows = fused_rows(c, slot.stem);
    if (fused && !fused->dims.empty() && fused->dims[0] == rows.total) {
      steps.push_back(slice_rows(rows.begin, rows.end));
      return {whole.name()};
    }
  }
  if (c.head_qk_norm && (slot.stem == "attn_q_norm" || slot.stem == "attn_k_norm"))
    add_head_norm_steps(family, c, slot, steps);
  if (std::string other = falcon_norm(c, slot); !other.empty()) return {other};
  if (std::string other = output_norm(c, slot); !other.empty() && file.find(other)) return {other};
  if (slot.stem == "ffn_norm" && !file.find(name)) return {mlp_norm(family, slot)};
  if (slot.stem == "ffn_gate_exps" || slot.stem == "ffn_up_exps") {  // may be one tensor
    std::string both = fmt::format("blk.{}.ffn_gate_up_exps.{}", slot.layer, slot.suffix);
    if (slot.suffix == "weight" && file.find(both)) {
      int64_t ffn = slot.dims[1], first = slot.stem == "ffn_gate_exps" ? 0 : ffn;
      steps.push_back(reshape({2 * ffn * slot.dims[0], slot.dims[2]}));
      steps.push_back(slice_rows_of_each(first, first + ffn, 2 * ffn));
      steps.push_back(reshape(slot.dims));
      return {both};
    }
  }
  if (slot.stem == "ffn_gate_inp_shexp" || slot.stem == "exp_probs_b")  // may have a dimension of 1
    steps.push_back(reshape(slot.dims));
  if (slot.dims.size() != 3 || file.find(name)) return {name};
  // Early files have a tensor per expert: blk.0.ffn_gate.3.weight.
  std::string stem = slot.stem.substr(0, slot.stem.size() - std::string_view("_exps").size());
  if (!file.find(fmt::format("blk.{}.{}.0.weight", slot.layer, stem))) return {name};
  std::vector<std::string> parts;
  for (int64_t e = 0; e < slot.dims[0]; ++e)
    parts.push_back(fmt::format("blk.{}.{}.{}.weight", slot.layer, stem, e));
  steps.push_back(reshape(slot.dims));
  return parts;
}

// Converters store q and k of some families for interleaved rotary pairs.
void add_rotary_order(const Family& family, const ModelConfig& c, const WeightSlot& slot,
                      std::vector<RecipeStep>& steps) {
  if ((family.gguf_interleaved || family.interleaved) &&
      (slot.stem == "attn_q" || slot.stem == "attn_k"))
    steps.push_back(permute_rows(slot.stem == "attn_q" ? c.heads : c.kv_heads,
                                 c.rope.dims == c.head_dim ? 0 : c.rope.dims));
}

}  // namespace

void map_gguf_weights(const GgufFile& file, const Family& family, ModelConfig& c) {
  std::set<std::string> used;
  for (const WeightSlot& slot : weight_slots(c)) {
    std::vector<RecipeStep> steps;
    std::vector<std::string> sources = sources_of(file, family, c, slot, steps);
    add_rotary_order(family, c, slot, steps);
    used.insert(sources.begin(), sources.end());
    add_weight(c, file, file.name(), slot, sources, std::move(steps));
  }
  std::string beyond = fmt::format("blk.{}.", c.layers);  // a layer that predicts further tokens
  for (const GgufTensor& tensor : file.tensors())
    if (!used.contains(tensor.name) && !may_stay_unused(tensor.name) &&
        !((family.experts || family.gated_delta) && tensor.name.starts_with(beyond)))
      fail(ErrorCode::kUnsupported, "{}: tensor {} is not a known part of a {} model", file.name(),
           tensor.name, c.architecture);
}

WeightPlace gguf_place(const Family& family, const ModelConfig& c, const WeightSlot& slot) {
  WeightSlot stored = slot;
  std::vector<RecipeStep> steps;
  if (AltUpPart part = altup_part(slot.stem); part.index >= 0) return gguf_altup_place(c, part);
  if (c.recurrent.heads > 0) {
    RecurrentPart part =
        c.recurrent.delta ? gguf_delta_part(c, slot, false) : recurrent_part(c, slot);
    if (!part.tensor.empty()) return {std::move(part.tensor), std::move(part.steps)};
  }
  bool attention_part = slot.stem == "attn_q" || slot.stem == "attn_k" || slot.stem == "attn_v";
  bool mlp_part = slot.stem == "ffn_gate" || slot.stem == "ffn_up";
  LatentPart latent = latent_part(c, slot.stem);
  const bool split = family.architecture != "minicpm3";  // the matrix of keys and values
  if (!latent.stem.empty() && (slot.dims.size() == 2 || !split)) {
    stored.stem = latent.stem;
    steps = std::move(latent.steps);
  } else if ((attention_part && family.fused_qkv && family.architecture != "internlm2" &&
              family.architecture != "baichuan") ||
             (mlp_part && family.fused_mlp)) {
    FusedRows rows = fused_rows(c, slot.stem);
    steps.push_back(slice_rows(rows.begin, rows.end));
    stored.stem = attention_part ? "attn_qkv" : "ffn_up";
  } else if (std::string other = falcon_norm(c, slot); !other.empty()) {
    return {other, {}};
  } else if (slot.stem == "ffn_norm") {
    return {mlp_norm(family, slot), {}};
  } else if (std::string last = output_norm(c, slot); !last.empty()) {
    return {last, {}};
  } else if (c.head_qk_norm && (slot.stem == "attn_q_norm" || slot.stem == "attn_k_norm")) {
    add_head_norm_steps(family, c, slot, steps);
  }
  add_rotary_order(family, c, slot, steps);
  return {stored.name(), std::move(steps)};
}

}  // namespace tokamak
