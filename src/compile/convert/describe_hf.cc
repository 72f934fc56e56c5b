// config.json of a configuration. hf_config.cc reads what this writes.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "compile/convert/describe.h"
#include "compile/import/families.h"
#include "compile/models/rope.h"

namespace tokamak {
namespace {

struct ClassName {
  std::string_view architecture, model_type, name;
};
constexpr ClassName kClasses[] = {
    {"llama", "llama", "LlamaForCausalLM"},
    {"mistral", "mistral", "MistralForCausalLM"},
    {"qwen2", "qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "qwen3", "Qwen3ForCausalLM"},
    {"gemma", "gemma", "GemmaForCausalLM"},
    {"gemma2", "gemma2", "Gemma2ForCausalLM"},
    {"gemma3", "gemma3_text", "Gemma3ForCausalLM"},
    {"phi3", "phi3", "Phi3ForCausalLM"},
    {"phi2", "phi", "PhiForCausalLM"},
    {"gpt2", "gpt2", "GPT2LMHeadModel"},
    {"starcoder2", "starcoder2", "Starcoder2ForCausalLM"},
    {"olmo2", "olmo2", "Olmo2ForCausalLM"},
    {"exaone", "exaone", "ExaoneForCausalLM"},
    {"exaone4", "exaone4", "Exaone4ForCausalLM"},
    {"granite", "granite", "GraniteForCausalLM"},
    {"smollm3", "smollm3", "SmolLM3ForCausalLM"},
    {"internlm2", "internlm2", "InternLM2ForCausalLM"},
    {"command-r", "cohere", "CohereForCausalLM"},
    {"cohere2", "cohere2", "Cohere2ForCausalLM"},
    {"glm4", "glm4", "Glm4ForCausalLM"},
    {"mixtral", "mixtral", "MixtralForCausalLM"},
    {"qwen2moe", "qwen2_moe", "Qwen2MoeForCausalLM"},
    {"qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM"},
    {"olmoe", "olmoe", "OlmoeForCausalLM"},
    {"gpt-oss", "gpt_oss", "GptOssForCausalLM"},
    {"glm4moe", "glm4_moe", "Glm4MoeForCausalLM"},
    {"llama4", "llama4_text", "Llama4ForCausalLM"},
    {"mamba2", "mamba2", "Mamba2ForCausalLM"},
    {"qwen3next", "qwen3_next", "Qwen3NextForCausalLM"},
    {"gemma3n", "gemma3n_text", "Gemma3nForCausalLM"},
};

ClassName class_of(const ModelConfig& c) {
  if (c.architecture == "deepseek2" && c.experts.count == 0)
    return {"deepseek2", "youtu", "YoutuForCausalLM"};
  if (c.architecture == "deepseek2" && !c.experts.sigmoid)
    return {"deepseek2", "deepseek_v2", "DeepseekV2ForCausalLM"};
  if (c.architecture == "deepseek2") return {"deepseek2", "deepseek_v3", "DeepseekV3ForCausalLM"};
  // GGUF has one name for both.
  bool mistral = c.architecture == "llama" && c.sliding_window > 0;
  for (const ClassName& row : kClasses)
    if (row.architecture == (mistral ? "mistral" : c.architecture)) return row;
  fail(ErrorCode::kUnsupported, "models of the family {} cannot be written as a folder",
       c.architecture);
}

const char* activation_name(Activation a) {
  switch (a) {
    case Activation::kGeluTanh:
      return "gelu_pytorch_tanh";
    case Activation::kGeluErf:
      return "gelu";
    case Activation::kRelu:
      return "relu";
    default:
      return "silu";
  }
}

Value numbers(const std::vector<double>& list) {
  return Value(Value::Array(list.begin(), list.end()));
}

// GGUF holds llama3 scaling as a list of divisors: find the parameters that give it. All published
// models use 1 and 4 for the ends of the ramp.
RopeConfig llama3_of(const RopeConfig& r) {
  RopeConfig found = r;
  found.scaling = RopeConfig::Scaling::kLlama3;
  found.freq_divisors = {};
  found.factor = *std::max_element(r.freq_divisors.begin(), r.freq_divisors.end());
  for (int64_t context = 16; context <= int64_t{1} << 24; context *= 2) {
    found.original_context = context;
    std::vector<double> divisors = llama3_divisors(found);
    if (std::equal(divisors.begin(), divisors.end(), r.freq_divisors.begin(),
                   [](double a, double b) { return std::fabs(a - b) <= 1e-5 * b; }))
      return found;
  }
  fail(ErrorCode::kUnsupported,
       "the rotary divisors (rope_freqs.weight) are not those of llama3 scaling, and config.json "
       "has no field for others");
}

void write_rope(const ModelConfig& c, Value& out) {
  using Scaling = RopeConfig::Scaling;
  RopeConfig r = c.rope.freq_divisors.empty() ? c.rope : llama3_of(c.rope);
  out.set("rope_theta", r.theta);
  if (c.rope_local.dims > 0) out.set("rope_local_base_freq", c.rope_local.theta);
  int64_t whole = c.latent.rank > 0 ? c.latent.rope : c.head_dim;
  if (r.dims != whole || c.recurrent.delta)
    out.set("partial_rotary_factor", static_cast<double>(r.dims) / static_cast<double>(whole));
  if (r.scaling == Scaling::kNone) return;
  Value s = Value::object();
  auto original = [&] { s.set("original_max_position_embeddings", r.original_context); };
  if (r.scaling == Scaling::kLinear) {
    s = Value::Object{{"rope_type", "linear"}, {"factor", r.factor}};
  } else if (r.scaling == Scaling::kDynamic) {
    s = Value::Object{{"rope_type", "dynamic"}, {"factor", r.factor}};
  } else if (r.scaling == Scaling::kLlama3) {
    s = Value::Object{{"rope_type", "llama3"},
                      {"factor", r.factor},
                      {"low_freq_factor", r.low_freq_factor},
                      {"high_freq_factor", r.high_freq_factor}};
    original();
  } else if (r.scaling == Scaling::kYarn) {
    s = Value::Object{{"rope_type", "yarn"},
                      {"factor", r.factor},
                      {"beta_fast", r.beta_fast},
                      {"beta_slow", r.beta_slow}};
    if (r.mscale > 0) s.set("mscale", r.mscale);
    if (r.mscale_all_dim > 0) s.set("mscale_all_dim", r.mscale_all_dim);
    if (r.attention_factor > 0) s.set("attention_factor", r.attention_factor);
    if (!r.yarn_truncate) s.set("truncate", false);
    original();
  } else {
    s = Value::Object{{"rope_type", "longrope"},
                      {"short_factor", numbers(r.short_factor)},
                      {"long_factor", numbers(r.long_factor)}};
    if (r.attention_factor > 0) s.set("attention_factor", r.attention_factor);
    out.set("original_max_position_embeddings", r.original_context);
  }
  if (c.architecture == "phi3") s.set("type", "longrope");
  out.set("rope_scaling", std::move(s));
}

void write_windows(const ModelConfig& c, Value& out) {
  if (c.architecture.starts_with("qwen")) out.set("use_sliding_window", c.sliding_window > 0);
  out.set("sliding_window", c.sliding_window > 0 ? Value(c.sliding_window) : Value());
  if (c.chunked) {
    out.set("attention_chunk_size", c.sliding_window > 0 ? Value(c.sliding_window) : Value());
    out.set("use_qk_norm", c.unit_qk);
    out.set("attn_temperature_tuning", c.temperature_scale != 0);
    if (c.temperature_scale != 0) {
      out.set("attn_scale", c.temperature_scale);
      out.set("floor_scale", c.temperature_length);
    }
  }
  if (c.architecture == "smollm3" || c.architecture == "llama4") {
    Value rotates = Value::array();
    for (int64_t i = 0; i < c.layers; ++i)
      rotates.push(c.layer_rotates.empty() || c.layer_rotates[static_cast<size_t>(i)] ? 1 : 0);
    out.set("no_rope_layers", std::move(rotates));
  }
  bool mixed =
      std::find(c.layer_slides.begin(), c.layer_slides.end(), false) != c.layer_slides.end();
  if (c.sliding_window == 0 || (!mixed && class_of(c).architecture == "mistral")) return;
  Value types = Value::array();
  const char* kind = c.chunked ? "chunked_attention" : "sliding_attention";
  for (bool slides : c.layer_slides) types.push(slides ? kind : "full_attention");
  out.set("layer_types", std::move(types));
}

void write_experts(const ModelConfig& c, Value& out) {
  const ExpertConfig& e = c.experts;
  if (e.count == 0) return;
  bool routed = c.architecture == "deepseek2" || c.architecture == "glm4moe";
  bool llama4 = c.architecture == "llama4";
  bool local = c.architecture == "mixtral" || c.architecture == "gpt-oss" || llama4;
  out.set(routed ? "n_routed_experts" : local ? "num_local_experts" : "num_experts", e.count);
  out.set("num_experts_per_tok", e.used);
  if (local || c.architecture == "olmoe") {
    out.set("intermediate_size", e.ffn);
  } else {
    out.set("moe_intermediate_size", e.ffn);
  }
  out.set("norm_topk_prob", e.normalize);
  if (c.architecture == "gpt-oss") out.set("swiglu_limit", e.clamp);
  if (c.architecture == "qwen2moe" || c.recurrent.delta) {
    out.set("shared_expert_intermediate_size", e.shared_ffn);
  } else if (e.shared_ffn > 0 && !llama4) {
    out.set("n_shared_experts", e.shared_ffn / e.ffn);
  }
  auto dense = std::find(e.layers.begin(), e.layers.end(), true) - e.layers.begin();
  if (routed) {
    out.set("routed_scaling_factor", e.scale);
    out.set("n_group", e.groups);
    out.set("topk_group", e.used_groups);
    out.set("first_k_dense_replace", int64_t{dense});
    bool grouped = e.groups > 1;
    if (c.architecture == "deepseek2") {
      out.set("scoring_func", e.sigmoid ? "sigmoid" : "softmax");
      out.set("topk_method", e.sigmoid ? "noaux_tc" : grouped ? "group_limited_greedy" : "greedy");
    }
    return;
  }
  Value listed = Value::array();  // those with experts of Llama 4, those without of others
  for (size_t i = 0; i < e.layers.size(); ++i)
    if (e.layers[i] == llama4) listed.push(static_cast<int64_t>(i));
  if (llama4) out.set("intermediate_size_mlp", c.ffn);
  if (listed.size() > 0) out.set(llama4 ? "moe_layers" : "mlp_only_layers", std::move(listed));
}

void write_variants(const ModelConfig& c, Value& out) {
  if (c.architecture == "granite") {
    out.set("embedding_multiplier", c.embedding_scale);
    out.set("residual_multiplier", c.residual_scale);
    out.set("attention_multiplier", c.attention_scale);
    out.set("logits_scaling", 1 / c.logit_scale);
  } else if (c.architecture == "command-r" || c.architecture == "cohere2") {
    out.set("logit_scale", c.logit_scale);
    out.set("use_qk_norm", false);
  } else if (c.architecture == "gemma2" || c.architecture == "gemma3") {
    double scale = c.attention_scale;
    out.set("query_pre_attn_scalar",
            scale > 0 ? 1 / (scale * scale) : static_cast<double>(c.head_dim));
    auto cap = [&](const char* name, double v) { out.set(name, v > 0 ? Value(v) : Value()); };
    cap("attn_logit_softcapping", c.attention_softcap);
    cap("final_logit_softcapping", c.final_softcap);
  } else if (c.architecture == "glm4moe") {
    out.set("use_qk_norm", c.qk_norm);
  } else if (c.architecture == "starcoder2") {
    out.set("use_bias", c.mlp_bias);
  }
  if (c.architecture == "llama") out.set("mlp_bias", c.mlp_bias);
  if (c.architecture != "gpt2") out.set("attention_bias", c.qkv_bias);
  if (const LatentConfig& m = c.latent; m.rank > 0) {
    out.set("attention_bias", false);
    out.set("kv_lora_rank", m.rank);
    out.set("q_lora_rank", m.q_rank > 0 ? Value(m.q_rank) : Value());
    out.set("qk_nope_head_dim", m.nope);
    out.set("qk_rope_head_dim", m.rope);
    out.set("v_head_dim", m.value);
    if (!m.interleaved) out.set("rope_interleave", false);
  }
}

void write_altup(const ModelConfig& c, Value& out) {
  const AltUpConfig& a = c.altup;
  if (a.copies == 0) return;
  out.set("altup_num_inputs", a.copies);
  out.set("altup_active_idx", a.active);
  out.set("hidden_size_per_layer_input", a.width);
  out.set("vocab_size_per_layer_input", a.vocab);
  out.set("laurel_rank", a.rank);
  out.set("num_kv_shared_layers", c.shared_kv_layers);
  out.set("final_logit_softcapping", c.final_softcap > 0 ? Value(c.final_softcap) : Value());
  std::vector<double> shares;  // of the gates that are zero
  for (double deviations : a.sparsity)
    shares.push_back(0.5 * std::erfc(-deviations / std::numbers::sqrt2));
  out.set("activation_sparsity_pattern", numbers(shares));
}

void write_linear_attention(const RecurrentConfig& r, Value& out) {
  if (!r.delta) return;
  out.set("linear_num_value_heads", r.heads);
  out.set("linear_value_head_dim", r.head_dim);
  out.set("linear_num_key_heads", r.groups);
  out.set("linear_key_head_dim", r.state);
  out.set("linear_conv_kernel_dim", r.taps);
  Value types = Value::array();
  for (bool linear : r.layers) types.push(linear ? "linear_attention" : "full_attention");
  out.set("layer_types", std::move(types));
}

// Mamba-2 and GPT-2 have names of their own.
Value mamba2_json(const ModelConfig& c) {
  const RecurrentConfig& r = c.recurrent;
  return Value::Object{{"hidden_size", c.hidden},
                       {"num_hidden_layers", c.layers},
                       {"max_position_embeddings", c.context},
                       {"num_heads", r.heads},
                       {"head_dim", r.head_dim},
                       {"state_size", r.state},
                       {"n_groups", r.groups},
                       {"conv_kernel", r.taps},
                       {"expand", static_cast<double>(r.inner()) / static_cast<double>(c.hidden)},
                       {"use_conv_bias", r.conv_bias},
                       {"use_bias", false},
                       {"rms_norm", true},
                       {"hidden_act", "silu"},
                       {"layer_norm_epsilon", c.norm_eps}};
}

Value gpt2_json(const ModelConfig& c) {
  return Value::Object{{"n_embd", c.hidden},
                       {"n_layer", c.layers},
                       {"n_head", c.heads},
                       {"n_positions", c.context},
                       {"n_ctx", c.context},
                       {"n_inner", c.ffn},
                       {"activation_function", "gelu_new"},
                       {"layer_norm_epsilon", c.norm_eps},
                       {"scale_attn_by_inverse_layer_idx", c.scale_by_layer}};
}

const char* epsilon_name(const ModelConfig& c) {
  if (c.norm == NormKind::kRms) return "rms_norm_eps";
  return c.architecture == "starcoder2" ? "norm_epsilon" : "layer_norm_eps";
}

}  // namespace

Value config_json(const ModelConfig& c, std::string_view dtype) {
  ClassName name = class_of(c);
  Value out = Value::Object{{"architectures", Value::Array{std::string(name.name)}},
                            {"model_type", std::string(name.model_type)},
                            {"torch_dtype", std::string(dtype)},
                            {"vocab_size", c.vocab},
                            {"tie_word_embeddings", c.tied_embeddings}};
  if (c.architecture == "gpt2" || c.architecture == "mamba2") {
    Value own = c.architecture == "gpt2" ? gpt2_json(c) : mamba2_json(c);
    for (const auto& [key, value] : own.as_object()) out.set(key, value);
    return out;
  }
  out.set("hidden_size", c.hidden);
  out.set("intermediate_size", c.ffn);
  out.set("num_hidden_layers", c.layers);
  out.set("num_attention_heads", c.heads);
  out.set("num_key_value_heads", c.kv_heads);
  if (c.latent.rank == 0) out.set("head_dim", c.head_dim);
  out.set("max_position_embeddings", c.context);
  out.set("hidden_act", activation_name(c.activation));
  if (c.architecture.starts_with("gemma"))
    out.set("hidden_activation", activation_name(c.activation));
  out.set(epsilon_name(c), c.norm_eps);
  write_rope(c, out);
  write_windows(c, out);
  write_experts(c, out);
  write_altup(c, out);
  write_linear_attention(c.recurrent, out);
  write_variants(c, out);
  return out;
}

}  // namespace tokamak
