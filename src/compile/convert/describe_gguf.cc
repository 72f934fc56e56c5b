// GGUF metadata of a configuration. gguf_config.cc reads what this writes.
#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "compile/convert/describe.h"
#include "compile/import/families.h"
#include "compile/import/gguf_config.h"
#include "compile/models/rope.h"

namespace tokamak {
namespace {

// Keys of one architecture.
class KeyWriter {
 public:
  KeyWriter(GgufWriter& writer, std::string prefix) : out_(writer), prefix_(std::move(prefix)) {}
  void integer(std::string_view key, int64_t value) {
    out_.set_u32(full(key), static_cast<uint32_t>(value));
  }
  void number(std::string_view key, double value) {
    out_.set_f32(full(key), static_cast<float>(value));
  }
  void text(std::string_view key, std::string_view value) { out_.set_string(full(key), value); }
  void boolean(std::string_view key, bool value) { out_.set_bool(full(key), value); }
  void booleans(std::string_view key, const std::vector<bool>& v) { out_.set_bools(full(key), v); }
  void integers(std::string_view key, const std::vector<int32_t>& v) {
    out_.set_i32s(full(key), v);
  }
  void numbers(std::string_view key, const std::vector<double>& v) {
    out_.set_floats(full(key), std::vector<float>(v.begin(), v.end()));
  }

