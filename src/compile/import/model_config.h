#pragma once
// A model description common to all file formats. The importers fill it from GGUF metadata or from
// config.json; compile/models turns it into a graph. No file formats and no tensor bytes here.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plan/embedding_spec.h"
#include "tensor/dtype.h"
#include "tensor/recipe.h"

namespace tokamak {

struct RopeConfig {
  enum class Scaling { kNone, kLinear, kDynamic, kLlama3, kYarn, kLongRope };
  int64_t dims = 0;  // rotated leading dimensions of a head; 0 = no rotary embedding
  double theta = 10000.0;
  Scaling scaling = Scaling::kNone;
  double factor = 1.0;
  int64_t original_context = 0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  double attention_factor = 0.0;                         // yarn, longrope: 0 = derive from factor
  double mscale = 0.0, mscale_all_dim = 0.0;             // DeepSeek's variant of yarn; 0 = unset
  bool yarn_truncate = true;
  std::vector<double> short_factor, long_factor;  // longrope
  std::vector<double> freq_divisors;  // explicit per-frequency divisors (rope_freqs tensor)
  bool operator==(const RopeConfig&) const = default;
};

enum class NormKind { kRms, kLayer };
enum class Activation { kSilu, kGeluTanh, kGeluErf, kRelu, kTanh };

struct ModelConfig {
  std::string architecture;  // llama, mistral, qwen2, qwen3, gemma2, gemma3, phi3, gpt2, ...
  std::string name;

  int64_t vocab = 0, hidden = 0, ffn = 0, layers = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t context = 0;  // trained context length

  NormKind norm = NormKind::kRms;
  double norm_eps = 1e-5;
  Activation activation = Activation::kSilu;
  bool gated_mlp = true;
  bool qkv_bias = false, o_bias = false, mlp_bias = false, norm_bias = false;
  bool qk_norm = false;     // RMS norm over each head of q and k, before the rotation
  bool post_norms = false;  // Gemma 2/3: norms after attention and after the MLP too
  bool tied_embeddings = false;
  bool learned_positions = false;  // GPT-2, BERT
  double embedding_scale = 1.0;
  double attention_scale = 0.0;    // 0 = head_dim^-0.5
  bool scale_by_layer = false;     // GPT-2: layer i divides its scores by i + 1 as well
  double attention_softcap = 0.0;  // 0 = none
  double final_softcap = 0.0;

  int64_t sliding_window =
      0;  // tokens visible to a sliding layer, including the current one; 0 = none
  std::vector<bool> layer_slides;  // per layer; empty = none slides
  RopeConfig rope;                 // layers with full attention
  RopeConfig rope_local;  // sliding layers, if different (Gemma 3); dims == 0 = same as rope

  // Encoders: every row sees all rows of its sequence (sliding layers: those within
  // sliding_window), and the result is one vector per sequence.
  bool norm_first = false;  // norms before the parts of a layer (ModernBERT), else after the sums
  int64_t token_types = 0;  // rows of the table of segments
  Activation head_activation = Activation::kTanh;  // of a classifier's dense layer
  EmbeddingSpec embedding;

  // Canonical weight name (as in GGUF: "token_embd.weight", "blk.3.attn_q.weight") -> its source.
  // The recipes hide the
  // differences between formats; shapes are those after the recipe: matrices are [out, in], q/k
  // rows are in split-half rotary order, norm weights need no adjustment. Norms and biases are f32.
  // A model with tied embeddings has no "output.weight".
  struct Weight {
    Recipe recipe;
    DType dtype;
    std::vector<int64_t> dims;
  };
  std::map<std::string, Weight, std::less<>> weights;
};

}  // namespace tokamak
