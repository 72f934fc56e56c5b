#include "compile/import/hf_weights.h"

#include <algorithm>
#include <set>

namespace tokamak {
namespace {

std::string_view layers_name(const Family& family) {
  for (const char* name : {"gpt2", "gptneo", "exaone", "falcon", "gptj", "codegen", "bloom",
                           "starcoder", "qwen", "jais"})
    if (family.architecture == name) return "h";
  if (family.architecture == "dbrx" || family.architecture == "mpt") return "blocks";
  return "layers";
}

bool is_attention_input(std::string_view stem) {
  return stem == "attn_q" || stem == "attn_k" || stem == "attn_v";
}

bool is_fused_part(const Family& family, std::string_view stem) {
  if (is_attention_input(stem)) return family.fused_qkv;
  return family.fused_mlp && (stem == "ffn_gate" || stem == "ffn_up");
}

// InternLM 2 and GPT-NeoX store, for each key/value head, its query heads, then the key, then the
// value.
RecipeStep grouped_rows(const ModelConfig& c, std::string_view stem) {
  int64_t queries = c.heads / c.kv_heads, first = stem == "attn_q"   ? 0
                                                  : stem == "attn_k" ? queries
                                                                     : queries + 1;
  int64_t count = stem == "attn_q" ? queries : 1;
  RecipeStep step = slice_rows(first * c.head_dim, (first + count) * c.head_dim);
  step.dims = {(queries + 2) * c.head_dim};
  return step;
}

// CodeGen has four parts, each with its queries, then its values, then its keys.
RecipeStep codegen_rows(const ModelConfig& c, std::string_view stem) {
  int64_t part = c.hidden / 4, first = stem == "attn_q" ? 0 : stem == "attn_v" ? 1 : 2;
  return slice_rows_of_each(first * part, (first + 1) * part, 3 * part);
}

// Masks and frequencies that old checkpoints saved as tensors; they are derived from the
// configuration. The parameters of an activation are read as a part of it.
bool is_buffer(std::string_view name) {
  for (const char* end : {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias",
                          ".attention.bias", ".attention.masked_bias", ".attn.causal_mask",
                          ".act_fn.alpha_p", ".act_fn.alpha_n", ".act_fn.beta", ".act_fn.eps"})
    if (name.ends_with(end)) return true;
  return false;
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

bool is_stacked(const Family& family, const WeightSlot& slot) {
  return family.stacked_experts && slot.stem.ends_with("_exps") && slot.suffix != "scale";
}

std::string hf_prefix(const WeightSource& weights, const Family& family, std::string_view where) {
  WeightSlot first{0,
                   family.architecture == "falcon" || family.unit_norms ? "attn_output"
                   : family.pre_norms                                   ? "attn_norm"
                                                                        : "post_attention_norm",
                   "weight",
                   {}};
  for (const char* prefix :
       {"model.", "", "transformer.", "language_model.model.", "model.language_model.",
        "model.decoder.", "decoder.", "backbone.", "gpt_neox.", "transformer.encoder.",
        "model.text_model.", "thinker.model.", "language.model."})
    if (weights.find(hf_tensor_name(family, prefix, first))) return prefix;
  fail(ErrorCode::kCorrupt, "{}: tensor {} is missing", where,
       hf_tensor_name(family, "model.", first));
}

std::string hf_tensor_name(const Family& family, const std::string& prefix,
                           const WeightSlot& slot) {
  if (slot.stem == "output") {
    if (family.architecture == "internlm2") return "output." + slot.suffix;
    if (family.architecture == "gptneox") return "embed_out." + slot.suffix;
    if (family.architecture == "chatglm") return "transformer.output_layer." + slot.suffix;
    // The head is stored next to the model, not inside it.
    std::string_view beside;
    for (const char* outer : {"language_model.", "thinker.", "language."})
      if (prefix == std::string(outer) + "model.") beside = outer;
    return fmt::format("{}lm_head.{}", beside, slot.suffix);
  }
  if (AltUpPart part = altup_part(slot.stem); part.index >= 0)
    return fmt::format("{}{}.{}.weight", prefix,
                       part.back ? "altup_unembed_projections" : "altup_projections", part.index);
  if (family.architecture == "chatglm" && slot.stem == "token_embd")
    return "transformer.embedding.word_embeddings." + slot.suffix;
  std::string_view stem = hf_stem(family, slot.stem);
  TK_CHECK(!stem.empty(), "{} has no tensor name in {}", slot.stem, family.architecture);
  if (slot.layer < 0) return fmt::format("{}{}.{}", prefix, stem, slot.suffix);
  if (slot.suffix == "scale")  // Gemma 4
    stem = slot.stem == "ffn_gate_inp" ? "router.scale" : "router.per_expert_scale";
  std::string name = fmt::format("{}{}.{}.{}", prefix, layers_name(family), slot.layer, stem);
  bool whole = slot.suffix == "scale" || name.ends_with(".layer_scalar") ||
               name.ends_with("_bias") || name.ends_with(".sinks") || name.ends_with(".A_log") ||
               name.ends_with(".D") || name.ends_with(".correct_output_scale");
  return whole ? name : name + "." + slot.suffix;
}

namespace {

// Falcon 40B has a norm for each part of a block, under other names than those of Falcon 7B.
std::string own_norm_name(const Family& family, const ModelConfig& config, std::string name) {
  if (family.architecture != "falcon" || !config.two_norms) return name;
  for (const auto& [from, to] :
       {std::pair("input_layernorm", "ln_attn"), {"post_attention_layernorm", "ln_mlp"}})
    if (size_t at = name.find(from); at != std::string::npos)
      return name.replace(at, std::string_view(from).size(), to);
  return name;
}

// The tensors of a slot: one, or one per expert or head.
std::vector<std::string> sources_of(const Family& family, const ModelConfig& config,
                                    const std::string& prefix, const WeightSlot& slot) {
  std::string name = own_norm_name(family, config, hf_tensor_name(family, prefix, slot));
  size_t at = name.find("{}");
  if (at == std::string::npos) return {name};
  std::vector<std::string> out;
  int64_t count = is_norm(slot.stem) ? slot.dims[0] / config.head_dim : slot.dims[0];
  for (int64_t e = 0; e < count; ++e)
    out.push_back(name.substr(0, at) + std::to_string(e) + name.substr(at + 2));
  return out;
}

// Qwen3.5 has matrices of their own for gates, rates and steps, and all queries before all keys.
std::vector<RecipeStep> separate_steps(const ModelConfig& config, const WeightSlot& slot) {
  int64_t keys = config.recurrent.groups * config.recurrent.state, inner = config.recurrent.inner();
  if (slot.stem == "ssm_q") return {slice_rows(0, keys)};
  if (slot.stem == "ssm_k") return {slice_rows(keys, 2 * keys)};
  if (slot.stem == "ssm_v") return {slice_rows(2 * keys, 2 * keys + inner)};
  bool whole = slot.stem == "ssm_gate" || slot.stem == "ssm_rate" || slot.stem == "ssm_step";
  return whole ? std::vector<RecipeStep>{} : recurrent_part(config, slot).steps;
}

// A step that computes in f32, whose results are rounded to the type of the file.
void add_rounding(const WeightSource& weights, const std::string& source, RecipeStep step,
                  std::vector<RecipeStep>& steps, size_t at) {
  const TensorView* from = weights.find(source);
  if (!from) return;  // add_weight reports the error; a folder to be written is rounded already
  if (!is_block_type(from->dtype))
    steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(at),
                 {.kind = RecipeStep::Kind::kCast, .dtype = from->dtype, .dims = {}});
  steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(at), std::move(step));
}

std::vector<RecipeStep> steps_of(const WeightSource& weights, const Family& family,
                                 std::string_view where, const ModelConfig& config,
                                 const WeightSlot& slot, const std::string& source) {
  bool separate = family.architecture.starts_with("qwen35");
  if (slot.stem.starts_with("ssm_"))
    return separate ? separate_steps(config, slot) : recurrent_part(config, slot).steps;
  std::vector<RecipeStep> steps;
  if (family.conv1d && slot.dims.size() == 2 && slot.layer >= 0) steps.push_back(transpose());
  if (is_fused_part(family, slot.stem)) {
    FusedRows rows = fused_rows(config, slot.stem);
    check_fused_size(weights, where, source, rows.total, !steps.empty());
    bool grouped = family.architecture == "internlm2" || family.architecture == "gptneox" ||
                   family.architecture == "falcon" || family.architecture == "bloom" ||
                   (family.architecture == "starcoder" && config.kv_heads > 1);
    steps.push_back(family.architecture == "codegen" ? codegen_rows(config, slot.stem)
                    : grouped                        ? grouped_rows(config, slot.stem)
                                                     : slice_rows(rows.begin, rows.end));
  }
  if (family.interleaved && (slot.stem == "attn_q" || slot.stem == "attn_k"))
    steps.push_back(permute_rows(slot.stem == "attn_q" ? config.heads : config.kv_heads,
                                 config.rope.dims == config.head_dim ? 0 : config.rope.dims));
  if (config.head_qk_norm && (slot.stem == "attn_q_norm" || slot.stem == "attn_k_norm"))
    add_head_norm_steps(family, config, slot, steps);
  const bool paired = config.recurrent.delta;  // each head has its query and its gate
  if (paired && slot.stem == "attn_q")
    steps.push_back(slice_rows_of_each(0, config.head_dim, 2 * config.head_dim));
  if (paired && slot.stem == "attn_gate")
    steps.push_back(slice_rows_of_each(config.head_dim, 2 * config.head_dim, 2 * config.head_dim));
  if ((family.gemma || family.centered_norms) && is_norm(slot.stem) && slot.suffix == "weight")
    steps.push_back(add_scalar(1.0));
  // Positions 0 and 1 of OPT's table belong to padding.
  if (family.architecture == "opt" && slot.stem == "position_embd")
    steps.push_back(slice_rows(2, 2 + config.context));
  bool gate = slot.stem == "ffn_gate_shexp" || slot.stem == "ffn_gate";
  bool up = slot.stem == "ffn_up_shexp" || slot.stem == "ffn_up";
  if (family.stacked_experts && family.architecture.starts_with("granite") && (gate || up)) {
    int64_t rows = slot.dims[0], first = up ? rows : 0;
    check_fused_size(weights, where, source, 2 * rows, false);
    steps.push_back(slice_rows(first, first + rows));
  }
  if (slot.dims.size() == 3 || slot.stem == "exp_probs_b") steps.push_back(reshape(slot.dims));
  // Baichuan 2; its vocabulary tells.
  if (family.architecture == "baichuan" && slot.stem == "output" && config.vocab == 125696)
    add_rounding(weights, source, {.kind = RecipeStep::Kind::kUnitRows, .dims = {}}, steps,
                 steps.size());
  return steps;
}

// The matrices of all experts in one tensor: gpt-oss, Llama 4 and Qwen3-VL as [in, out] or as MXFP4
// blocks of [out, in], the others as [out, in]; gpt-oss with gate and up in turn, the others with
// all of an expert's gate first.
std::vector<RecipeStep> stacked_steps(const WeightSource& weights, const ModelConfig& config,
                                      const WeightSlot& slot, std::string& source) {
  bool bias = slot.suffix == "bias", down = slot.stem == "ffn_down_exps";
  bool transposed = config.architecture == "gpt-oss" || config.architecture == "llama4";
  if (!config.architecture.starts_with("granite"))
    source = source.substr(0, source.size() - slot.suffix.size() - 1);  // without ".weight"
  if (config.architecture == "qwen3vlmoe") {  // transformers saves it as [out, in]
    const TensorView* t = weights.find(source.substr(0, source.rfind('.') + 1) + "down_proj");
    transposed = !t || t->dims.size() != 3 || t->dims[1] != config.hidden;
  }
  std::vector<RecipeStep> steps;
  if (config.architecture == "dbrx") {  // [experts * ffn, hidden], the last one transposed
    steps.push_back(reshape({config.experts.count, config.experts.ffn, config.hidden}));
    if (down) steps.push_back(transpose());
    return steps;
  }
  if (bias) {
    source += "_bias";
  } else if (weights.find(source + "_blocks")) {
    steps.push_back(
        {.kind = RecipeStep::Kind::kJoinMxfp4, .dims = {}, .tensor = source + "_scales"});
    source += "_blocks";
  } else if (transposed) {
    steps.push_back(transpose());
  }
  if (down) return steps;
  int64_t rows = 2 * config.experts.count * config.experts.ffn;
  steps.push_back(reshape(bias ? std::vector{rows} : std::vector{rows, config.hidden}));
  int64_t each = config.architecture == "gpt-oss" ? 1 : config.experts.ffn;
  int64_t first = slot.stem == "ffn_gate_exps" ? 0 : each;
  steps.push_back(slice_rows_of_each(first, first + each, 2 * each));
  steps.push_back(reshape(slot.dims));
  return steps;
}

// Qwen3.5 is published with one tensor for all experts and saved by
// transformers with one for each. Then `sources` becomes the former, with a suffix that the tensor
// does not have.
bool published_stacked(const WeightSource& weights, const Family& family, const std::string& prefix,
                       const WeightSlot& slot, std::vector<std::string>& sources) {
  if (family.architecture != "qwen35moe" || !slot.stem.ends_with("_exps")) return false;
  std::string name = fmt::format("{}layers.{}.mlp.experts.{}", prefix, slot.layer,
                                 slot.stem == "ffn_down_exps" ? "down_proj" : "gate_up_proj");
  if (!weights.find(name)) return false;
  sources = {name + "." + slot.suffix};
  return true;
}

// A weight of quantised modules: their matrices take the place of the tensors, [out, in] in all
// families.
void add_quantized(const QuantizedWeights& quantized, std::string_view where,
                   const WeightSource& weights, const Family& family, const WeightSlot& slot,
                   const std::vector<std::string>& modules, std::vector<RecipeStep> steps,
                   ModelConfig& config, std::set<std::string>& used) {
  QuantizedWeights::Matrix m = quantized.matrix(modules);
  used.insert(m.sources.begin(), m.sources.end());
  for (const RecipeStep& step : m.steps) used.insert(step.tensor);
  if (is_fused_part(family, slot.stem) && m.rows != fused_rows(config, slot.stem).total)
    fail(ErrorCode::kCorrupt, "{}: {} has {} rows, expected {}", where, modules[0], m.rows,
         fused_rows(config, slot.stem).total);
  if (family.conv1d && !steps.empty() && steps[0].kind == RecipeStep::Kind::kTranspose)
    steps.erase(steps.begin());
  steps.insert(steps.begin(), m.steps.begin(), m.steps.end());
  add_weight(config, weights, where, slot, m.sources, std::move(steps));
  if (m.factor != 1.0) {
    if (slot.dims.size() != 2 || config.latent.rank > 0 || slot.stem == "token_embd")
      fail(ErrorCode::kUnsupported,
           "{}: {} is NVFP4, which is supported in plain linear layers only; use MXFP4 or a GGUF "
           "file",
           where, modules[0]);
    config.weights[slot.name()].factor = m.factor;
  }
  if (m.order.empty()) return;
  if (slot.dims.size() != 2 || config.latent.rank > 0)
    fail(ErrorCode::kUnsupported,
         "{}: {} orders its columns by activation (desc_act), which is supported in plain linear "
         "layers only; quantise it without desc_act",
         where, modules[0]);
  WeightSlot order = slot;
  order.suffix = "order";
  config.weights[order.name()] = {
      {{m.order}, {{.kind = RecipeStep::Kind::kSortGroups, .a = m.groups, .dims = {}}}},
      DType::kI32,
      {m.columns}};
}

// "x" of "x.weight".
std::string module_of(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

// The number in "layers.12.mlp"; -1 if there is none.
int64_t layer_of(std::string_view name) {
  int64_t n = -1;
  for (char c : name) {
    if (c < '0' || c > '9') break;
    n = std::max<int64_t>(n, 0) * 10 + (c - '0');
    if (n > 1 << 20) return -1;
  }
  return n;
}

}  // namespace

WeightPlace hf_place(const Family& family, const ModelConfig& config, const WeightSlot& slot) {
  LatentPart latent = latent_part(config, slot.stem);
  WeightSlot stored = slot;
  if (!latent.stem.empty()) stored.stem = latent.stem;
  WeightPlace place{hf_tensor_name(family, "", stored), std::move(latent.steps)};
  // Sizes were checked when the model was read.
  if (is_stacked(family, slot))
    place.steps = stacked_steps(WeightTable(), config, slot, place.tensor);
  else if (latent.stem.empty())
    place.steps = steps_of(WeightTable(), family, "", config, slot, place.tensor);
  return place;
}

void map_hf_weights(const WeightSource& weights, const QuantizedWeights& quantized,
                    const Family& family, std::string_view where, ModelConfig& config) {
  std::string prefix = hf_prefix(weights, family, where);
  std::set<std::string> used;
  for (const WeightSlot& slot : weight_slots(config)) {
    LatentPart latent = latent_part(config, slot.stem);
    WeightSlot stored = slot;
    if (!latent.stem.empty()) stored.stem = latent.stem;
    std::vector<std::string> sources = latent.stem.empty()
                                           ? sources_of(family, config, prefix, slot)
                                           : std::vector{hf_tensor_name(family, prefix, stored)};
    std::vector<RecipeStep> steps = latent.stem.empty()
                                        ? steps_of(weights, family, where, config, slot, sources[0])
                                        : std::move(latent.steps);
    if (is_stacked(family, slot) || published_stacked(weights, family, prefix, slot, sources)) {
      sources.resize(1);
      steps = stacked_steps(weights, config, slot, sources[0]);
      if (!steps.empty()) used.insert(steps[0].tensor);
    }
    if (slot.suffix == "weight" && slot.dims.size() > 1 &&
        quantized.quantized(module_of(sources[0]))) {
      std::vector<std::string> modules;
      for (const std::string& source : sources) modules.push_back(module_of(source));
      add_quantized(quantized, where, weights, family, slot, modules, std::move(steps), config,
                    used);
      continue;
    }
    used.insert(sources.begin(), sources.end());
    if (quantized.rounds_weights() && slot.layer >= 0 && slot.dims.size() == 2)
      add_rounding(weights, sources[0], {.kind = RecipeStep::Kind::kTernary, .dims = {}}, steps, 0);
    add_weight(config, weights, where, slot, sources, std::move(steps));
  }
  std::string layers = fmt::format("{}{}.", prefix, layers_name(family));
  for (const std::string& name : weights.names()) {
    if (!name.starts_with(layers) || used.contains(name) || is_buffer(name) ||
        quantized.is_side_tensor(name))
      continue;
    // Layers beyond the last predict further tokens (GLM-4.5); they are not needed.
    if (family.experts && layer_of(std::string_view(name).substr(layers.size())) >= config.layers)
      continue;
    fail(ErrorCode::kUnsupported, "{}: tensor {} is not a known part of a {} model", where, name,
         family.architecture);
  }
}

}  // namespace tokamak