 private:
  std::string full(std::string_view key) const { return fmt::format("{}.{}", prefix_, key); }
  GgufWriter& out_;
  std::string prefix_;
};

void add_factors(GgufWriter& out, const char* name, const std::vector<double>& values) {
  std::vector<float> rounded(values.begin(), values.end());
  out.add_f32(name, {static_cast<int64_t>(rounded.size())}, rounded);
}

void write_rope(const ModelConfig& c, KeyWriter& keys, GgufWriter& out) {
  using Scaling = RopeConfig::Scaling;
  const RopeConfig& r = c.rope;
  keys.integer("rope.dimension_count", r.dims);
  keys.number("rope.freq_base", r.theta);
  if (c.rope_local.dims > 0) keys.number("rope.freq_base_swa", c.rope_local.theta);
  if (!r.freq_divisors.empty()) add_factors(out, "rope_freqs.weight", r.freq_divisors);
  switch (r.scaling) {
    case Scaling::kNone:
      return;
    case Scaling::kLlama3:
      return add_factors(out, "rope_freqs.weight", llama3_divisors(r));
    case Scaling::kDynamic:
      fail(ErrorCode::kUnsupported,
           "GGUF has no key for dynamic rotary scaling; remove rope_scaling from config.json to "
           "convert the model without it");
    case Scaling::kLinear:
      keys.text("rope.scaling.type", "linear");
      keys.number("rope.scaling.factor", r.factor);
      return;
    case Scaling::kLongRope:
      add_factors(out, "rope_factors_long.weight", r.long_factor);
      add_factors(out, "rope_factors_short.weight", r.short_factor);
      keys.integer("rope.scaling.original_context_length", r.original_context);
      keys.number("rope.scaling.attn_factor", rope_table(r, r.original_context + 1).scale);
      return;
    case Scaling::kYarn:
      keys.text("rope.scaling.type", "yarn");
      keys.number("rope.scaling.factor", r.factor);
      keys.integer("rope.scaling.original_context_length", r.original_context);
      keys.number("rope.scaling.yarn_beta_fast", r.beta_fast);
      keys.number("rope.scaling.yarn_beta_slow", r.beta_slow);
      if (r.mscale_all_dim > 0)  // converters multiply by 0.1 for latent attention
        keys.number("rope.scaling.yarn_log_multiplier",
                    c.latent.rank > 0 ? 0.1 * r.mscale_all_dim : r.mscale_all_dim);
      if (r.attention_factor > 0) keys.number("rope.scaling.yarn_attn_factor", r.attention_factor);
      return;
  }
}

// llama.cpp asks for the parts of a head that images rotate by time, height and width; positions of
// texts are the same in all of them.
void write_sections(const ModelConfig& c, KeyWriter& keys) {
  if (c.architecture != "qwen2vl" && !c.architecture.starts_with("qwen3vl") &&
      !c.architecture.starts_with("qwen35"))
    return;
  auto half = static_cast<int32_t>(c.rope.dims / 2), third = half / 3;
  std::vector<int32_t> sections(c.rope_sections.begin(), c.rope_sections.end());
  if (sections.empty()) sections = {half - 2 * third, third, third};
  sections.resize(4);
  keys.integers("rope.dimension_sections", sections);
}

// Layers without attention have none.
void write_kv_heads(const ModelConfig& c, KeyWriter& keys) {
  std::vector<int32_t> list;
  for (int64_t i = 0; i < c.layers; ++i) {
    bool attends =
        !c.only_mlp(i) && (!c.recurrent.at(i) || c.recurrent.delta || c.recurrent.beside);
    list.push_back(attends ? static_cast<int32_t>(c.kv_heads_at(i)) : 0);
  }
  bool some = c.recurrent.heads > 0 && !c.recurrent.delta && !c.recurrent.beside;
  if (c.full_kv_heads > 0 || some)
    keys.integers("attention.head_count_kv", list);
  else
    keys.integer("attention.head_count_kv", c.kv_heads);
}

void write_attention(const ModelConfig& c, KeyWriter& keys) {
  keys.integer("attention.head_count", c.heads);
  keys.number(c.norm == NormKind::kRms ? "attention.layer_norm_rms_epsilon"
                                       : "attention.layer_norm_epsilon",
              c.norm_eps);
  if (c.architecture.starts_with("nemotron_h"))  // for a head that predicts further tokens
    keys.number("attention.layer_norm_epsilon", c.norm_eps);
  if (const LatentConfig& m = c.latent; m.rank > 0) {
    bool heads = c.architecture == "minicpm3";  // sizes of heads, not of the cache
    keys.integer("attention.head_count_kv", heads ? c.heads : 1);
    keys.integer("attention.kv_lora_rank", m.rank);
    if (m.q_rank > 0) keys.integer("attention.q_lora_rank", m.q_rank);
    keys.integer("attention.key_length", (heads ? m.nope : m.rank) + m.rope);
    keys.integer("attention.value_length", heads ? m.value : m.rank);
    if (!heads) keys.integer("attention.key_length_mla", m.nope + m.rope);
    if (!heads) keys.integer("attention.value_length_mla", m.value);
  } else {
    write_kv_heads(c, keys);
    int64_t head = c.full_head_dim > 0 ? c.full_head_dim : c.head_dim;
    keys.integer("attention.key_length", head);
    keys.integer("attention.value_length", head);
  }
  // Gemma 2 and Llama 4 have windows unless a key says otherwise.
  if (c.sliding_window > 0 || c.architecture == "gemma2" || c.architecture == "llama4")
    keys.integer("attention.sliding_window", (c.embedding.encoder ? 2 : 1) * c.sliding_window);
  if (c.temperature_scale != 0) {
    keys.number("attention.temperature_scale", c.temperature_scale);
    keys.integer("attention.temperature_length", c.temperature_length);
  }
  if (c.sliding_window == 0 || c.full_head_dim > 0) return;
  int64_t period = gguf_window_period(c.architecture);
  for (int64_t i = 0; i < c.layers; ++i)
    if (c.layer_slides[static_cast<size_t>(i)] != (period == 0 || i % period < period - 1))
      return keys.booleans("attention.sliding_window_pattern", c.layer_slides);
}

void write_experts(const ModelConfig& c, KeyWriter& keys) {
  const ExpertConfig& e = c.experts;
  if (e.count == 0) return;
  keys.integer("expert_count", e.count);
  keys.integer("expert_used_count", e.used);
  keys.integer("expert_feed_forward_length", e.ffn);
  if (e.shared_ffn > 0) {
    keys.integer("expert_shared_feed_forward_length", e.shared_ffn);
    if (e.shared_ffn % e.ffn == 0) keys.integer("expert_shared_count", e.shared_ffn / e.ffn);
  }
  keys.integer("expert_gating_func", e.sigmoid ? 2 : 1);
  keys.boolean("expert_weights_norm", e.normalize);
  keys.number("expert_weights_scale", e.scale);
  if (e.groups > 1) {
    keys.integer("expert_group_count", e.groups);
    keys.integer("expert_group_used_count", e.used_groups);
  }
  auto first = std::find(e.layers.begin(), e.layers.end(), true);
  bool spaced = c.architecture == "llama4" || c.architecture == "ernie4_5-moe";
  if (spaced)  // layers with experts are this far apart
    keys.integer("interleave_moe_layer_step",
                 c.architecture == "llama4" ? first - e.layers.begin() + 1 : 1);
  if (c.architecture != "llama4")
    keys.integer("leading_dense_block_count", first - e.layers.begin());
}

// One number, or one for each layer. Mamba-2 has no MLP.
void write_ffn(const ModelConfig& c, KeyWriter& keys) {
  const Family* family = find_family(c.architecture);
  std::vector<int32_t> list;
  for (int64_t i = 0; i < c.layers; ++i) {
    bool routed = c.experts.count > 0 && c.experts.layers[static_cast<size_t>(i)];
    int64_t size = c.alone && !c.only_mlp(i) ? 0 : c.alone && routed ? c.experts.ffn : c.ffn_at(i);
    list.push_back(static_cast<int32_t>(size));
  }
  if ((family && family->hybrid && c.alone) || c.wide_shared_mlp)
    keys.integers("feed_forward_length", list);
  else  // Qwen 1 counts gate and up
    keys.integer("feed_forward_length", c.architecture == "qwen" ? 2 * c.ffn : list[0]);
}

// Gemma 4.
void write_windowless(const ModelConfig& c, KeyWriter& keys) {
  if (c.full_head_dim == 0) return;
  keys.integer("attention.key_length_swa", c.head_dim);
  keys.integer("attention.value_length_swa", c.head_dim);
  keys.integer("rope.dimension_count_swa", c.rope_local.dims);
  std::vector<bool> slides = c.layer_slides;
  slides.resize(static_cast<size_t>(c.layers));
  keys.booleans("attention.sliding_window_pattern", slides);
  keys.integer("attention.shared_kv_layers", c.shared_kv_layers);
  keys.integer("embedding_length_per_layer_input", c.altup.width);
}

void write_recurrent(const ModelConfig& c, KeyWriter& keys) {
  const RecurrentConfig& r = c.recurrent;
  if (r.short_conv) return keys.integer("shortconv.l_cache", r.taps);
  if (r.step_low > 0 || r.step_high > 0)
    fail(ErrorCode::kUnsupported, "GGUF has no key for limits of time steps");
  keys.integer("ssm.conv_kernel", r.taps);
  keys.integer("ssm.inner_size", r.inner());
  keys.integer("ssm.state_size", r.state);
  keys.integer("ssm.time_step_rank", r.step_rank > 0 ? r.step_rank : r.heads);
  if (r.step_rank == 0) keys.integer("ssm.group_count", r.groups);
  if (c.architecture == "mamba") keys.boolean("ssm.dt_b_c_rms", r.unit_step_norms);
  if (r.delta) keys.booleans("attention.recurrent_layers", r.layers);
}

void write_altup(const ModelConfig& c, KeyWriter& keys) {
  const AltUpConfig& a = c.altup;
  if (a.copies == 0) return;
  keys.integer("altup.num_inputs", a.copies);
  keys.integer("altup.active_idx", a.active);
  keys.integer("embedding_length_per_layer_input", a.width);
  keys.integer("attention.shared_kv_layers", c.shared_kv_layers);
  keys.numbers("activation_sparsity_scale", a.sparsity);
}

void write_scales(const ModelConfig& c, KeyWriter& keys) {
  if (c.clip_qkv > 0) keys.number("attention.clamp_kqv", c.clip_qkv);
  if (c.architecture.starts_with("minicpm")) {
    keys.number("embedding_scale", c.embedding_scale);
    keys.number("residual_scale", c.residual_scale);
    keys.number("logit_scale", 1 / c.logit_scale);
  } else if (c.architecture.starts_with("granite")) {
    keys.number("embedding_scale", c.embedding_scale);
    keys.number("residual_scale", c.residual_scale);
    keys.number("attention.scale", c.attention_scale);
    keys.number("logit_scale", 1 / c.logit_scale);
  } else if (c.architecture == "command-r" || c.architecture == "cohere2") {
    keys.number("logit_scale", c.logit_scale);
  }
  if (!c.alibi.empty() && c.architecture != "bloom")
    keys.number("attention.max_alibi_bias",
                -std::log2(c.alibi[0]) * std::bit_floor(static_cast<uint64_t>(c.heads)));
  if (c.architecture == "gemma2") keys.number("attn_logit_softcapping", c.attention_softcap);
  if (c.architecture == "gemma2" || c.architecture.starts_with("gemma3") ||
      (c.architecture == "gemma4" && c.final_softcap > 0))
    keys.number("final_logit_softcapping", c.final_softcap);
}

// The files have what softplus is applied to, under keys without the architecture.
void write_xielu(const ModelConfig& c, GgufWriter& out) {
  auto raw = [](double x) { return static_cast<float>(std::log(std::expm1(x))); };
  std::vector<float> p, n, beta, eps;
  for (const XieluConfig& a : c.xielu) {
    p.push_back(raw(a.p));
    n.push_back(raw(a.n - a.beta));
    beta.push_back(static_cast<float>(a.beta));
    eps.push_back(-1e-6F);
  }
  out.set_floats("xielu.alpha_p", p);
  out.set_floats("xielu.alpha_n", n);
  out.set_floats("xielu.beta", beta);
  out.set_floats("xielu.eps", eps);
}

bool same_xielu(const std::vector<XieluConfig>& a, const std::vector<XieluConfig>& b) {
  auto near = [](double x, double y) { return std::fabs(x - y) <= 1e-6 * std::fabs(y); };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const auto& x, const auto& y) {
    return near(x.p, y.p) && near(x.n, y.n) && near(x.beta, y.beta);
  });
}

