#include "compile/import/hf_config.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "base/error.h"
#include "compile/import/families.h"
#include "compile/import/hf_fields.h"
#include "compile/import/hf_weights.h"
#include "compile/import/quantized.h"
#include "tensor/block_formats.h"

namespace tokamak {
namespace {

Activation activation_named(const Fields& f, const std::string& name) {
  if (name == "silu" || name == "swish") return Activation::kSilu;
  for (const char* tanh_form :
       {"gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_accurate", "gelu_python_tanh"})
    if (name == tanh_form) return Activation::kGeluTanh;
  if (name == "gelu" || name == "gelu_python") return Activation::kGeluErf;
  if (name == "relu") return Activation::kRelu;
  if (name == "relu2") return Activation::kRelu2;
  if (name == "xielu" && f.text({"model_type"}, "") == "apertus") return Activation::kXielu;
  fail(ErrorCode::kUnsupported, "{}: activation {} is not supported", f.where(), name);
}

void read_window(const Fields& f, ModelConfig& c) {
  if (c.chunked) return;  // read_variants() does it
  const Usual& usual = usual_of(c);
  bool qwen = c.architecture.starts_with("qwen"), gemma3 = c.architecture == "gemma3";
  // The windows of these are off unless given.
  bool has_windows = usual.window > 0;
  for (const char* name : {"phi3", "phimoe", "mixtral", "starcoder2"})
    has_windows = has_windows || c.architecture == name;
  if (f.text({"model_type"}, "") == "olmo2") has_windows = false;  // OLMo 3 has them
  if (!has_windows || f.is_null("sliding_window") ||
      (qwen && !f.boolean("use_sliding_window", false)))
    return;
  int64_t window = f.integer({"sliding_window"}, usual.window);
  if (window <= 0) return;
  std::vector<bool> slides;
  std::vector<std::string> types;
  if (usual.window > 0) types = f.layer_types(c.layers, {"sliding_attention", "full_attention"});
  for (const std::string& type : types) slides.push_back(type == "sliding_attention");
  if (types.empty()) {
    // Every n-th layer has full attention; Qwen slides from a given layer on; the others always
    // slide.
    bool fourth = c.architecture == "cohere2" || c.architecture.starts_with("exaone") ||
                  c.architecture == "olmo2" || c.architecture == "afmoe";
    int64_t period = gemma3 || fourth
                         ? f.integer({"sliding_window_pattern", "_sliding_window_pattern",
                                      "global_attn_every_n_layers"},
                                     gemma3 ? 6 : 4)
                     : c.architecture == "gemma2" || c.architecture == "gpt-oss" ? 2
                                                                                 : 0;
    bool dots = c.architecture == "dots1";
    int64_t first = qwen || dots ? f.integer({"max_window_layers"}, dots ? 62 : 28) : 0;
    if (period < 0 || (period == 0 && (gemma3 || fourth)))
      f.wrong("sliding_window_pattern", "a positive number");
    for (int64_t i = 0; i < c.layers; ++i)
      slides.push_back(c.architecture == "cwm"       ? i % 4 != 0
                       : c.architecture == "gemma3n" ? i % 5 != 0
                       : c.architecture == "gemma4"  ? (i + 1) % 6 != 0
                       : period > 0                  ? (i + 1) % period != 0
                                                     : i >= first);
  }
  if (c.architecture == "gemma4") slides.back() = false;  // whatever the file says
  for (bool s : slides)
    if (s) c.sliding_window = window;
  if (c.sliding_window > 0) c.layer_slides = std::move(slides);
}

// By how many standard deviations a normal number exceeds the mean with the probability 1 - share.
double normal_quantile(double share) {
  double low = -40, high = 40;
  for (int i = 0; i < 100; ++i) {
    double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::numbers::sqrt2) < share ? low : high) = middle;
  }
  return static_cast<double>(static_cast<float>(low));
}

