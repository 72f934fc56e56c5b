#include <algorithm>
#include <cmath>

#include "compile/import/hf_fields.h"
#include "tensor/block_formats.h"

namespace tokamak {
namespace {

// Keys that change results and have one value in all published models.
void check_fixed(const Fields& f, const ModelConfig& c) {
  auto refuse = [&](std::string_view key) {
    fail(ErrorCode::kUnsupported, "{}: {} in config.json has a value that is not supported",
         f.where(), key);
  };
  struct Flag {
    std::string_view architecture, key;
    bool value;
  };
  for (const auto& [architecture, key, value] :
       {Flag{"afmoe", "route_norm", true}, Flag{"minimax-m2", "use_qk_norm", true},
        Flag{"bailingmoe2", "use_qk_norm", true}, Flag{"hunyuan-dense", "use_qk_norm", true},
        Flag{"hunyuan-moe", "use_qk_norm", true}, Flag{"hunyuan-dense", "use_cla", false},
        Flag{"hunyuan-moe", "use_cla", false}, Flag{"qwen35", "attn_output_gate", true},
        Flag{"qwen35moe", "attn_output_gate", true}, Flag{"smollm3", "use_sliding_window", false}})
    if (c.architecture == architecture && f.boolean(key, value) != value) refuse(key);
  if (c.architecture == "gpt-oss" && std::fabs(f.number({"swiglu_alpha"}, 1.702) - 1.702) > 1e-6)
    refuse("swiglu_alpha");
  if (c.architecture == "apertus" && f.text({"hidden_act"}, "xielu") != "xielu")
    refuse("hidden_act");
  if (c.architecture == "granitehybrid" &&
      f.text({"normalization_function"}, "rmsnorm") != "rmsnorm")
    refuse("normalization_function");
  for (std::string_view name : {"afmoe", "bailingmoe2", "exaone-moe", "minimax-m2"})
    for (std::string_view key : {"score_func", "score_function", "scoring_func"})
      if (c.architecture == name && f.text({key}, "sigmoid") != "sigmoid") refuse(key);
  if (c.architecture != "minimax-m2") return;
  for (double kind : f.numbers("attn_type_list"))
    if (kind != 1) refuse("attn_type_list");  // 0: linear attention
}

// Scales that Granite and Cohere apply to embeddings, scores, residuals and logits.
void read_scales(const Fields& f, ModelConfig& c) {
  if (c.architecture.starts_with("granite")) {
    c.embedding_scale = f.number({"embedding_multiplier"}, 1);
    c.residual_scale = f.number({"residual_multiplier"}, 1);
    c.attention_scale = f.number({"attention_multiplier"}, 1);
    c.logit_scale = 1 / f.number({"logits_scaling"}, 1);
  } else if (c.architecture == "command-r" || c.architecture == "cohere2") {
    c.logit_scale = f.number({"logit_scale"}, 0.0625);
    c.qk_norm = c.head_qk_norm = c.architecture == "command-r" && f.boolean("use_qk_norm", false);
  } else if (c.architecture.starts_with("minicpm")) {
    bool third = c.architecture == "minicpm3";
    double depth = std::sqrt(static_cast<double>(c.layers));
    auto hidden = static_cast<double>(c.hidden);
    auto given = [&](const char* key, double usual, double without) {
      return third && f.is_null(key) ? without : f.number({key}, third ? usual : 1);
    };
    c.embedding_scale = given("scale_emb", 12, 1);
    c.residual_scale = given("scale_depth", 1.4F, depth) / depth;
    c.logit_scale = given("dim_model_base", 256, hidden) / hidden;
  } else if (c.architecture == "hyperclovax") {
    c.post_norms = f.boolean("use_post_norm", true);
    c.embedding_scale = f.number({"embedding_multiplier"}, 1);
    c.residual_scale = f.number({"residual_multiplier"}, 1);
    c.attention_scale = f.number({"attention_multiplier"}, 0);
    c.logit_scale = f.number({"logits_scaling"}, 1);
  } else if (c.architecture == "afmoe" && f.boolean("mup_enabled", false)) {
    c.embedding_scale = std::sqrt(static_cast<double>(c.hidden));
  }
  if (c.architecture == "olmo" || c.architecture == "olmoe" || c.architecture == "dbrx" ||
      c.architecture == "mpt")
    c.clip_qkv = f.number({"clip_qkv"}, 0);
  if (c.architecture == "nanochat") {
    c.unit_qk = c.rope.backwards = true;
    const char* key = "final_logit_softcapping";
    c.final_softcap = f.is_null(key) ? 0 : f.number({key}, 15);
  }
}

// Factors for models of any width; early files have other names for them.
void read_jais(const Fields& f, ModelConfig& c) {
  if (f.text({"position_embedding_type"}, "learned") != "alibi" || f.find({"alibi_scaling"}) ||
      f.text({"activation_function"}, "gelu_new") != "swiglu" ||
      f.boolean("scale_attn_by_inverse_layer_idx", false) || !f.boolean("scale_attn_weights", true))
    fail(ErrorCode::kUnsupported,
         "{}: Jais with learned positions, scaled slopes, another activation than swiglu or other "
         "scales of scores is not supported",
         f.where());
  c.embedding_scale = f.number({"mup_embeddings_scale", "embeddings_scale"}, 1);
  c.logit_scale = f.find({"width_scale"})
                      ? f.number({"width_scale"}, 1)
                      : f.number({"mup_output_alpha"}, 1) * f.number({"mup_width_scale"}, 1);
  const char* whole = f.find({"scale_qk_dot_by_d"}) ? "scale_qk_dot_by_d" : "mup_scale_qk_dot_by_d";
  if (f.boolean(whole, false)) c.attention_scale = 1.0 / static_cast<double>(c.head_dim);
}

// Falcon multiplies the slopes by the scale of scores and rounds them.
void read_alibi(const Fields& f, const Family& family, ModelConfig& c) {
  const bool falcon = c.architecture == "falcon" && f.boolean("alibi", false);
  // Baichuan 13B, whose config.json does not limit the positions.
  const bool baichuan = c.architecture == "baichuan" && !f.find({"max_position_embeddings"});
  if (!family.alibi && !falcon && !baichuan) return;
  double most = f.number({"alibi_bias_max"}, 8);
  if (!(most > 0 && most <= 1024)) f.wrong("alibi_bias_max", "a positive number, at most 1024");
  c.alibi = alibi_slopes(c.heads, most);
  c.layer_rotates.assign(static_cast<size_t>(c.layers), false);
  if (c.architecture == "mpt") c.attention_scale = f.number({"attention_multiplier"}, 0);
  if (c.architecture == "jais") read_jais(f, c);
  if (c.architecture == "bloom" && f.boolean("apply_residual_connection_post_layernorm", false))
    fail(ErrorCode::kUnsupported, "{}: BLOOM with sums after norms is not supported", f.where());
  for (double& slope : c.alibi)
    if (falcon)
      slope = static_cast<double>(bf16_to_f32(f32_to_bf16(static_cast<float>(slope)))) /
              std::sqrt(static_cast<double>(c.head_dim));
}

// Layers that use no positions: every n-th of SmolLM3 and Llama 4; those without a window of Cohere
// 2 and EXAONE 4.
void read_unrotated(const Fields& f, ModelConfig& c) {
  if (c.architecture == "smollm3" || c.architecture == "llama4") {
    const Value* list = f.find({"no_rope_layers"});
    if (list && list->is_array() && list->as_array().empty()) list = nullptr;
    int64_t interval = f.integer({"no_rope_layer_interval"}, 4);
    if (interval <= 0) f.wrong("no_rope_layer_interval", "positive");
    if (list && (!list->is_array() || static_cast<int64_t>(list->size()) != c.layers))
      f.wrong("no_rope_layers", "a list with one entry per layer");
    for (int64_t i = 0; i < c.layers; ++i) {
      const Value* v = list ? &list->as_array()[static_cast<size_t>(i)] : nullptr;
      if (v && !v->is_int()) f.wrong("no_rope_layers", "a list of numbers");
      c.layer_rotates.push_back(v ? v->as_int() != 0 : (i + 1) % interval != 0);
    }
  } else if (c.architecture.starts_with("nemotron_h") || c.architecture == "jamba" ||
             (c.architecture == "granitehybrid" &&
              f.text({"position_embedding_type"}, "") != "rope")) {
    c.layer_rotates.assign(static_cast<size_t>(c.layers), false);
  } else if (c.architecture == "cohere2" || c.architecture == "afmoe" ||
             ((c.architecture == "exaone4" || c.architecture == "exaone-moe") &&
              c.sliding_window > 0)) {
    c.layer_rotates = c.layer_slides;
    c.layer_rotates.resize(static_cast<size_t>(c.layers));
  }
}

// Whether attention and MLP read the same input is a choice in two families.
void read_parallel(const Fields& f, ModelConfig& c) {
  if (c.architecture == "falcon") {
    bool grouped = f.boolean("new_decoder_architecture", false);
    c.parallel = grouped || f.boolean("parallel_attn", true);
    c.two_norms = grouped && f.integer({"num_ln_in_parallel_attn"}, 2) == 2;
  }
  bool stablelm = c.architecture == "stablelm";
  if (!stablelm && c.architecture != "gptneox") return;
  c.parallel = f.boolean("use_parallel_residual", !stablelm);
  c.qk_norm = c.head_qk_norm = stablelm && f.boolean("qk_layernorm", false);
}

// The layers of a list that the model has.
std::vector<int64_t> layer_numbers(const Fields& f, const Value& list, const char* key,
                                   int64_t layers) {
  if (!list.is_array()) f.wrong(key, "a list");
  std::vector<int64_t> out;
  for (const Value& v : list.as_array()) {
    if (!v.is_int()) f.wrong(key, "a list of layer numbers");
    if (v.as_int() >= 0 && v.as_int() < layers) out.push_back(v.as_int());
  }
  return out;
}

std::vector<bool> expert_layers(const Fields& f, const ModelConfig& c) {
  std::vector<bool> layers(static_cast<size_t>(c.layers), true);
  bool solar = f.text({"model_type"}, "") == "solar_open";  // all layers have experts
  bool one_dense =
      (c.architecture == "glm4moe" && !solar) || f.text({"model_type"}, "") == "glm4_moe_lite";
  for (const char* name : {"ernie4_5-moe", "afmoe", "exaone-moe"})
    one_dense = one_dense || c.architecture == name;
  int64_t dense = f.integer({"first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"},
                            one_dense                     ? 1
                            : c.architecture == "lfm2moe" ? 2
                                                          : 0);
  const char* key = c.architecture == "llama4"         ? "interleave_moe_layer_step"
                    : c.architecture == "ernie4_5-moe" ? "moe_layer_interval"
                                                       : "decoder_sparse_step";
  int64_t step = f.integer({key}, 1), last = f.integer({"moe_layer_end_index"}, -1);
  if (step <= 0) f.wrong(key, "positive");
  for (int64_t i = 0; i < c.layers; ++i)
    layers[static_cast<size_t>(i)] = i >= dense && (i + 1) % step == 0 && (last == -1 || i <= last);
  const Value* kinds = f.find({"mlp_layer_types"});
  if (kinds && (!kinds->is_array() || std::ssize(kinds->as_array()) != c.layers))
    f.wrong("mlp_layer_types", "a list with one entry per layer");
  for (size_t i = 0; kinds && i < layers.size(); ++i) {
    const Value& kind = kinds->as_array()[i];
    layers[i] = kind.is_string() && kind.as_string() == "sparse";
  }
  if (const Value* with = f.find({"moe_layers"}); with && c.architecture == "llama4") {
    layers.assign(static_cast<size_t>(c.layers), false);
    for (int64_t at : layer_numbers(f, *with, "moe_layers", c.layers))
      layers[static_cast<size_t>(at)] = true;
  }
  if (c.architecture == "jamba") {
    int64_t period = f.integer({"expert_layer_period"}, 2);
    int64_t offset = f.integer({"expert_layer_offset"}, 1);
    if (period <= 0) f.wrong("expert_layer_period", "positive");
    for (int64_t i = 0; i < c.layers; ++i) layers[static_cast<size_t>(i)] = i % period == offset;
  }
  if (c.alone) {  // an MLP without experts has no router
    for (size_t i = 0; i < layers.size(); ++i) layers[i] = c.mlp_layers[i] && is_expert_layer(f, i);
  }
  if (const Value* only = f.find({"mlp_only_layers"})) {
    for (int64_t at : layer_numbers(f, *only, "mlp_only_layers", c.layers))
      layers[static_cast<size_t>(at)] = false;
  }
  return layers;
}

// Each of two experts has the weight of a softmax over those whose scores are close to its own.
void read_mixer(const Fields& f, ExpertConfig& e) {
  e.mixer = f.number({"router_jitter_noise"}, 0.01F);
  if (!(e.mixer > 0)) f.wrong("router_jitter_noise", "positive");
  if (e.used != 2)
    fail(ErrorCode::kUnsupported,
         "{}: Phi-3.5-MoE with {} experts per token is not supported, only 2", f.where(), e.used);
}

void read_experts(const Fields& f, const Family& family, ModelConfig& c) {
  if (!family.experts || f.text({"model_type"}, "") == "youtu") return;
  if (c.architecture == "granitehybrid" && f.integer({"num_local_experts"}, 8) == 0) return;
  if (c.architecture == "gemma4" && !f.boolean("enable_moe_block", false)) return;
  if (c.architecture == "jamba" && f.integer({"num_experts"}, 16) <= 1) return;
  ExpertConfig& e = c.experts;
  e.beside_mlp = c.architecture == "gemma4";
  e.count = f.required({"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"});
  e.used = f.uniform(
      {"num_experts_per_tok", "experts_per_token", "moe_k", "moe_topk", "top_k_experts"}, 0);
  e.ffn = f.uniform({"moe_intermediate_size", "expert_intermediate_size"}, c.ffn);
  e.sigmoid = e.score_bias = family.sigmoid_experts;
  // Qwen3's default is not the value of its models.
  if (c.architecture == "gpt-oss") e.clamp = f.number({"swiglu_limit"}, 7);
  e.normalize =
      c.architecture == "mixtral" || c.architecture == "gpt-oss" ||
      c.architecture == "hunyuan-moe" || e.beside_mlp ||
      f.boolean("norm_topk_prob", family.normalize_experts && c.architecture != "qwen3moe");
  e.scale =
      f.number({"routed_scaling_factor", "route_scale"}, c.architecture == "exaone-moe" ? 2.5 : 1);
  if (c.architecture == "phimoe") read_mixer(f, e);
  if (c.architecture == "ernie4_5-moe") {
    e.score_bias = true;
    e.shared_ffn = f.integer({"moe_num_shared_experts"}, 2) * e.ffn;
  } else if (c.architecture == "hunyuan-moe") {
    e.shared_ffn = c.ffn * f.uniform({"num_shared_expert"}, 1);
  } else if (c.architecture == "nemotron_h_moe") {
    e.shared_ffn = f.integer({"moe_shared_expert_intermediate_size"}, 7688);
    if (f.find({"moe_latent_size"}))
      fail(ErrorCode::kUnsupported,
           "{}: experts of a smaller vector (moe_latent_size) are not supported", f.where());
  } else if (c.architecture.starts_with("granite")) {
    bool shared = f.text({"model_type"}, "") != "granitemoe";
    e.shared_ffn = f.integer({"shared_intermediate_size"}, shared ? 1024 : 0);
  } else if (c.architecture == "qwen2moe" || family.gated_delta) {
    e.shared_ffn = f.integer({"shared_expert_intermediate_size"}, family.gated_delta ? 512 : 5632);
    e.shared_gate = e.shared_ffn > 0;
  } else {
    int64_t usual = c.architecture == "afmoe" ? 2 : c.architecture == "exaone-moe" ? 1 : 0;
    e.shared_ffn = f.integer({"n_shared_experts", "num_shared_experts"}, usual) * e.ffn;
    e.shared_ffn = f.integer({"moe_shared_expert_intermediate_size"}, e.shared_ffn);
  }
  if (c.architecture == "lfm2moe") e.score_bias = f.boolean("use_expert_bias", true);
  e.groups = f.integer({"n_group"}, 1);
  e.used_groups = f.integer({"topk_group"}, 1);
  if (c.architecture == "deepseek2") {
    bool v3 = f.text({"model_type"}, "") != "deepseek_v2";
    e.sigmoid = e.score_bias = f.text({"scoring_func"}, v3 ? "sigmoid" : "softmax") == "sigmoid";
    e.normalize = v3 && f.boolean("norm_topk_prob", true);
    if (f.text({"topk_method"}, v3 ? "noaux_tc" : "greedy") == "greedy") e.groups = 1;
    if (e.groups == 1) e.used_groups = 1;
  }
  if (e.count <= 0) f.wrong("num_experts", "positive");
  e.layers = expert_layers(f, c);
}

// Chunks, queries that grow with the context, and the sizes of experts and of layers without them.
void read_llama4(const Fields& f, ModelConfig& c) {
  if (c.architecture != "llama4") return;
  ExpertConfig& e = c.experts;
  e.score_bias = false;
  e.shared_ffn = e.ffn = c.ffn;
  c.ffn = f.integer({"intermediate_size_mlp"}, 16384);
  if (e.used != 1)
    fail(ErrorCode::kUnsupported, "{}: Llama 4 with {} experts per token is not supported, only 1",
         f.where(), e.used);
  c.unit_qk = f.boolean("use_qk_norm", true);
  if (c.rope.scaling == RopeConfig::Scaling::kYarn ||
      c.rope.scaling == RopeConfig::Scaling::kLongRope)
    fail(ErrorCode::kUnsupported, "{}: Llama 4 with {} is not supported", f.where(),
         "rotations that change lengths (yarn, longrope)");
  const Value* tuned = f.find({"attn_temperature_tuning"});  // some files have a number
  if (!tuned || (tuned->is_bool() ? tuned->as_bool() : tuned->is_int() && tuned->as_int() != 0)) {
    c.temperature_scale = f.number({"attn_scale"}, static_cast<double>(0.1F));
    c.temperature_length = f.whole("floor_scale", f.number({"floor_scale"}, 8192));
  }
  int64_t chunk = f.is_null("attention_chunk_size") ? 0 : f.integer({"attention_chunk_size"}, 8192);
  std::vector<bool> chunks = c.layer_rotates;
  const auto types = f.layer_types(c.layers, {"chunked_attention", "full_attention"});
  for (size_t i = 0; i < types.size(); ++i) chunks[i] = types[i] == "chunked_attention";
  if (chunk == 0 || std::find(chunks.begin(), chunks.end(), true) == chunks.end()) return;
  c.sliding_window = chunk;
  c.layer_slides = std::move(chunks);
}

}  // namespace

void read_variants(const Fields& fields, const Family& family, ModelConfig& config) {
  check_fixed(fields, config);
  read_scales(fields, config);
  read_unrotated(fields, config);
  read_alibi(fields, family, config);
  read_parallel(fields, config);
  read_experts(fields, family, config);
  read_llama4(fields, config);
}

}  // namespace tokamak
