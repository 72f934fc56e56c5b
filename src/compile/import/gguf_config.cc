#include "compile/import/gguf_config.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "compile/import/families.h"
#include "compile/import/gguf_keys.h"
#include "tensor/block_formats.h"

namespace tokamak {
namespace {

const Family& family_of(const GgufFile& file, std::string& architecture) {
  architecture = file.get_string("general.architecture", "");
  if (architecture.empty())
    fail(ErrorCode::kCorrupt, "{}: metadata general.architecture is missing", file.name());
  GgufKeys keys(file, architecture);
  int64_t experts = keys.integer("expert_count", 0);
  std::string_view name = architecture;
  if (name == "mistral3") name = "mistral";
  if (name == "gemma-embedding") name = "gemma3";
  if (name == "llama" && experts > 0) name = "mixtral";
  const Family* family = find_family(name);
  if (!family || !family->in_gguf)
    fail(ErrorCode::kUnsupported, "{}: architecture {} is not supported{}{}; supported: {}",
         file.name(), architecture, missing_feature(architecture), similar_names(architecture),
         supported_architectures());
  if (experts > 0 && !family->experts)
    fail(ErrorCode::kUnsupported, "{}: {} with {} experts is not supported", file.name(),
         architecture, experts);
  if (name != "llama4" && architecture != "mistral3" &&
      keys.number("attention.temperature_scale", 0) != 0)
    fail(ErrorCode::kUnsupported, "{}: {} scales attention by position, which is not supported",
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

void read_rope(const GgufFile& file, const GgufKeys& keys, ModelConfig& c) {
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
    r.yarn_truncate = c.architecture != "gpt-oss";  // no key tells
    if (r.original_context <= 0) r.original_context = c.context;
    r.beta_fast = keys.number("rope.scaling.yarn_beta_fast", r.beta_fast);
    r.beta_slow = keys.number("rope.scaling.yarn_beta_slow", r.beta_slow);
    r.mscale_all_dim = keys.number("rope.scaling.yarn_log_multiplier", 0);
    if (r.mscale_all_dim != 0) r.mscale = 1;
    if (c.latent.rank > 0 && r.mscale_all_dim != 0) {  // the converter multiplies by 0.1
      r.mscale_all_dim = static_cast<float>(r.mscale_all_dim / 0.1);
      r.mscale = r.mscale_all_dim;
    }
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

void read_alibi(const GgufFile& file, const GgufKeys& keys, const Family& family, ModelConfig& c) {
  constexpr int64_t kBaichuan13B = 40;  // layers; the files of llama.cpp's converter do not tell
  const bool baichuan = c.architecture == "baichuan" &&
                        (c.layers == kBaichuan13B || keys.has("attention.max_alibi_bias"));
  if (!family.alibi && !baichuan) return;
  double most = keys.number("attention.max_alibi_bias", 8);
  if (!(most > 0 && most <= 1024))
    fail(ErrorCode::kCorrupt, "{}: {} is {}, expected a positive number", file.name(),
         keys.full("attention.max_alibi_bias"), most);
  c.alibi = alibi_slopes(c.heads, most);
  c.layer_rotates.assign(static_cast<size_t>(c.layers), false);
}

void read_window(const GgufKeys& keys, ModelConfig& c) {
  int64_t usual = c.architecture == "gemma2" ? 4096 : c.architecture == "llama4" ? 8192 : 0;
  c.sliding_window = keys.integer("attention.sliding_window", usual);
  if (c.sliding_window == 0) return;
  int64_t period = gguf_window_period(c.architecture);
  std::vector<int64_t> pattern = keys.list("attention.sliding_window_pattern");
  if (pattern.empty()) period = keys.integer("attention.sliding_window_pattern", period);
  if (period < 0 || (!pattern.empty() && static_cast<int64_t>(pattern.size()) != c.layers))
    fail(ErrorCode::kCorrupt, "{} does not fit {} layers",
         keys.full("attention.sliding_window_pattern"), c.layers);
  for (int64_t i = 0; i < c.layers; ++i)
    c.layer_slides.push_back(pattern.empty() ? period == 0 || i % period < period - 1
                                             : pattern[i] != 0);
}

// Scales of Granite and Cohere; layers that use no positions.
void read_variants(const GgufKeys& keys, ModelConfig& c) {
  c.clip_qkv = keys.number("attention.clamp_kqv", 0);
  if (c.architecture.starts_with("minicpm")) {  // many files have no keys for the usual scales
    auto layers = static_cast<double>(c.layers), hidden = static_cast<double>(c.hidden);
    c.embedding_scale = keys.number("embedding_scale", 12);
    c.residual_scale = keys.number("residual_scale", 1.4 / std::sqrt(layers));
    c.logit_scale = 1 / keys.number("logit_scale", hidden / 256);
  } else if (c.architecture.starts_with("granite")) {
    c.embedding_scale = keys.number("embedding_scale", 1);
    c.residual_scale = keys.number("residual_scale", 1);
    c.attention_scale = keys.number("attention.scale", 0);
    c.logit_scale = 1 / keys.number("logit_scale", 1);
  } else if (c.architecture == "command-r" || c.architecture == "cohere2") {
    c.logit_scale = keys.number("logit_scale", 0.0625);
  }
  if (c.architecture == "jais")  // its matrices include their factors
    c.attention_scale = 1.0 / static_cast<double>(c.head_dim);
  if (c.architecture == "afmoe") c.embedding_scale = std::sqrt(static_cast<double>(c.hidden));
  if (c.architecture.starts_with("nemotron_h") || c.architecture == "jamba" ||
      (c.architecture == "granitehybrid" && !keys.boolean("rope.scaling.finetuned", true)))
    c.layer_rotates.assign(static_cast<size_t>(c.layers), false);
  if (c.architecture == "smollm3") {
    for (int64_t i = 0; i < c.layers; ++i) c.layer_rotates.push_back((i + 1) % 4 != 0);
  } else if (c.architecture == "cohere2" || c.architecture == "afmoe" ||
             ((c.architecture.starts_with("exaone") || c.architecture == "llama4") &&
              c.sliding_window > 0)) {
    c.layer_rotates = c.layer_slides;
    c.layer_rotates.resize(static_cast<size_t>(c.layers));
  }
  if (c.architecture == "mistral" && keys.number("attention.temperature_scale", 0) != 0) {
    c.temperature_scale = keys.number("attention.temperature_scale", 0);
    c.temperature_length = c.rope.original_context;
    c.temperature_everywhere = true;
  }
  if (c.architecture == "olmo2" && c.sliding_window > 0) {  // OLMo 3 scales full attention only
    c.rope_local.dims = c.rope.dims;
    c.rope_local.theta = keys.number("rope.freq_base_swa", c.rope.theta);
    if (c.rope_local == c.rope) c.rope_local = {};
  }
  if (c.architecture == "llama4" && c.sliding_window > 0) {
    c.temperature_scale = keys.number("attention.temperature_scale", static_cast<double>(0.1F));
    c.temperature_length = keys.integer("attention.temperature_length", 8192);
  }
}

void read_experts(const GgufFile& file, const GgufKeys& keys, const Family& family,
                  ModelConfig& c) {
  bool beside_mlp = c.architecture == "gemma4", may_lack = family.hybrid || family.latent;
  if (!family.experts || ((may_lack || beside_mlp) && keys.integer("expert_count", 0) == 0)) return;
  ExpertConfig& e = c.experts;
  e.beside_mlp = beside_mlp;
  e.count = keys.required("expert_count");
  e.used = keys.required("expert_used_count");
  e.ffn = keys.integer("expert_feed_forward_length", c.ffn);
  bool shared_gate = c.architecture == "qwen2moe" || family.gated_delta;
  e.shared_ffn = keys.integer("expert_shared_feed_forward_length",
                              keys.integer("expert_shared_count", 0) * e.ffn);
  e.shared_gate = shared_gate && e.shared_ffn > 0;
  if (c.architecture == "llama4") {
    constexpr int64_t kMaverick =
        128;  // the one model whose q and k are not normalised; no key tells
    c.unit_qk = e.count != kMaverick;
    e.shared_ffn = e.ffn;
    if (e.used != 1)
      fail(ErrorCode::kUnsupported,
           "{}: Llama 4 with {} experts per token is not supported, only 1", file.name(), e.used);
  }
  constexpr int64_t kSigmoid = 2;
  e.sigmoid = keys.integer("expert_gating_func", family.sigmoid_experts ? kSigmoid : 1) == kSigmoid;
  e.normalize = file.get_bool(keys.full("expert_weights_norm"), family.normalize_experts);
  double scale = keys.number("expert_weights_scale", 0);
  e.scale = scale == 0 ? 1 : scale;
  e.groups = std::max<int64_t>(1, keys.integer("expert_group_count", 1));
  e.used_groups = std::max<int64_t>(1, keys.integer("expert_group_used_count", 1));
  if (c.architecture == "phimoe") {
    e.mixer = 0.01F;  // no key tells
    if (e.used != 2)
      fail(ErrorCode::kUnsupported,
           "{}: Phi-3.5-MoE with {} experts per token is not supported, only 2", file.name(),
           e.used);
  }
  int64_t dense = keys.integer("leading_dense_block_count", 0);
  for (int64_t i = 0; i < c.layers; ++i) {
    // Some Qwen2 layers have no experts; no key tells which.
    bool has = i >= dense && file.find(fmt::format("blk.{}.ffn_gate_inp.weight", i));
    e.layers.push_back(has);
    if (has && file.find(fmt::format("blk.{}.exp_probs_b.bias", i))) e.score_bias = true;
  }
  // Files of GLM-4.7-Flash do not say it; those of DeepSeek-V2, which do not either, have no bias.
  if (c.architecture == "deepseek2" && e.score_bias && !keys.has("expert_gating_func"))
    e.sigmoid = true;
}

// Early files of DeepSeek-V2 give the sizes of heads, later ones those of the cache and, under
// other names, those of heads.
void read_latent(const GgufFile& file, const GgufKeys& keys, ModelConfig& c) {
  LatentConfig& m = c.latent;
  m.rank = keys.required("attention.kv_lora_rank");
  m.q_rank = keys.integer("attention.q_lora_rank", 0);
  int64_t key = keys.integer("attention.key_length_mla", keys.integer("attention.key_length", 0));
  m.value = keys.integer("attention.value_length_mla",
                         keys.integer("attention.value_length", c.hidden / c.heads));
  m.interleaved = c.architecture != "minicpm3";
  m.rope = keys.required("rope.dimension_count");
  m.nope = key - m.rope;
  c.kv_heads = c.heads;
  c.head_dim = key;
  if (!file.find("blk.0.attn_q_a.weight")) m.q_rank = 0;
}

// Mamba: a channel is a head. Files of Falcon-Mamba say that steps and vectors are normalised,
// those of Jamba have weights for it.
void read_channels(const GgufFile& file, const GgufKeys& keys, int64_t layer, ModelConfig& c) {
  RecurrentConfig& r = c.recurrent;
  r.heads = keys.required("ssm.inner_size");
  r.head_dim = r.groups = 1;
  r.state = keys.required("ssm.state_size");
  r.taps = keys.required("ssm.conv_kernel");
  r.step_rank = keys.required("ssm.time_step_rank");
  r.conv_bias = file.find(fmt::format("blk.{}.ssm_conv1d.bias", layer)) != nullptr;
  r.unit_step_norms = keys.boolean("ssm.dt_b_c_rms", false);
  r.step_norms =
      r.unit_step_norms || file.find(fmt::format("blk.{}.ssm_dt_norm.weight", layer)) != nullptr;
}

void read_state_space(const GgufFile& file, const GgufKeys& keys, int64_t layer, ModelConfig& c) {
  if (c.architecture == "mamba" || c.architecture == "jamba")
    return read_channels(file, keys, layer, c);
  RecurrentConfig& r = c.recurrent;
  r.heads = keys.required("ssm.time_step_rank");
  r.state = keys.required("ssm.state_size");
  r.groups = keys.integer("ssm.group_count", 1);
  r.taps = keys.required("ssm.conv_kernel");
  int64_t inner = keys.required("ssm.inner_size");
  r.norm_groups = r.groups;  // as llama.cpp and mamba_ssm compute it
  if (r.heads < 1 || inner % r.heads != 0)
    fail(ErrorCode::kCorrupt, "{}: {} channels do not divide into {} state space heads",
         file.name(), inner, r.heads);
  r.head_dim = inner / r.heads;
  r.conv_bias = file.find(fmt::format("blk.{}.ssm_conv1d.bias", layer)) != nullptr;
}

// What the keys of attention would say is 0 in these files.
void read_recurrent(const GgufFile& file, const GgufKeys& keys, ModelConfig& c) {
  read_state_space(file, keys, 0, c);
  c.heads = c.kv_heads = c.recurrent.heads;
  c.head_dim = c.recurrent.head_dim;
  c.ffn = c.recurrent.inner();
}

// Layers of Mamba-2 or convolutions beside attention: those without key heads, and of models whose
// layers have one part those without an MLP.
void read_hybrid(const GgufFile& file, const GgufKeys& keys, const Family& family, ModelConfig& c) {
  RecurrentConfig& r = c.recurrent;
  if (c.architecture == "falcon-h1") {  // the converter multiplies the matrices by its factors
    std::string norm = "blk.0.ssm_norm.weight";
    read_state_space(file, keys, 0, c);
    r.beside = true;
    if (!file.find(norm)) r.norm_groups = 0;
    return;
  }
  std::vector<int64_t> kv = keys.list("attention.head_count_kv"),
                       ffn = keys.list("feed_forward_length");
  kv.resize(static_cast<size_t>(c.layers), kv.empty() ? c.kv_heads : 0);
  ffn.resize(static_cast<size_t>(c.layers), 0);
  for (size_t i = 0; i < static_cast<size_t>(c.layers); ++i) {
    bool mlp = family.alone && ffn[i] > 0;
    if (family.alone) c.mlp_layers.push_back(mlp);
    r.layers.push_back(kv[i] == 0 && !mlp);
  }
  auto first = std::find(r.layers.begin(), r.layers.end(), true) - r.layers.begin();
  if (first == c.layers) {
    r = {};
    return;
  }
  if (c.architecture.starts_with("lfm2")) {
    r.short_conv = true;
    r.heads = r.groups = 1;
    r.head_dim = c.hidden;
    r.taps = keys.required("shortconv.l_cache");
    r.conv_bias = false;
    return;
  }
  read_state_space(file, keys, first, c);
}

// Linear attention beside attention (Qwen3-Next).
void read_gated_delta(const GgufFile& file, const GgufKeys& keys, ModelConfig& c) {
  RecurrentConfig& r = c.recurrent;
  r.heads = keys.required("ssm.time_step_rank");
  r.state = keys.required("ssm.state_size");
  r.groups = keys.required("ssm.group_count");
  r.taps = keys.required("ssm.conv_kernel");
  int64_t inner = keys.required("ssm.inner_size");
  if (r.heads < 1 || inner % r.heads != 0)
    fail(ErrorCode::kCorrupt, "{}: {} channels do not divide into {} heads of linear attention",
         file.name(), inner, r.heads);
  r.head_dim = inner / r.heads;
  r.conv_bias = false;
  r.delta = c.attention_gate = true;
  r.tiled = c.architecture.starts_with("qwen35") && r.heads != r.groups;  // as the converter orders
  int64_t interval = keys.integer("full_attention_interval", 4);
  std::vector<int64_t> listed = keys.list("attention.recurrent_layers");
  if (interval <= 0 || (!listed.empty() && std::ssize(listed) < c.layers))
    fail(ErrorCode::kCorrupt, "{}: {} does not fit {} layers", file.name(),
         keys.full(listed.empty() ? "full_attention_interval" : "attention.recurrent_layers"),
         c.layers);
  for (int64_t i = 0; i < c.layers; ++i)
    r.layers.push_back(listed.empty() ? (i + 1) % interval != 0
                                      : listed[static_cast<size_t>(i)] != 0);
}

void read_xielu(const GgufFile& file, ModelConfig& c) {
  std::vector<float> lists[3];
  const char* names[] = {"xielu.alpha_p", "xielu.alpha_n", "xielu.beta"};
  auto count = static_cast<size_t>(c.layers);
  for (size_t i = 0; i < 3; ++i) {
    if (file.array_size(names[i]) > 0)
      lists[i] = file.floats(names[i]);
    else if (file.has(names[i]))
      lists[i].assign(count, static_cast<float>(file.get_double(names[i], 0)));
    if (lists[i].size() != count)
      fail(ErrorCode::kCorrupt, "{}: {} does not fit {} layers", file.name(), names[i], c.layers);
  }
  for (size_t l = 0; l < count; ++l)
    c.xielu.push_back(xielu_of(lists[0][l], lists[1][l], lists[2][l]));
}

// Parts that some models of a family have: their tensors tell.
void read_parts(const GgufFile& file, const GgufKeys& keys, ModelConfig& c) {
  c.tied_embeddings = file.find("output.weight") == nullptr;
  if (c.tied_embeddings && c.architecture == "jais")  // the two differ in their factors
    fail(ErrorCode::kCorrupt, "{}: tensor output.weight is missing", file.name());
  c.qkv_bias = file.find("blk.0.attn_q.bias") || file.find("blk.0.attn_qkv.bias");
  c.o_bias = file.find("blk.0.attn_output.bias") != nullptr;
  c.output_bias = !c.tied_embeddings && file.find("output.bias") != nullptr;
  if (c.architecture == "glm4moe") c.qk_norm = file.find("blk.0.attn_q_norm.weight") != nullptr;
  c.mlp_bias = file.find("blk.0.ffn_up.bias") != nullptr;
  if (c.architecture == "gptneox")
    c.parallel = file.get_bool(keys.full("use_parallel_residual"), true);
  if (c.architecture == "falcon") c.two_norms = file.find("blk.0.attn_norm_2.weight") != nullptr;
  if (c.architecture == "command-r" || c.architecture == "stablelm")
    c.qk_norm = c.head_qk_norm = file.find("blk.0.attn_q_norm.weight") != nullptr;
  if (c.activation == Activation::kXielu) read_xielu(file, c);
  if (c.architecture == "stablelm") c.parallel = !file.find("blk.0.ffn_norm.weight");
}

void read_heads(const GgufKeys& keys, const Family& family, ModelConfig& c) {
  c.heads = keys.required("attention.head_count");
  bool lists = family.hybrid || c.architecture == "gemma4";  // a number for each layer
  c.kv_heads = lists ? keys.largest("attention.head_count_kv")
                     : keys.integer("attention.head_count_kv", c.heads);
  bool only_experts = family.experts && !keys.has("feed_forward_length");
  c.ffn = lists          ? keys.largest("feed_forward_length")
          : only_experts ? keys.required("expert_feed_forward_length")
                         : keys.required("feed_forward_length");
  if (c.architecture == "qwen") c.ffn /= 2;  // the file counts gate and up
}

}  // namespace

int64_t gguf_window_period(std::string_view architecture) {
  if (architecture == "gemma2" || architecture == "gpt-oss") return 2;
  for (const char* name : {"cohere2", "exaone4", "exaone-moe", "llama4", "olmo2", "afmoe"})
    if (architecture == name) return 4;
  return architecture == "gemma3n" ? 5 : architecture == "gemma3" ? 6 : 0;
}

ModelConfig config_from_gguf(const GgufFile& file) {
  std::string architecture;
  const Family& family = family_of(file, architecture);
  GgufKeys keys(file, architecture);
  ModelConfig c;
  c.architecture = family.architecture;
  c.name = file.get_string("general.name", "");
  const TensorView* embedding = file.find("token_embd.weight");
  if (!embedding || embedding->dims.size() != 2)
    fail(file.tensors().empty() ? ErrorCode::kUnsupported : ErrorCode::kCorrupt, "{}: {}",
         file.name(),
         file.tensors().empty() ? "contains a vocabulary but no weights"
                                : "tensor token_embd.weight is missing");
  c.vocab = embedding->dims[0];
  c.hidden = keys.required("embedding_length");
  c.layers = keys.required("block_count") - keys.integer("nextn_predict_layers", 0);
  c.context = keys.required("context_length");
  if (family.recurrent) {
    read_recurrent(file, keys, c);
  } else {
    read_heads(keys, family, c);
  }
  if (c.heads <= 0 || c.layers <= 0 || c.layers > static_cast<int64_t>(file.tensors().size()))
    fail(ErrorCode::kCorrupt, "{}: {} heads and {} layers are not possible in a file of {} tensors",
         file.name(), c.heads, c.layers, file.tensors().size());
  if (!family.latent && !family.recurrent && !keys.has("attention.key_length") &&
      c.hidden % c.heads != 0)
    fail(ErrorCode::kCorrupt, "{}: the hidden size {} does not divide into {} heads", file.name(),
         c.hidden, c.heads);
  if (!family.recurrent) c.head_dim = keys.integer("attention.key_length", c.hidden / c.heads);
  if (family.gated_delta) read_gated_delta(file, keys, c);
  if (family.hybrid) read_hybrid(file, keys, family, c);
  if (family.latent)
    read_latent(file, keys, c);
  else if (keys.integer("attention.value_length", c.head_dim) != c.head_dim)
    fail(ErrorCode::kUnsupported, "{}: keys and values of different sizes are not supported",
         file.name());
  if (architecture == "gemma4") read_gguf_gemma4_sizes(file, keys, c);
  apply_family(family, c);
  const char *rms = "attention.layer_norm_rms_epsilon", *layer = "attention.layer_norm_epsilon";
  if (c.norm == NormKind::kLayer && !keys.has(layer)) layer = rms;  // Phi-3.5-MoE
  c.norm_eps = keys.number(c.norm == NormKind::kRms ? rms : layer, c.norm_eps);
  if (family.rotary) read_rope(file, keys, c);
  read_alibi(file, keys, family, c);
  if (family.gguf_interleaved && c.rope.dims != c.head_dim)
    fail(ErrorCode::kUnsupported, "{}: {} with {} of {} dimensions rotated is not supported",
         file.name(), architecture, c.rope.dims, c.head_dim);
  read_window(keys, c);
  if (architecture == "gemma-embedding") read_gguf_embedder(file, keys, c);
  if (c.architecture.starts_with("gemma")) read_gguf_gemma(file, keys, c);
  read_variants(keys, c);
  if (family.latent) scale_latent(c);
  read_experts(file, keys, family, c);
  read_parts(file, keys, c);
  check_config(c, file.name());
  map_gguf_weights(file, family, c);
  return c;
}

}  // namespace tokamak