void read_gemma3n(const Fields& f, ModelConfig& c) {
  AltUpConfig& a = c.altup;
  a.copies = f.integer({"altup_num_inputs"}, 4);
  a.active = f.integer({"altup_active_idx"}, 0);
  a.width = f.integer({"hidden_size_per_layer_input"}, 256);
  a.vocab = f.integer({"vocab_size_per_layer_input"}, 262144);
  a.rank = f.integer({"laurel_rank"}, 64);
  c.shared_kv_layers = f.integer({"num_kv_shared_layers"}, 15);
  if (c.shared_kv_layers == c.layers) c.shared_kv_layers = 0;
  c.attention_scale = 1;
  c.final_softcap =
      f.is_null("final_logit_softcapping") ? 0 : f.number({"final_logit_softcapping"}, 30);
  if (!f.boolean("altup_correct_scale", true))
    fail(ErrorCode::kUnsupported, "{}: altup_correct_scale = false is not supported", f.where());
  const char* key = "activation_sparsity_pattern";
  bool none = f.is_null(key);
  std::vector<double> shares = f.numbers(key);
  if (shares.empty() && !none) f.wrong(key, "a list with one number per layer");
  if (none) shares.assign(static_cast<size_t>(c.layers), 0.0);
  for (double share : shares) {
    if (!(share >= 0 && share < 1)) f.wrong(key, "a list of numbers from 0 to 1");
    a.sparsity.push_back(share > 0 ? normal_quantile(share) : -INFINITY);
  }
}

// transformers writes the sizes of layers without a window as exceptions for single layers.
void read_gemma4_sizes(const Fields& f, ModelConfig& c) {
  c.full_head_dim = f.integer({"global_head_dim"}, 512);
  c.keys_are_values = f.boolean("attention_k_eq_v", false);
  if (c.keys_are_values) c.full_kv_heads = f.integer({"num_global_key_value_heads"}, 0);
  const char* key = "per_layer_config";
  const Value* layers = f.find({key});
  if (!layers) return;
  if (!layers->is_object()) f.wrong(key, "an object");
  bool first = true;
  for (const auto& [layer, own] : layers->as_object()) {
    if (!own.is_object()) f.wrong(key, "an object of objects");
    Fields fields(own, f.where());
    int64_t head = fields.integer({"head_dim"}, c.head_dim),
            heads = fields.integer({"num_key_value_heads"}, 0);
    if (!first && (head != c.full_head_dim || heads != c.full_kv_heads))
      fail(ErrorCode::kUnsupported, "{}: layers of more than two kinds are not supported",
           f.where());
    first = false;
    c.full_head_dim = head;
    c.full_kv_heads = heads;
  }
}

void read_gemma4(const Fields& f, ModelConfig& c) {
  bool unified = f.text({"model_type"}, "").starts_with("gemma4_unified");
  c.altup.width = unified ? 0 : f.integer({"hidden_size_per_layer_input"}, 256);
  c.altup.vocab = f.integer({"vocab_size_per_layer_input"}, 262144);
  c.shared_kv_layers = f.integer({"num_kv_shared_layers"}, 0);
  c.wide_shared_mlp = f.boolean("use_double_wide_mlp", false);
  c.layer_scales = true;
  c.attention_scale = 1;
  c.final_softcap = f.number({"final_logit_softcapping"}, 0);
}

void read_gemma(const Fields& f, ModelConfig& c) {
  if (c.architecture == "gemma3n") return read_gemma3n(f, c);
  if (c.architecture == "gemma4") return read_gemma4(f, c);
  if (c.architecture == "gemma") return;
  double scalar = f.number({"query_pre_attn_scalar"}, 256);
  if (!(scalar > 0)) f.wrong("query_pre_attn_scalar", "positive");
  if (scalar != static_cast<double>(c.head_dim)) c.attention_scale = 1 / std::sqrt(scalar);
  bool gemma2 = c.architecture == "gemma2";
  // null disables a cap; absent means the family's value. Gemma 3 has the first in its
  // configurations, but does not
  // use it.
  auto cap = [&](const char* name, double usual) {
    return f.is_null(name) ? 0.0 : f.number({name}, gemma2 ? usual : 0.0);
  };
  if (gemma2) c.attention_softcap = cap("attn_logit_softcapping", 50.0);
  c.final_softcap = cap("final_logit_softcapping", 30.0);
}

