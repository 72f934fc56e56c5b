#include "compile/import/encoder_config.h"

#include <set>
#include <span>

#include "base/error.h"
#include "compile/import/encoder_families.h"
#include "compile/import/families.h"
#include "compile/import/hf_fields.h"

namespace tokamak {
namespace {

Activation encoder_activation(const Fields& f, const std::string& name) {
  if (name == "gelu" || name == "gelu_python") return Activation::kGeluErf;
  for (const char* tanh_form : {"gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate"})
    if (name == tanh_form) return Activation::kGeluTanh;
  if (name == "silu" || name == "swish" || name == "swiglu") return Activation::kSilu;
  if (name == "relu") return Activation::kRelu;
  fail(ErrorCode::kUnsupported, "{}: activation {} is not supported", f.where(), name);
}

void apply_encoder(const EncoderFamily& family, ModelConfig& c) {
  c.architecture = family.architecture;
  c.norm = NormKind::kLayer;
  c.activation = family.gated && !family.norm_first ? Activation::kSilu : Activation::kGeluErf;
  c.gated_mlp = family.gated;
  c.learned_positions = family.learned_positions;
  c.norm_first = family.norm_first;
  c.head_activation = family.head_activation;
  c.embedding.encoder = true;
  c.embedding.pooling = Pooling::kMean;
}

// Local and global attention alternate in ModernBERT; the width in the file counts both sides.
void read_local_attention(const Fields& f, ModelConfig& c) {
  c.sliding_window = f.integer({"local_attention"}, 128) / 2;
  int64_t every = f.integer({"global_attn_every_n_layers"}, 3);
  if (every < 1) f.wrong("global_attn_every_n_layers", "positive");
  const auto types = f.layer_types(c.layers, {"sliding_attention", "full_attention"});
  for (int64_t i = 0; i < c.layers; ++i)
    c.layer_slides.push_back(types.empty() ? i % every != 0
                                           : types[static_cast<size_t>(i)] == "sliding_attention");
  // Newer files have the bases in rope_parameters, by type of layer.
  auto base = [&](const char* name, const char* type, double usual) {
    double theta = f.number({name}, usual);
    const Value* all = f.find({"rope_parameters"});
    const Value* own = all && all->is_object() ? all->find(type) : nullptr;
    return own && own->is_object() ? Fields(*own, f.where()).number({"rope_theta"}, theta) : theta;
  };
  c.rope.dims = c.rope_local.dims = c.head_dim;
  c.rope.theta = base("global_rope_theta", "full_attention", 160000.0);
  c.rope_local.theta = base("local_rope_theta", "sliding_attention", 10000.0);
}

void read_rotation(const Fields& f, ModelConfig& c) {
  if (f.number({"rotary_emb_fraction"}, 1.0) != 1.0 || f.find({"rotary_scaling_factor"}))
    fail(ErrorCode::kUnsupported, "{}: partial or scaled rotary positions are not supported",
         f.where());
  c.rope.dims = c.head_dim;
  c.rope.theta = f.number({"rotary_emb_base", "rope_theta"}, 10000.0);
}

// The names of a classifier's labels; empty: the model is not one.
std::vector<std::string> labels_of(const Fields& f, int64_t count) {
  std::vector<std::string> labels;
  for (int64_t i = 0; i < count; ++i) labels.push_back(fmt::format("LABEL_{}", i));
  const Value* names = f.find({"id2label"});
  if (!names || !names->is_object()) return labels;
  for (const auto& [key, name] : names->as_object())
    for (int64_t i = 0; i < count; ++i)
      if (key == std::to_string(i) && name.is_string())
        labels[static_cast<size_t>(i)] = name.as_string();
  return labels;
}

bool says_classifier(const Fields& f) {
  const Value* names = f.find({"architectures"});
  if (!names || !names->is_array()) return false;
  for (const Value& name : names->as_array())
    if (name.is_string() && name.as_string().ends_with("ForSequenceClassification")) return true;
  return false;
}

void read_sizes(const Fields& f, const EncoderFamily& family, ModelConfig& c) {
  c.hidden = f.required({"hidden_size", "dim", "n_embd"});
  if (c.hidden < 1 || c.hidden > (1 << 20)) f.wrong("hidden_size", "a size from 1 to 1048576");
  c.layers = f.required({"num_hidden_layers", "n_layers", "n_layer"});
  c.heads = c.kv_heads = f.required({"num_attention_heads", "n_heads", "n_head"});
  c.ffn = f.integer({"intermediate_size", "hidden_dim", "n_inner"}, 4 * c.hidden);
  c.context = f.integer({"max_position_embeddings", "n_positions"}, 512);
  if (family.padded_positions) {  // the first positions belong to padding
    int64_t padding = f.integer({"pad_token_id"}, 1);
    if (padding < 0 || padding > (1 << 20) || c.context < 0)
      f.wrong("pad_token_id", "the id of a token");
    c.context -= padding + 1;
  }
  if (c.heads <= 0 || c.hidden % c.heads != 0)
    fail(ErrorCode::kCorrupt, "{}: the hidden size {} does not divide into {} heads", f.where(),
         c.hidden, c.heads);
  c.head_dim = c.hidden / c.heads;
  c.token_types = family.segments ? f.integer({"type_vocab_size"}, 2) : 0;
  c.norm_eps = f.number({"layer_norm_eps", "layer_norm_epsilon", "norm_eps"},
                        family.norm_first ? 1e-5f : 1e-12f);  // as a GGUF file stores it
  if (const Value* kind = f.find({"position_embedding_type"});
      kind && kind->is_string() && kind->as_string() != "absolute")
    fail(ErrorCode::kUnsupported, "{}: positions of type {} are not supported", f.where(),
         kind->as_string());
  if (const Value* decoder = f.find({"is_decoder"});
      decoder && decoder->is_bool() && decoder->as_bool())
    fail(ErrorCode::kUnsupported, "{}: {} as a decoder is not supported", f.where(),
         family.architecture);
}

}  // namespace

bool is_encoder_hf(const Value& json) {
  const Value* type = json.is_object() ? json.find("model_type") : nullptr;
  return type && type->is_string() && find_encoder_hf(type->as_string());
}

bool is_encoder_gguf(std::string_view architecture) {
  const EncoderFamily* family = find_encoder(architecture);
  return family && family->in_gguf;
}

ModelConfig encoder_from_hf(const Value& json, const WeightSource& weights,
                            std::string_view where) {
  Fields f(json, where);
  const EncoderFamily& family = *find_encoder_hf(json.at("model_type").as_string());
  ModelConfig c;
  c.name = f.text({"_name_or_path"}, "");
  apply_encoder(family, c);
  read_sizes(f, family, c);
  if (c.layers <= 0 || c.layers > static_cast<int64_t>(weights.names().size()))
    fail(ErrorCode::kCorrupt, "{}: {} layers are not possible in a model of {} tensors", where,
         c.layers, weights.names().size());
  const char* usual = c.activation == Activation::kSilu ? "silu" : "gelu";
  c.activation = encoder_activation(
      f, f.text({"hidden_act", "hidden_activation", "activation", "activation_function"}, usual));
  if (family.norm_first)
    read_local_attention(f, c);
  else if (!family.learned_positions)
    read_rotation(f, c);
  EncoderNames names(family, weights, where);
  c.vocab = names.vocab();
  if (says_classifier(f)) {
    c.embedding.labels = labels_of(f, names.labels());
    c.embedding.pooling =
        f.text({"classifier_pooling"}, "cls") == "mean" ? Pooling::kMean : Pooling::kFirst;
    c.embedding.normalize = false;
    if (family.norm_first)
      c.head_activation = encoder_activation(f, f.text({"classifier_activation"}, "gelu"));
  }
  check_config(c, where);
  names.map(c);
  return c;
}

ModelConfig encoder_from_gguf(const GgufFile& file) {
  std::string architecture = file.get_string("general.architecture", "");
  const EncoderFamily& family = *find_encoder(architecture);
  auto key = [&](std::string_view name) { return fmt::format("{}.{}", architecture, name); };
  auto required = [&](std::string_view name) {
    if (!file.has(key(name)))
      fail(ErrorCode::kCorrupt, "{}: metadata {} is missing", file.name(), key(name));
    return file.get_int(key(name), 0);
  };
  ModelConfig c;
  c.name = file.get_string("general.name", "");
  apply_encoder(family, c);
  c.hidden = required("embedding_length");
  c.layers = required("block_count");
  c.heads = c.kv_heads = required("attention.head_count");
  c.ffn = required("feed_forward_length");
  c.context = required("context_length");
  if (c.heads <= 0 || c.hidden % c.heads != 0 || c.layers <= 0 ||
      c.layers > static_cast<int64_t>(file.tensors().size()))
    fail(ErrorCode::kCorrupt,
         "{}: {} heads of {} channels and {} layers are not possible in a file of {} tensors",
         file.name(), c.heads, c.hidden, c.layers, file.tensors().size());
  c.head_dim = c.hidden / c.heads;
  c.norm_eps = file.get_double(key("attention.layer_norm_epsilon"), 1e-12);
  if (!family.learned_positions) {
    c.rope.dims = c.head_dim;
    c.rope.theta = file.get_double(key("rope.freq_base"), 10000.0);
  }
  constexpr Pooling kPoolings[] = {Pooling::kMean, Pooling::kMean, Pooling::kFirst, Pooling::kLast,
                                   Pooling::kFirst};  // none, mean, cls, last, rank
  int64_t pooling = file.get_int(key("pooling_type"), 1);
  if (pooling < 0 || pooling >= std::ssize(kPoolings))
    fail(ErrorCode::kUnsupported, "{}: pooling type {} is not known", file.name(), pooling);
  c.embedding.pooling = kPoolings[pooling];
  if (const TensorView* types = file.find("token_types.weight"); types && types->dims.size() == 2)
    c.token_types = types->dims[0];
  EncoderNames names(family, file);
  c.vocab = names.vocab();
  if (names.labels() > 0) {
    for (std::string_view label : file.strings(key("classifier.output_labels")))
      c.embedding.labels.emplace_back(label);
    for (int64_t i = std::ssize(c.embedding.labels); i < names.labels(); ++i)
      c.embedding.labels.push_back(fmt::format("LABEL_{}", i));
    c.embedding.labels.resize(static_cast<size_t>(names.labels()));
    c.embedding.normalize = false;
  }
  check_config(c, file.name());
  names.map(c);
  return c;
}

}  // namespace tokamak
