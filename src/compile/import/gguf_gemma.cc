// Gemma in GGUF metadata.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "compile/import/families.h"
#include "compile/import/gguf_keys.h"

namespace tokamak {
namespace {

int64_t rows_of(const GgufFile& file, const char* tensor) {
  const TensorView* t = file.find(tensor);
  return t && !t->dims.empty() ? t->dims[0] : 0;
}

// Embeddings of each layer, layers that share keys and values, and the base of sliding layers.
void read_shared_layers(const GgufFile& file, const GgufKeys& keys, ModelConfig& c) {
  c.altup.vocab = rows_of(file, "per_layer_token_embd.weight");
  c.shared_kv_layers = keys.integer("attention.shared_kv_layers", 0);
  c.shared_kv_weights = file.find(fmt::format("blk.{}.attn_k.weight", c.layers - 1)) != nullptr;
  c.attention_scale = 1;
  c.rope_local.theta = keys.number("rope.freq_base_swa", 10000.0);
}

void read_gemma3n(const GgufFile& file, const GgufKeys& keys, ModelConfig& c) {
  AltUpConfig& a = c.altup;
  a.copies = keys.integer("altup.num_inputs", 4);
  a.active = keys.integer("altup.active_idx", 0);
  a.width = keys.required("embedding_length_per_layer_input");
  a.rank = rows_of(file, "blk.0.laurel_l.weight");
  read_shared_layers(file, keys, c);
  c.final_softcap = keys.number("final_logit_softcapping", 30);
  c.rope_local.dims = c.rope.dims;
  a.sparsity.assign(static_cast<size_t>(c.layers), -INFINITY);
  if (std::string key = keys.full("activation_sparsity_scale"); file.array_size(key) > 0) {
    std::vector<float> listed = file.floats(key);
    a.sparsity.assign(listed.begin(), listed.end());
  }
}

void read_gemma4(const GgufFile& file, const GgufKeys& keys, ModelConfig& c) {
  c.altup.width = keys.integer("embedding_length_per_layer_input", 0);
  read_shared_layers(file, keys, c);
  c.layer_scales = file.find("blk.0.layer_output_scale.weight") != nullptr;
  c.final_softcap = keys.number("final_logit_softcapping", 0);
  c.rope_local.dims = keys.integer("rope.dimension_count_swa", c.head_dim);
}

}  // namespace

void read_gguf_gemma4_sizes(const GgufFile& file, const GgufKeys& keys, ModelConfig& c) {
  c.full_head_dim = c.head_dim;
  c.head_dim = keys.required("attention.key_length_swa");
  std::vector<int64_t> slides = keys.list("attention.sliding_window_pattern"),
                       kv = keys.list("attention.head_count_kv"),
                       ffn = keys.list("feed_forward_length");
  auto layers = static_cast<size_t>(c.layers);
  if (slides.size() != layers || kv.size() % layers != 0 || ffn.size() % layers != 0)
    fail(ErrorCode::kCorrupt, "{}: a list of the metadata does not fit {} layers", file.name(),
         c.layers);
  for (size_t i = 0; i < layers; ++i) {
    if (!kv.empty()) (slides[i] != 0 ? c.kv_heads : c.full_kv_heads) = kv[i];
    if (slides[i] == 0 && file.find(fmt::format("blk.{}.attn_k.weight", i)))
      c.keys_are_values = !file.find(fmt::format("blk.{}.attn_v.weight", i));
  }
  if (ffn.empty()) return;
  c.ffn = *std::min_element(ffn.begin(), ffn.end());
  c.wide_shared_mlp = ffn.back() == 2 * c.ffn;
}

void read_gguf_embedder(const GgufFile& file, const GgufKeys& keys, ModelConfig& c) {
  c.embedding.encoder = true;
  c.sliding_window /= 2;  // on both sides
  constexpr int64_t kMean = 1;
  c.embedding.pooling = Pooling::kMean;
  if (int64_t kind = keys.integer("pooling_type", kMean); kind != kMean)
    fail(ErrorCode::kUnsupported, "{}: pooling type {} is not supported, only 1, the mean",
         file.name(), kind);
  for (size_t i = 0; const TensorView* t = file.find(dense_stem(i) + ".weight"); ++i) {
    if (t->dims.size() != 2)
      fail(ErrorCode::kCorrupt, "{}: tensor {}.weight is not a matrix", file.name(), dense_stem(i));
    c.dense.push_back(t->dims[0]);
  }
}

void read_gguf_gemma(const GgufFile& file, const GgufKeys& keys, ModelConfig& c) {
  if (c.architecture == "gemma3n") return read_gemma3n(file, keys, c);
  if (c.architecture == "gemma4") return read_gemma4(file, keys, c);
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

}  // namespace tokamak