const Family& family_of(const Fields& f) {
  std::string type = f.text({"model_type"}, "");
  if (type.empty()) fail(ErrorCode::kCorrupt, "{}: config.json has no model_type", f.where());
  const Family* family = find_family_hf(type);
  if (type == "nemotron_h" && has_expert_layers(f)) family = find_family("nemotron_h_moe");
  if (!family)
    fail(ErrorCode::kUnsupported, "{}: model type {} is not supported{}{}; supported: {}",
         f.where(), type, missing_feature(type), similar_names(type), supported_architectures());
  if (int64_t n = f.integer({"num_local_experts", "num_experts", "n_routed_experts"}, 0);
      n > 1 && !family->experts && !family->alone)
    fail(ErrorCode::kUnsupported, "{}: {} with {} experts is not supported", f.where(), type, n);
  return *family;
}

// The head of a classifier is not the one that a decoder would be read with.
void check_file(const Value& json, std::string_view where) {
  if (!json.is_object()) fail(ErrorCode::kCorrupt, "{}: config.json is not an object", where);
  const Value* names = json.find("architectures");
  if (!names || !names->is_array()) return;
  for (const Value& name : names->as_array())
    for (const char* end : {"Classification", "QuestionAnswering", "RewardModel"})
      if (name.is_string() && name.as_string().ends_with(end))
        fail(
            ErrorCode::kUnsupported,
            "{}: {} is not supported: of decoders, only those that generate text or embeddings are",
            where, name.as_string());
}

// Models with a vision or audio part nest the language model's configuration.
const Value& text_part(const Value& json) {
  for (const char* name : {"thinker_config", "text_config", "llm_config", "language_config"})
    if (const Value* nested = json.find(name); nested && nested->is_object())
      return text_part(*nested);
  return json;
}

// Families with names of their own for the heads that share keys and values.
void read_shared_heads(const Fields& f, ModelConfig& c) {
  if (c.architecture == "falcon") {
    bool grouped = f.boolean("new_decoder_architecture", false);
    c.kv_heads = grouped ? f.integer({"num_kv_heads", "n_head_kv"}, c.heads)
                 : f.boolean("multi_query", true) ? 1
                                                  : c.heads;
  } else if (c.architecture == "gptj" || c.architecture == "codegen") {
    c.kv_heads = c.heads;
  } else if (c.architecture == "starcoder") {
    c.kv_heads = f.boolean("multi_query", true) ? 1 : c.heads;
  } else if (c.architecture == "chatglm") {
    bool shared = f.boolean("multi_query_attention", false);
    c.kv_heads = shared ? f.integer({"multi_query_group_num"}, 1) : c.heads;
    if (f.boolean("apply_residual_connection_post_layernorm", false) || !f.boolean("rmsnorm", true))
      fail(ErrorCode::kUnsupported, "{}: ChatGLM with other norms is not supported", f.where());
  } else if (c.architecture == "minicpm") {  // MiniCPM 4 attends to all tokens of short texts only
    if (const Value* sparse = f.find({"sparse_config"}); sparse && sparse->is_object())
      c.context = std::min(c.context, Fields(*sparse, f.where()).integer({"dense_len"}, 8192));
  } else if (c.architecture == "baichuan") {
    c.context = f.integer({"model_max_length", "max_position_embeddings"}, c.context);
  } else if (c.architecture == "qwen") {  // beyond it, positions and scores are scaled
    c.context = f.integer({"seq_length"}, c.context);
  }
}

