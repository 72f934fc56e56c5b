#include "compile/import/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "compile/import/families.h"
#include "tensor/block_formats.h"

namespace tokamak {
namespace {

// Metadata keys of one architecture: "llama.block_count".
class Keys {
 public:
  Keys(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}
  std::string full(std::string_view key) const { return fmt::format("{}.{}", prefix_, key); }
  bool has(std::string_view key) const { return file_.has(full(key)); }

  // Some files write a list with one number per layer; all must be equal.
  int64_t integer(std::string_view key, int64_t fallback) const {
    if (file_.array_size(full(key)) == 0) return file_.get_int(full(key), fallback);
    std::vector<int64_t> list = file_.ints(full(key));
    if (std::any_of(list.begin(), list.end(), [&](int64_t v) { return v != list[0]; }))
      fail(ErrorCode::kUnsupported, "{}: {} differs from layer to layer", file_.name(), full(key));
    return list[0];
  }
  int64_t required(std::string_view key) const {
    if (!has(key)) fail(ErrorCode::kCorrupt, "{}: metadata {} is missing", file_.name(), full(key));
    return integer(key, 0);
  }
  double number(std::string_view key, double fallback) const {
    return file_.get_double(full(key), fallback);
  }
  std::string text(std::string_view key, std::string_view fallback) const {
    return file_.get_string(full(key), fallback);
  }
  std::vector<int64_t> list(std::string_view key) const {
    return file_.array_size(full(key)) == 0 ? std::vector<int64_t>{} : file_.ints(full(key));
  }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

const Family& family_of(const GgufFile& file, std::string& architecture) {
  architecture = file.get_string("general.architecture", "");
  if (architecture.empty())
    fail(ErrorCode::kCorrupt, "{}: metadata general.architecture is missing", file.name());
  Keys keys(file, architecture);
  if (keys.integer("expert_count", 0) > 0)
    fail(ErrorCode::kUnsupported,
         "{}: {} with {} experts: mixture-of-experts models are not supported yet", file.name(),
         architecture, keys.integer("expert_count", 0));
  if (keys.has("attention.kv_lora_rank"))
    fail(ErrorCode::kUnsupported, "{}: {} uses latent attention (MLA), which is not supported yet",
         file.name(), architecture);
  const Family* family = find_family(architecture == "mistral3" ? "mistral" : architecture);
  if (!family)
    fail(ErrorCode::kUnsupported, "{}: architecture {} is not supported; supported: {}",
         file.name(), architecture, supported_architectures());
  if (keys.number("attention.temperature_scale", 0) != 0)
    fail(ErrorCode::kUnsupported, "{}: {} scales attention by position, which is not supported yet",
         file.name(), architecture);
  return *family;
}

std::vector<double> factor_tensor(const GgufFile& file, std::string_view name) {
  const TensorView* tensor = file.find(name);
  if (!tensor) return {};
  if (tensor->dtype != DType::kF32 || tensor->dims.size() != 1)
    fail(ErrorCode::kCorrupt, "{}: tensor {} is not a list of f32", file.name(), name);
  std::vector<float> values(static_cast<size_t>(tensor->elements()));
  decode_row(DType::kF32, tensor->bytes.data(), values.data(), tensor->elements());
  return {values.begin(), values.end()};
}

void read_rope(const GgufFile& file, const Keys& keys, ModelConfig& c) {
  using Scaling = RopeConfig::Scaling;
  RopeConfig& r = c.rope;
  r.dims = keys.integer("rope.dimension_count", c.head_dim);
  r.theta = keys.number("rope.freq_base", 10000.0);
  r.original_context = keys.integer("rope.scaling.original_context_length", 0);
  r.freq_divisors = factor_tensor(file, "rope_freqs.weight");
  r.short_factor = factor_tensor(file, "rope_factors_short.weight");
  r.long_factor = factor_tensor(file, "rope_factors_long.weight");
  // A factor without a type means linear; the second key is the one early files used.
  std::string type = keys.text("rope.scaling.type", "linear");
  double factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 0));
  r.factor = factor == 0 ? 1 : factor;
  double attention = keys.number("rope.scaling.attn_factor", 0);
  if (!r.long_factor.empty() || !r.short_factor.empty()) {
    if (r.long_factor.empty() || r.short_factor.empty() || r.original_context <= 0)
      fail(ErrorCode::kCorrupt, "{}: long-context rotary factors need both lists and {}",
           file.name(), keys.full("rope.scaling.original_context_length"));
    r.scaling = Scaling::kLongRope;
    r.factor = static_cast<double>(c.context) / static_cast<double>(r.original_context);
    r.attention_factor = attention;
  } else if (type == "yarn") {
    r.scaling = Scaling::kYarn;
    if (r.original_context <= 0) r.original_context = c.context;
    r.beta_fast = keys.number("rope.scaling.yarn_beta_fast", r.beta_fast);
    r.beta_slow = keys.number("rope.scaling.yarn_beta_slow", r.beta_slow);
    r.mscale_all_dim = keys.number("rope.scaling.yarn_log_multiplier", 0);
    if (r.mscale_all_dim != 0) r.mscale = 1;
    r.attention_factor = keys.number("rope.scaling.yarn_attn_factor", 0);
    // Multiplies the value derived from the scaling.
    if (attention > 0 && attention != 1.0 && r.attention_factor == 0 && r.factor > 1)
      r.attention_factor = attention * (0.1 * std::log(r.factor) + 1);
  } else if (type == "linear") {
    if (r.factor != 1) r.scaling = Scaling::kLinear;
  } else if (type != "none" && type != "longrope") {
    fail(ErrorCode::kUnsupported, "{}: rotary scaling {} is not supported", file.name(), type);
  }
}

void read_window(const Keys& keys, ModelConfig& c) {
  c.sliding_window =
      keys.integer("attention.sliding_window", c.architecture == "gemma2" ? 4096 : 0);
  if (c.sliding_window == 0) return;
  // Every n-th layer has full attention; 0: none.
  int64_t period = c.architecture == "gemma2" ? 2 : c.architecture == "gemma3" ? 6 : 0;
  std::vector<int64_t> pattern = keys.list("attention.sliding_window_pattern");
  if (pattern.empty()) period = keys.integer("attention.sliding_window_pattern", period);
  if (period < 0 || (!pattern.empty() && static_cast<int64_t>(pattern.size()) != c.layers))
    fail(ErrorCode::kCorrupt, "{} does not fit {} layers",
         keys.full("attention.sliding_window_pattern"), c.layers);
  for (int64_t i = 0; i < c.layers; ++i)
    c.layer_slides.push_back(pattern.empty() ? period == 0 || i % period < period - 1
                                             : pattern[i] != 0);
}

void read_gemma(const Keys& keys, ModelConfig& c) {
  if (c.architecture == "gemma2") {
    c.attention_softcap = keys.number("attn_logit_softcapping", 50.0);
    c.final_softcap = keys.number("final_logit_softcapping", 30.0);
  } else if (c.architecture == "gemma3") {
    c.final_softcap = keys.number("final_logit_softcapping", 0);
    c.rope_local.dims = c.rope.dims;
    c.rope_local.theta = keys.number("rope.freq_base_swa", 10000.0);
  }
  // The metadata does not contain the query scale; only the 27B models do not derive it from the
  // head size.
  bool is_27b = (c.architecture == "gemma2" && c.layers == 46) ||
                (c.architecture == "gemma3" && c.layers == 62);
  if (is_27b)
    c.attention_scale = 1 / std::sqrt(static_cast<double>(c.hidden) / static_cast<double>(c.heads));
}

// Tensors that are not weights of the graph: rotary factors are read above, the rest is left over
// from old converters.
bool may_stay_unused(const std::string& name) {
  return !name.starts_with("blk.") || name.ends_with(".attn_rot_embd.weight") ||
         name.ends_with(".rope_freqs.weight");
}

void map_weights(const GgufFile& file, const Family& family, ModelConfig& c) {
  std::set<std::string> used;
  for (const WeightSlot& slot : weight_slots(c)) {
    std::string source = slot.name();
    std::vector<RecipeStep> steps;
    bool attention_part = slot.stem == "attn_q" || slot.stem == "attn_k" || slot.stem == "attn_v";
    bool mlp_part = family.gated && (slot.stem == "ffn_gate" || slot.stem == "ffn_up");
    if (family.fused && (attention_part || mlp_part)) {
      WeightSlot whole{slot.layer, attention_part ? "attn_qkv" : "ffn_up", slot.suffix, {}};
      const TensorView* fused = file.find(whole.name());
      FusedRows rows = fused_rows(c, slot.stem);
      if (fused && !fused->dims.empty() && fused->dims[0] == rows.total) {
        source = whole.name();
        steps.push_back(slice_rows(rows.begin, rows.end));
      }
    }
    if (family.gguf_interleaved && slot.stem == "attn_q") steps.push_back(permute_rows(c.heads));
    if (family.gguf_interleaved && slot.stem == "attn_k") steps.push_back(permute_rows(c.kv_heads));
    used.insert(source);
    add_weight(c, file, file.name(), slot, source, std::move(steps));
  }
  for (const GgufTensor& tensor : file.tensors())
    if (!used.contains(tensor.name) && !may_stay_unused(tensor.name))
      fail(ErrorCode::kUnsupported, "{}: tensor {} is not a known part of a {} model", file.name(),
           tensor.name, c.architecture);
}

}  // namespace