void write_encoder(const ModelConfig& c, KeyWriter& keys, GgufWriter& out) {
  keys.integer("attention.head_count", c.heads);
  keys.number("attention.layer_norm_epsilon", c.norm_eps);
  keys.boolean("attention.causal", false);
  if (c.rope.dims > 0) keys.number("rope.freq_base", c.rope.theta);
  constexpr int kMean = 1, kFirst = 2, kLast = 3, kScores = 4;  // as llama.cpp counts them
  int pooling = c.embedding.pooling == Pooling::kFirst  ? kFirst
                : c.embedding.pooling == Pooling::kLast ? kLast
                                                        : kMean;
  keys.integer("pooling_type", c.embedding.classifies() ? kScores : pooling);
  if (c.embedding.classifies())
    out.set_strings(fmt::format("{}.classifier.output_labels", gguf_encoder(c.architecture)),
                    c.embedding.labels);
  if (c.token_types > 0)
    out.set_u32("tokenizer.ggml.token_type_count", static_cast<uint32_t>(c.token_types));
}

}  // namespace

// RoBERTa and DistilBERT are BERT with other names, other numbers of positions or no segments.
std::string_view gguf_encoder(std::string_view architecture) {
  if (architecture == "nomic-bert") return "nomic-bert";
  bool bert = architecture == "bert" || architecture == "roberta" || architecture == "distilbert";
  return bert ? "bert" : "";
}