void read_latent(const Fields& f, ModelConfig& c) {
  bool minicpm = c.architecture == "minicpm3";
  c.kv_heads = c.heads;
  c.latent = {f.required({"kv_lora_rank"}),
              f.integer({"q_lora_rank"}, 0),
              f.required({"qk_nope_head_dim"}),
              f.required({"qk_rope_head_dim"}),
              minicpm ? f.integer({"v_head_dim"}, c.hidden / c.heads) : f.required({"v_head_dim"}),
              !minicpm && f.boolean("rope_interleave", true)};
  c.head_dim = c.latent.nope + c.latent.rope;
  if (f.boolean("attention_bias", false))
    fail(ErrorCode::kUnsupported, "{}: latent attention with biases is not supported", f.where());
}

void read_sizes(const Fields& f, const Family& family, ModelConfig& c) {
  const Usual& usual = usual_of(c);
  bool gemma3 = c.architecture == "gemma3";  // folders with a vision part omit even these
  c.vocab = gemma3 ? f.integer({"vocab_size"}, 262208)
                   : f.required({c.architecture == "chatglm" ? "padded_vocab_size" : "vocab_size"});
  c.heads = gemma3 ? f.integer({"num_attention_heads"}, 8)
                   : f.required({"num_attention_heads", "n_head"});
  c.hidden = f.hidden_size({"hidden_size", "n_embd", "n_embed"});
  c.layers =
      family.alone ? count_layers(f) : f.required({"num_hidden_layers", "n_layer", "num_layers"});
  bool as_heads = usual.kv_heads == 0 || f.is_null("num_key_value_heads");
  c.kv_heads = f.integer({"num_key_value_heads"}, as_heads ? c.heads : usual.kv_heads);
  c.context =
      f.integer({"max_position_embeddings", "n_positions", "n_ctx", "seq_length"}, usual.context);
  if (c.heads <= 0) f.wrong("num_attention_heads", "positive");
  read_shared_heads(f, c);
  if (!family.latent && !f.find({"head_dim"}) && usual.head_dim == 0 && c.hidden % c.heads != 0)
    fail(ErrorCode::kCorrupt, "{}: the hidden size {} does not divide into {} heads", f.where(),
         c.hidden, c.heads);
  c.head_dim = f.integer({"head_dim", "kv_channels"},
                         usual.head_dim > 0 ? usual.head_dim : c.hidden / c.heads);
  if (family.latent) read_latent(f, c);
  if (c.architecture == "gemma4") read_gemma4_sizes(f, c);
  const Value* ffn = f.find({"intermediate_size"});
  if (ffn && ffn->is_array()) {  // one size per layer
    for (double size : f.numbers("intermediate_size")) {
      if (c.ffn != 0 && size != static_cast<double>(c.ffn))
        fail(ErrorCode::kUnsupported, "{}: intermediate_size differs from layer to layer",
             f.where());
      c.ffn = f.whole("intermediate_size", size);
    }
    return;
  }
  if (c.architecture.starts_with("lfm2") || c.architecture == "granitehybrid") {
    c.ffn = hybrid_ffn(f, c);
    return;
  }
  if (c.architecture == "qwen") {  // the file counts gate and up
    c.ffn = f.required({"intermediate_size"}) / 2;
    return;
  }
  if (family.experts && !ffn && f.find({"moe_intermediate_size"}))  // no layer is without experts
    c.ffn = f.integer({"moe_intermediate_size"}, 0);
  else
    c.ffn = family.conv1d || c.architecture == "gptj" || c.architecture == "codegen" ||
                    c.architecture == "starcoder" || c.architecture == "bloom"
                ? f.integer({"n_inner"}, 4 * c.hidden)
            : c.architecture == "falcon"
                ? f.integer({"ffn_hidden_size"}, 4 * c.hidden)
                : f.required({"intermediate_size", "ffn_dim", "ffn_hidden_size"});
}

void read_gpt2(const Fields& f, ModelConfig& c) {
  if (f.boolean("add_cross_attention", false))
    fail(ErrorCode::kUnsupported, "{}: add_cross_attention is not supported", f.where());
  if (!f.boolean("scale_attn_weights", true)) c.attention_scale = 1;
  c.scale_by_layer = f.boolean("scale_attn_by_inverse_layer_idx", false);
}

