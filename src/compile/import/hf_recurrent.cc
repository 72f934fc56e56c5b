// Layers with a recurrent state in config.json: Mamba-2, linear attention, convolutions.
#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"
#include "compile/import/hf_fields.h"

namespace tokamak {
namespace {

void read_step_limit(const Fields& f, RecurrentConfig& r) {
  if (const Value* limit = f.find({"time_step_limit"})) {
    if (!limit->is_array() || limit->as_array().size() != 2 || !limit->as_array()[0].is_number())
      f.wrong("time_step_limit", "a list of two numbers");
    r.step_low = limit->as_array()[0].as_double();
    // "Infinity" is not a number of JSON: some files have it as a text or an object.
    const Value& high = limit->as_array()[1];
    if (high.is_number() && std::isfinite(high.as_double())) r.step_high = high.as_double();
  }
}

// What follows the convolution; some families have one key for it and for their MLPs.
void check_activation(const Fields& f, const char* key) {
  std::string name = f.text({key}, "silu");
  if (name != "silu" && name != "swish")
    fail(ErrorCode::kUnsupported, "{}: Mamba-2 with another activation than silu is not supported",
         f.where());
}

// The kind of each layer under any of the names that files have: "mamba", "attention", "conv",
// "mlp" or "moe".
std::vector<std::string> layer_kinds(const Fields& f, int64_t layers) {
  struct Name {
    std::string_view file, kind;
  };
  constexpr Name kNames[] = {{"mamba", "mamba"}, {"linear_attention", "mamba"},
                             {"M", "mamba"},     {"attention", "attention"},
                             {"*", "attention"}, {"full_attention", "attention"},
                             {"conv", "conv"},   {"mlp", "mlp"},
                             {"-", "mlp"},       {"moe", "moe"},
                             {"E", "moe"}};
  std::vector<std::string> out;
  auto add = [&](std::string_view name) {
    for (const Name& row : kNames)
      if (row.file == name) return out.emplace_back(row.kind), void();
    fail(ErrorCode::kUnsupported, "{}: layer type \"{}\" is not supported", f.where(), name);
  };
  const Value* list = f.find({"layer_types", "layers_block_type"});
  if (list && list->is_array()) {
    for (const Value& v : list->as_array()) add(v.is_string() ? v.as_string() : "?");
  } else if (const Value* pattern = f.find({"hybrid_override_pattern"})) {
    if (!pattern->is_string()) f.wrong("hybrid_override_pattern", "a string");
    for (char c : pattern->as_string()) add(std::string_view(&c, 1));
  } else if (const Value* indices = f.find({"full_attn_idxs"})) {
    out.assign(static_cast<size_t>(layers), "conv");
    if (!indices->is_array()) f.wrong("full_attn_idxs", "a list");
    for (const Value& v : indices->as_array())
      if (v.is_int() && v.as_int() >= 0 && v.as_int() < layers)
        out[static_cast<size_t>(v.as_int())] = "attention";
  } else {
    fail(ErrorCode::kCorrupt, "{}: config.json has no layer_types", f.where());
  }
  if (layers > 0 && std::ssize(out) != layers)
    f.wrong("layer_types", "a list with one entry per layer");
  return out;
}

}  // namespace

bool has_expert_layers(const Fields& f) {
  std::vector<std::string> kinds = layer_kinds(f, 0);
  return std::find(kinds.begin(), kinds.end(), "moe") != kinds.end();
}

bool is_expert_layer(const Fields& f, size_t layer) { return layer_kinds(f, 0)[layer] == "moe"; }

int64_t count_layers(const Fields& f) { return std::ssize(layer_kinds(f, 0)); }

// LFM2 may round the size; the dense part of Granite 4 is its shared expert.
int64_t hybrid_ffn(const Fields& f, const ModelConfig& c) {
  if (c.architecture == "granitehybrid") {
    bool dense = f.integer({"num_local_experts"}, 8) == 0;
    return dense ? f.integer({"shared_intermediate_size"}, 1024)
                 : f.required({"intermediate_size"});
  }
  int64_t n = f.required({"block_ff_dim", "intermediate_size"});
  if (n < 1 || n > 1 << 24) f.wrong("block_ff_dim", "an integer from 1 to 16777216");
  if (c.architecture == "lfm2moe" || !f.boolean("block_auto_adjust_ff_dim", true)) return n;
  n = 2 * n / 3;
  if (f.is_null("block_ffn_dim_multiplier")) return n;
  int64_t unit = f.integer({"block_multiple_of"}, 256);
  if (unit <= 0 || unit > 1 << 24) f.wrong("block_multiple_of", "an integer from 1 to 16777216");
  const char* key = "block_ffn_dim_multiplier";
  n = f.whole(key, f.number({key}, 1) * static_cast<double>(n));
  return (n + unit - 1) / unit * unit;
}

namespace {

// Channels of the state space: a multiple of the hidden size.
int64_t expanded(const Fields& f, const char* key, int64_t hidden) {
  double factor = f.number({key}, 2);
  if (!(factor > 0 && factor <= 64)) f.wrong(key, "a positive number, at most 64");
  return static_cast<int64_t>(factor * static_cast<double>(hidden));
}

// All layers have both; their parts have factors.
void read_falcon_h1(const Fields& f, ModelConfig& c) {
  RecurrentConfig& r = c.recurrent;
  r.beside = true;
  r.heads = f.integer({"mamba_n_heads"}, 128);
  if (r.heads <= 0) f.wrong("mamba_n_heads", "positive");
  int64_t inner = f.is_null("mamba_d_ssm") ? expanded(f, "mamba_expand", c.hidden)
                                           : f.integer({"mamba_d_ssm"}, 1024);
  r.head_dim = inner / r.heads;
  const Value* width = f.find({"mamba_d_head"});
  if (r.head_dim * r.heads != inner || (width && width->is_int() && width->as_int() != r.head_dim))
    f.wrong("mamba_d_head", "the width of the state space divided by its heads");
  r.groups = f.integer({"mamba_n_groups"}, 1);
  r.state = f.integer({"mamba_d_state"}, 256);
  r.taps = f.integer({"mamba_d_conv"}, 4);
  r.conv_bias = f.boolean("mamba_conv_bias", true);
  r.decay_log = true;
  check_activation(f, "hidden_act");
  r.norm_groups = f.boolean("mamba_rms_norm", false) ? r.groups : 0;
  r.gated_norm = !f.boolean("mamba_norm_before_gate", true);
  read_step_limit(f, r);
  if (f.boolean("mamba_proj_bias", false) || f.boolean("projectors_bias", false))
    fail(ErrorCode::kUnsupported, "{}: biases of matrices are not supported", f.where());
  auto list = [&](const char* key, size_t size) {
    std::vector<double> out = f.numbers(key);
    if (out.empty()) out.assign(size, 1.0);
    if (out.size() != size) f.wrong(key, fmt::format("a list of {} numbers", size));
    return out;
  };
  std::vector<double> ssm = list("ssm_multipliers", 5), mlp = list("mlp_multipliers", 2);
  c.block_scales = {.key = f.number({"key_multiplier"}, 1),
                    .attention_in = f.number({"attention_in_multiplier"}, 1),
                    .attention_out = f.number({"attention_out_multiplier"}, 1),
                    .gate = mlp[0],
                    .down = mlp[1],
                    .ssm_in = f.number({"ssm_in_multiplier"}, 1),
                    .ssm_out = f.number({"ssm_out_multiplier"}, 1),
                    .ssm_gate = ssm[0],
                    .ssm_x = ssm[1],
                    .ssm_b = ssm[2],
                    .ssm_c = ssm[3],
                    .ssm_step = ssm[4]};
  c.embedding_scale = f.number({"embedding_multiplier"}, 1);
  c.logit_scale = f.number({"lm_head_multiplier"}, 1);
}

// "auto": a sixteenth of the hidden size, rounded up.
int64_t step_rank(const Fields& f, const char* key, int64_t hidden) {
  const Value* v = f.find({key});
  return !v || v->is_string() ? (hidden + 15) / 16 : f.integer({key}, 0);
}

void read_channels(const Fields& f, ModelConfig& c, int64_t inner) {
  RecurrentConfig& r = c.recurrent;
  r.heads = inner;
  r.head_dim = r.groups = 1;
  r.decay_log = true;
  check_activation(f, "hidden_act");
}

// Mamba and Falcon-Mamba.
void read_mamba(const Fields& f, ModelConfig& c) {
  RecurrentConfig& r = c.recurrent;
  int64_t inner = f.integer({"intermediate_size"}, expanded(f, "expand", c.hidden));
  read_channels(f, c, inner);
  r.state = f.integer({"state_size"}, 16);
  r.taps = f.integer({"conv_kernel"}, 4);
  r.conv_bias = f.boolean("use_conv_bias", true);
  r.step_rank = step_rank(f, "time_step_rank", c.hidden);
  r.step_norms = r.unit_step_norms = f.text({"model_type"}, "") == "falcon_mamba";
  if (std::fabs(f.number({"mixer_rms_eps"}, 1e-6F) - 1e-6) > 1e-9) f.wrong("mixer_rms_eps", "1e-6");
  if (f.boolean("use_bias", false))
    fail(ErrorCode::kUnsupported, "{}: use_bias is not supported", f.where());
  c.heads = c.kv_heads = inner;
  c.head_dim = 1;
  c.ffn = inner;
}

// Every n-th layer attends; the others are Mamba's with norms.
void read_jamba(const Fields& f, ModelConfig& c) {
  RecurrentConfig& r = c.recurrent;
  int64_t period = f.integer({"attn_layer_period"}, 8),
          offset = f.integer({"attn_layer_offset"}, 4);
  if (period <= 0) f.wrong("attn_layer_period", "positive");
  for (int64_t i = 0; i < c.layers; ++i) r.layers.push_back(i % period != offset);
  read_channels(f, c, expanded(f, "mamba_expand", c.hidden));
  r.state = f.integer({"mamba_d_state"}, 16);
  r.taps = f.integer({"mamba_d_conv"}, 4);
  r.conv_bias = f.boolean("mamba_conv_bias", true);
  r.step_rank = step_rank(f, "mamba_dt_rank", c.hidden);
  r.step_norms = f.boolean("mamba_inner_layernorms", true);
  if (f.boolean("mamba_proj_bias", false))
    fail(ErrorCode::kUnsupported, "{}: biases of matrices are not supported", f.where());
}

}  // namespace

// Layers of Mamba-2 or of convolutions beside attention.
void read_hybrid(const Fields& f, ModelConfig& c) {
  if (c.architecture == "jamba") return read_jamba(f, c);
  if (c.architecture == "falcon-h1") return read_falcon_h1(f, c);
  RecurrentConfig& r = c.recurrent;
  bool nemotron = c.architecture.starts_with("nemotron_h"),
       conv = c.architecture.starts_with("lfm2");
  std::vector<std::string> kinds = layer_kinds(f, c.layers);
  for (const std::string& kind : kinds) {
    bool mlp = kind == "mlp" || kind == "moe";
    if ((mlp && !nemotron) || (kind == "conv") != (conv && kind != "attention"))
      fail(ErrorCode::kUnsupported, "{}: layer type \"{}\" is not supported", f.where(), kind);
    r.layers.push_back(kind == "mamba" || kind == "conv");
    if (nemotron) c.mlp_layers.push_back(mlp);
  }
  if (std::find(r.layers.begin(), r.layers.end(), true) == r.layers.end()) {
    r = {};
    return;
  }
  if (conv) {
    r.short_conv = true;
    r.heads = r.groups = 1;
    r.head_dim = c.hidden;
    r.taps = f.integer({"conv_L_cache"}, 3);
    r.conv_bias = false;
    if (f.boolean("conv_bias", false))
      fail(ErrorCode::kUnsupported, "{}: conv_bias is not supported", f.where());
    return;
  }
  check_activation(f, nemotron ? "mamba_hidden_act" : "hidden_act");
  r.heads = f.integer({"mamba_n_heads", "mamba_num_heads"}, 128);
  r.groups = f.integer({"mamba_n_groups", "n_groups"}, nemotron ? 8 : 1);
  r.state = f.integer({"mamba_d_state", "ssm_state_size"}, nemotron ? 128 : 256);
  r.taps = f.integer({"mamba_d_conv", "conv_kernel"}, 4);
  r.conv_bias = f.boolean(f.find({"mamba_conv_bias"}) ? "mamba_conv_bias" : "use_conv_bias", true);
  r.decay_log = true;
  const Value* width = f.find({"mamba_d_head", "mamba_head_dim"});
  bool derived = !nemotron && (!width || width->is_string());  // "auto"
  if (derived && r.heads > 0)
    r.head_dim = expanded(f, "mamba_expand", c.hidden) / r.heads;
  else
    r.head_dim = f.integer({"mamba_d_head", "mamba_head_dim"}, 64);
  r.norm_groups = r.groups;
  if (nemotron) {
    r.step_low = f.number({"time_step_min"}, 0.001);
  } else {
    read_step_limit(f, r);
  }
  if (f.boolean("mamba_proj_bias", false) || f.boolean("use_bias", false) ||
      (nemotron && f.boolean("mlp_bias", false)))
    fail(ErrorCode::kUnsupported, "{}: biases of matrices are not supported", f.where());
}

// Mamba-2 has no limit of positions; llama.cpp's converter writes this context too.
void read_recurrent(const Fields& f, ModelConfig& c) {
  RecurrentConfig& r = c.recurrent;
  c.vocab = f.required({"vocab_size"});
  c.hidden = f.hidden_size({"hidden_size", "d_model"});
  c.layers = f.required({"num_hidden_layers", "n_layer"});
  c.context = f.integer({"max_position_embeddings"}, 1 << 20);
  if (c.architecture == "mamba") return read_mamba(f, c);
  r.heads = f.required({"num_heads"});
  r.head_dim = f.required({"head_dim"});
  r.state = f.required({"state_size"});
  r.groups = f.integer({"n_groups"}, 8);
  r.taps = f.integer({"conv_kernel"}, 4);
  r.conv_bias = f.boolean("use_conv_bias", true);
  r.decay_log = true;
  read_step_limit(f, r);
  check_activation(f, "hidden_act");
  if (f.boolean("use_bias", false))
    fail(ErrorCode::kUnsupported, "{}: use_bias is not supported", f.where());
  if (!f.boolean("rms_norm", true))
    fail(ErrorCode::kUnsupported, "{}: Mamba-2 without a gated norm is not supported", f.where());
  c.heads = c.kv_heads = r.heads;
  c.head_dim = r.head_dim;
  c.ffn = r.inner();
}

// Linear attention beside attention (Qwen3-Next).
void read_gated_delta(const Fields& f, ModelConfig& c) {
  RecurrentConfig& r = c.recurrent;
  r.heads = f.integer({"linear_num_value_heads"}, 32);
  r.head_dim = f.integer({"linear_value_head_dim"}, 128);
  r.groups = f.integer({"linear_num_key_heads"}, 16);
  r.state = f.integer({"linear_key_head_dim"}, 128);
  r.taps = f.integer({"linear_conv_kernel_dim"}, 4);
  r.conv_bias = false;
  r.decay_log = r.delta = c.attention_gate = true;
  int64_t interval = f.integer({"full_attention_interval"}, 4);
  if (interval <= 0) f.wrong("full_attention_interval", "positive");
  const auto types = f.layer_types(c.layers, {"linear_attention", "full_attention"});
  for (int64_t i = 0; i < c.layers; ++i)
    r.layers.push_back(types.empty() ? (i + 1) % interval != 0
                                     : types[static_cast<size_t>(i)] == "linear_attention");
}

}  // namespace tokamak