void describe_gguf(const ModelConfig& c, GgufWriter& out) {
  bool llama = c.architecture == "mistral" || c.architecture == "mixtral";
  bool embedder = c.embedding.encoder && c.architecture == "gemma3";
  std::string architecture = c.temperature_everywhere ? "mistral3"
                             : llama                  ? "llama"
                             : embedder               ? "gemma-embedding"
                             : c.embedding.encoder    ? std::string(gguf_encoder(c.architecture))
                                                      : c.architecture;
  out.set_string("general.architecture", architecture);
  out.set_string("general.type", "model");
  out.set_string("general.name", c.name);
  out.set_u32("general.quantization_version", 2);
  KeyWriter keys(out, architecture);
  keys.integer("block_count", c.layers);
  keys.integer("context_length", c.context);
  keys.integer("embedding_length", c.hidden);
  write_ffn(c, keys);
  keys.integer("vocab_size", c.vocab);
  if (c.embedding.encoder && !embedder) return write_encoder(c, keys, out);
  if (embedder) keys.integer("pooling_type", 1);
  for (size_t i = 0; embedder && i < c.dense.size(); ++i) {
    keys.integer(dense_stem(i) + "_feat_in", i == 0 ? c.hidden : c.dense[i - 1]);
    keys.integer(dense_stem(i) + "_feat_out", c.dense[i]);
  }
  if (c.recurrent.heads > 0) write_recurrent(c, keys);
  const Family* family = find_family(c.architecture);
  if (c.recurrent.heads == 0 || c.recurrent.delta || family->hybrid) {
    write_attention(c, keys);
  } else {  // readers ask for both
    keys.integer("attention.head_count", 0);
    keys.number("attention.layer_norm_rms_epsilon", c.norm_eps);
  }
  if (c.rope.dims > 0) write_rope(c, keys, out);
  write_sections(c, keys);
  write_experts(c, keys);
  write_altup(c, keys);
  write_windowless(c, keys);
  if (c.architecture == "granitehybrid")
    keys.boolean("rope.scaling.finetuned", c.layer_rotates.empty() || c.layer_rotates[0]);
  if (!c.xielu.empty()) write_xielu(c, out);
  write_scales(c, keys);
  if (c.architecture == "gptneox" || c.architecture == "stablelm")
    keys.boolean("use_parallel_residual", c.parallel);
  if (c.embedding.pooling == Pooling::kLast) keys.integer("pooling_type", 3);  // an embedder
}