void read_opt(const Fields& f, const ModelConfig& c) {
  if (!f.boolean("do_layer_norm_before", true) || f.boolean("_remove_final_layer_norm", false) ||
      f.integer({"word_embed_proj_dim"}, c.hidden) != c.hidden)
    fail(ErrorCode::kUnsupported,
         "{}: OPT with norms after the blocks or with projected embeddings (OPT-350M) is not "
         "supported",
         f.where());
}

// GPT-2 and Gemma use their own names; Gemma's first configurations say "gelu" in hidden_act and
// mean the tanh form.
void read_activation(const Fields& f, ModelConfig& c) {
  if (c.architecture == "jais") return;  // read_jais() does it
  const Value* act =
      !c.architecture.starts_with("gemma")
          ? f.find({"hidden_act", "activation_function", "activation", "mlp_hidden_act"})
          : f.find({"hidden_activation"});
  if (act) c.activation = activation_named(f, act->is_string() ? act->as_string() : "?");
  if (!act && c.architecture == "bitnet") c.activation = Activation::kRelu2;  // GGUF: SiLU
}

constexpr size_t kCompared = 1 << 20;  // bytes that tell two tensors apart

// The head belongs to the whole model, whose field comes before that of its text part.
void read_tied(const Fields& f, const Fields& whole, const Family& family,
               const QuantizedWeights& quantized, const WeightSource& weights,
               const std::string& prefix, ModelConfig& c) {
  std::string head = hf_tensor_name(family, prefix, {-1, "output", "weight", {}});
  bool has_head = weights.find(head) || quantized.quantized(head.substr(0, head.rfind('.')));
  bool usual = family.tied || !has_head;
  const char* tie = f.find({"tie_embedding"}) ? "tie_embedding" : "tie_word_embeddings";  // LFM2
  c.tied_embeddings = f.boolean(tie, usual);
  if (whole.find({tie}) && (has_head || whole.boolean(tie, false)))
    c.tied_embeddings = whole.boolean(tie, usual);
  // A head of its own values is used whatever the file says, as in transformers.
  const TensorView* own = weights.find(head);
  const TensorView* table =
      weights.find(hf_tensor_name(family, prefix, {-1, "token_embd", "weight", {}}));
  if (c.tied_embeddings && own && table && own->dtype == table->dtype &&
      own->bytes.size() == table->bytes.size())
    c.tied_embeddings = std::memcmp(own->bytes.data(), table->bytes.data(),
                                    std::min(own->bytes.size(), kCompared)) == 0;
}

// Gemma 4 may do so among the parts of an image only.
bool sees_later_tokens(const Fields& f) {
  const char* key = "use_bidirectional_attention";
  const Value* v = f.find({key});
  bool both = v && v->is_string() ? v->as_string() != "vision" : f.boolean(key, false);
  return both || !f.boolean("is_causal", true);
}

// The parameters of Apertus' activation are tensors of one number.
void read_xielu(const WeightSource& weights, const std::string& prefix, std::string_view where,
                ModelConfig& c) {
  auto value = [&](int64_t layer, const char* name, double usual) {
    std::string tensor = fmt::format("{}layers.{}.mlp.act_fn.{}", prefix, layer, name);
    const TensorView* t = weights.find(tensor);
    if (!t && usual != 0) return usual;
    if (!t || t->elements() != 1 || !dtype_info(t->dtype).is_float || is_block_type(t->dtype))
      fail(ErrorCode::kCorrupt, "{}: tensor {} is {}", where, tensor,
           t ? "not one number" : "missing");
    float x = 0;
    decode_row(t->dtype, t->bytes.data(), &x, 1);
    return static_cast<double>(x);
  };
  for (int64_t l = 0; l < c.layers; ++l)
    c.xielu.push_back(
        xielu_of(value(l, "alpha_p", 0), value(l, "alpha_n", 0), value(l, "beta", 0.5)));
}