ModelConfig config_from_gguf(const GgufFile& file) {
  std::string architecture;
  const Family& family = family_of(file, architecture);
  Keys keys(file, architecture);
  ModelConfig c;
  c.name = file.get_string("general.name", "");
  const TensorView* embedding = file.find("token_embd.weight");
  if (!embedding || embedding->dims.size() != 2)
    fail(file.tensors().empty() ? ErrorCode::kUnsupported : ErrorCode::kCorrupt, "{}: {}",
         file.name(),
         file.tensors().empty() ? "contains a vocabulary but no weights"
                                : "tensor token_embd.weight is missing");
  c.vocab = embedding->dims[0];
  c.hidden = keys.required("embedding_length");
  c.layers = keys.required("block_count");
  c.context = keys.required("context_length");
  c.heads = keys.required("attention.head_count");
  c.kv_heads = keys.integer("attention.head_count_kv", c.heads);
  c.ffn = keys.required("feed_forward_length");
  if (c.heads <= 0 || c.layers <= 0 || c.layers > static_cast<int64_t>(file.tensors().size()))
    fail(ErrorCode::kCorrupt, "{}: {} heads and {} layers in a file of {} tensors", file.name(),
         c.heads, c.layers, file.tensors().size());
  if (!keys.has("attention.key_length") && c.hidden % c.heads != 0)
    fail(ErrorCode::kCorrupt, "{}: the hidden size {} does not divide into {} heads", file.name(),
         c.hidden, c.heads);
  c.head_dim = keys.integer("attention.key_length", c.hidden / c.heads);
  if (keys.integer("attention.value_length", c.head_dim) != c.head_dim)
    fail(ErrorCode::kUnsupported, "{}: keys and values of different sizes are not supported",
         file.name());
  apply_family(family, c);
  c.norm_eps = keys.number(c.norm == NormKind::kRms ? "attention.layer_norm_rms_epsilon"
                                                    : "attention.layer_norm_epsilon",
                           c.norm_eps);
  if (family.rotary) read_rope(file, keys, c);
  if (family.gguf_interleaved && c.rope.dims != c.head_dim)
    fail(ErrorCode::kUnsupported, "{}: {} with {} of {} dimensions rotated is not supported",
         file.name(), architecture, c.rope.dims, c.head_dim);
  read_window(keys, c);
  if (family.gemma) read_gemma(keys, c);
  c.tied_embeddings = file.find("output.weight") == nullptr;
  c.qkv_bias = file.find("blk.0.attn_q.bias") || file.find("blk.0.attn_qkv.bias");
  c.o_bias = file.find("blk.0.attn_output.bias") != nullptr;
  c.mlp_bias = file.find("blk.0.ffn_up.bias") != nullptr;
  check_config(c, file.name());
  map_weights(file, family, c);
  return c;
}

}  // namespace tokamak