namespace {

bool same_rope(const RopeConfig& a, const RopeConfig& b, int64_t context) {
  if (a.dims != b.dims) return false;
  if (a.dims == 0) return true;
  for (int64_t length : {context, int64_t{1}}) {
    RopeTable x = rope_table(a, length), y = rope_table(b, length);
    auto near = [](double p, double q) { return std::fabs(p - q) <= 1e-6 * std::fabs(q); };
    if (!near(x.scale, y.scale) ||
        !std::equal(x.inv_freq.begin(), x.inv_freq.end(), y.inv_freq.begin(), near))
      return false;
  }
  return true;
}

// Decays and their logarithms are the same.
bool same_recurrent(RecurrentConfig a, RecurrentConfig b, int64_t layers) {
  a.decay_log = b.decay_log;
  for (RecurrentConfig* r : {&a, &b})
    if (r->heads > 0) r->layers.resize(static_cast<size_t>(layers), r->layers.empty());
  return a == b;
}

// A GGUF file has embeddings of layers for all tokens (gguf_layout() fills them up).
bool same_altup(AltUpConfig a, const AltUpConfig& b) {
  a.vocab = b.vocab;
  for (size_t i = 0; i < a.sparsity.size() && i < b.sparsity.size(); ++i)
    if (std::fabs(a.sparsity[i] - b.sparsity[i]) < 1e-6) a.sparsity[i] = b.sparsity[i];
  return a == b;
}

bool same_flags(std::vector<bool> a, std::vector<bool> b, int64_t layers, bool usual) {
  a.resize(static_cast<size_t>(layers), usual);
  b.resize(static_cast<size_t>(layers), usual);
  return a == b;
}

bool same_kinds(const ModelConfig& a, const ModelConfig& b) {
  return a.full_head_dim == b.full_head_dim && a.full_kv_heads == b.full_kv_heads &&
         a.keys_are_values == b.keys_are_values && a.wide_shared_mlp == b.wide_shared_mlp &&
         a.layer_scales == b.layer_scales && a.mlp_layers == b.mlp_layers;
}

bool same_experts(ExpertConfig a, const ExpertConfig& b) {
  auto near = [](double p, double q) { return std::fabs(p - q) <= 1e-6 * std::fabs(q); };
  if (near(a.scale, b.scale)) a.scale = b.scale;
  if (near(a.mixer, b.mixer)) a.mixer = b.mixer;
  return a == b;
}

bool same_norms(const ModelConfig& a, const ModelConfig& b) {
  return a.norm == b.norm && a.norm_bias == b.norm_bias && a.qk_norm == b.qk_norm &&
         a.wide_qk_norm == b.wide_qk_norm && a.unit_qk == b.unit_qk && a.pre_norms == b.pre_norms &&
         a.post_norms == b.post_norms && a.head_qk_norm == b.head_qk_norm &&
         a.late_qk_norm == b.late_qk_norm && a.unit_norms == b.unit_norms &&
         a.embedding_norm == b.embedding_norm && a.sub_norms == b.sub_norms;
}

}  // namespace