// Parts that some models of a family have: their tensors tell.
void read_parts(const Fields& f, const Family& family, const WeightSource& weights,
                const std::string& prefix, ModelConfig& c) {
  auto has = [&](const char* stem) {
    return weights.find(hf_tensor_name(family, prefix, {0, stem, "bias", {}})) != nullptr;
  };
  c.output_bias = !c.tied_embeddings && has("output");
  if (c.architecture == "glm4moe") c.qk_norm = f.boolean("use_qk_norm", false);
  for (const auto& [key, stem] : {std::pair("attention_bias", "attn_q"), {"mlp_bias", "ffn_up"}})
    if (c.architecture == "llama" && f.boolean(key, false) && !has(stem))
      fail(ErrorCode::kCorrupt, "{}: config.json says {}, but tensor {} is missing", f.where(), key,
           hf_tensor_name(family, prefix, {0, stem, "bias", {}}));
  c.qkv_bias = has("attn_q");
  c.o_bias = has("attn_output");
  c.mlp_bias = has("ffn_up");
  c.shared_kv_weights = weights.find(hf_tensor_name(
                            family, prefix, {c.layers - 1, "attn_k", "weight", {}})) != nullptr;
}

// BitNet. transformers rounds nothing where config.json does not ask for it.
void read_rounding(const QuantizedWeights& quantized, std::string_view where, ModelConfig& c) {
  c.round_inputs = quantized.rounds_inputs();
  const bool plain = c.experts.count == 0 && c.recurrent.heads == 0 && c.latent.rank == 0;
  if (c.round_inputs && (!plain || find_family(c.architecture)->experts))
    fail(ErrorCode::kUnsupported, "{}: BitNet is supported for plain decoders only", where);
}

}  // namespace

ModelConfig config_from_hf(const Value& config_json, const WeightSource& weights,
                           std::string_view where) {
  check_file(config_json, where);
  const Value json = with_usual_names(text_part(config_json), where);
  QuantizedWeights quantized({&config_json, &json}, weights, where);
  Fields f(json, where);
  const Family& family = family_of(f);
  ModelConfig c;
  c.name = f.text({"_name_or_path"}, "");
  c.architecture = family.architecture;
  if (family.recurrent)
    read_recurrent(f, c);
  else
    read_sizes(f, family, c);
  if (c.layers <= 0 || c.layers > static_cast<int64_t>(weights.names().size()))
    fail(ErrorCode::kCorrupt, "{}: {} layers are not possible in a model of {} tensors", where,
         c.layers, weights.names().size());
  if (family.gated_delta) read_gated_delta(f, c);
  if (family.hybrid) read_hybrid(f, c);
  apply_family(family, c);
  read_rounding(quantized, where, c);
  c.norm_eps = f.number({"rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon",
                         "norm_eps", "layernorm_epsilon"},
                        usual_of(c).eps);
  read_activation(f, c);
  if (sees_later_tokens(f)) {
    if (c.architecture != "gemma3")
      fail(ErrorCode::kUnsupported, "{}: bidirectional attention is not supported", where);
    c.embedding.encoder = true;  // EmbeddingGemma
    c.embedding.pooling = Pooling::kMean;
  }
  check_config(c, where);
  if (family.rotary)
    read_rope(f, usual_of(c).theta, c);
  else if (family.conv1d || c.architecture == "starcoder")
    read_gpt2(f, c);
  else if (c.architecture == "gptneo")
    c.attention_scale = 1;
  else if (!family.recurrent && !family.alibi)
    read_opt(f, c);
  read_window(f, c);
  if (c.embedding.encoder) c.sliding_window /= 2;  // on both sides
  read_variants(f, family, c);
  if (c.architecture.starts_with("gemma")) read_gemma(f, c);
  std::string prefix = hf_prefix(weights, family, where);
  read_tied(f, Fields(config_json, where), family, quantized, weights, prefix, c);
  read_parts(f, family, weights, prefix, c);
  if (c.activation == Activation::kXielu) read_xielu(weights, prefix, where, c);
  check_config(c, where);
  map_hf_weights(weights, quantized, family, where, c);
  return c;
}

}  // namespace tokamak