std::string config_difference(const ModelConfig& a, const ModelConfig& b) {
  auto near = [](double p, double q) { return std::fabs(p - q) <= 1e-6 * std::fabs(q); };
  struct Row {
    const char* name;
    bool same;
  };
  auto scale = [](const ModelConfig& c) {
    return c.attention_scale > 0 ? c.attention_scale : std::pow(c.head_dim, -0.5);
  };
  const Row rows[] = {
      {"the sizes", a.vocab == b.vocab && a.hidden == b.hidden && a.ffn == b.ffn &&
                        a.layers == b.layers && a.heads == b.heads && a.kv_heads == b.kv_heads &&
                        a.head_dim == b.head_dim && a.context == b.context},
      {"the norms",
       near(a.norm_eps, b.norm_eps) && near(a.clip_qkv, b.clip_qkv) && same_norms(a, b)},
      {"the activation", a.activation == b.activation && a.round_inputs == b.round_inputs &&
                             a.gated_mlp == b.gated_mlp && same_xielu(a.xielu, b.xielu)},
      {"the biases", a.qkv_bias == b.qkv_bias && a.o_bias == b.o_bias && a.mlp_bias == b.mlp_bias &&
                         a.output_bias == b.output_bias},
      {"tied embeddings", a.tied_embeddings == b.tied_embeddings},
      {"a scale", near(a.embedding_scale, b.embedding_scale) &&
                      near(a.residual_scale, b.residual_scale) &&
                      near(a.logit_scale, b.logit_scale) && a.scale_by_layer == b.scale_by_layer},
      {"the scale of attention scores", near(scale(a), scale(b)) &&
                                            near(a.temperature_scale, b.temperature_scale) &&
                                            a.temperature_length == b.temperature_length &&
                                            a.temperature_everywhere == b.temperature_everywhere},
      {"the order of norms and parts", a.parallel == b.parallel && a.two_norms == b.two_norms},
      {"a soft-cap",
       near(a.attention_softcap, b.attention_softcap) && near(a.final_softcap, b.final_softcap)},
      {"the sliding window", a.sliding_window == b.sliding_window &&
                                 same_flags(a.layer_slides, b.layer_slides, a.layers, false)},
      {"the slopes of ALiBi",
       std::equal(a.alibi.begin(), a.alibi.end(), b.alibi.begin(), b.alibi.end(), near)},
      {"layers without positions", same_flags(a.layer_rotates, b.layer_rotates, a.layers, true)},
      {"the experts", same_experts(a.experts, b.experts)},
      {"latent attention", a.latent == b.latent},
      {"the kinds of layers", same_kinds(a, b)},
      {"the copies of the residual stream", same_altup(a.altup, b.altup)},
      {"layers that share keys and values", a.shared_kv_layers == b.shared_kv_layers},
      {"the recurrent layers", same_recurrent(a.recurrent, b.recurrent, a.layers)},
      {"the layers after the pooling", a.dense == b.dense && a.dense_tanh == b.dense_tanh},
      {"the pooling",
       !b.embedding.encoder || (a.embedding.encoder && a.embedding.pooling == b.embedding.pooling &&
                                a.embedding.labels == b.embedding.labels)},
      {"the parts of an encoder",
       a.token_types == b.token_types && a.learned_positions == b.learned_positions &&
           a.norm_first == b.norm_first &&
           (!b.embedding.classifies() || a.head_activation == b.head_activation)},
      {"the rotary positions",
       same_rope(a.rope, b.rope, a.context) && same_rope(a.rope_local, b.rope_local, a.context)},
  };
  for (const Row& row : rows)
    if (!row.same) return row.name;
  return "";
}

}  // namespace tokamak
