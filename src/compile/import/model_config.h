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
  bool backwards = false;                         // by negative angles (nanochat)
  std::vector<double> freq_divisors;  // explicit per-frequency divisors (rope_freqs tensor)
  bool operator==(const RopeConfig&) const = default;
};

enum class NormKind { kRms, kLayer };
enum class Activation { kSilu, kGeluTanh, kGeluErf, kRelu, kRelu2, kTanh, kXielu };

// Apertus: a layer's activation, p x^2 + beta x above zero and n (exp(x) - 1 - x) + beta x below.
struct XieluConfig {
  double p = 0, n = 0, beta = 0;
  bool operator==(const XieluConfig&) const = default;
};

// Experts of a layer's MLP. A router scores them per token; the best `used` are computed.
struct ExpertConfig {
  int64_t count = 0;  // 0: the model has none
  int64_t used = 0;
  int64_t ffn = 0;            // rows of an expert's gate and up matrix
  int64_t shared_ffn = 0;     // of the expert that every token passes; 0: none
  bool shared_gate = false;   // its result is multiplied by a sigmoid of the token
  bool sigmoid = false;       // scores are sigmoids; otherwise a softmax over all experts
  bool score_bias = false;    // added to the scores where experts are chosen, not in their weights
  bool normalize = false;     // the weights of the chosen experts sum to one
  bool bias = false;          // of the router and of the experts' matrices
  bool scale_inputs = false;  // weights multiply what experts read, not what they give (Llama 4)
  double mixer = 0.0;         // Phi-3.5-MoE: a weight counts only experts this close (SparseMixer)
  bool beside_mlp = false;    // Gemma 4: an MLP as well, each with norms, and scales of experts
  double clamp = 0.0;         // gpt-oss: limit of gate and up, with its own activation; 0: none
  double scale = 1.0;         // of the weights
  int64_t groups = 1, used_groups = 1;  // experts come from the best groups only
  std::vector<bool> layers;             // which layers have experts
  bool operator==(const ExpertConfig&) const = default;
};

// Latent attention (MLA): keys and values of all heads are products of one vector per token, which
// is what the cache holds beside one rotated key part.
struct LatentConfig {
  int64_t rank = 0;            // of that vector; 0: no latent attention
  int64_t q_rank = 0;          // of the queries' vector; 0: queries are computed directly
  int64_t nope = 0, rope = 0;  // parts of a head's query and key: without and with rotation
  int64_t value = 0;           // of a head
  bool interleaved = true;     // files have the rotated parts in interleaved order
  bool operator==(const LatentConfig&) const = default;
};

// Gemma 3n: copies of the residual stream, and an embedding of the token for each layer.
struct AltUpConfig {
  int64_t copies = 0;  // 0: the model has none
  int64_t active = 0;  // the copy that passes the layers
  int64_t width = 0;   // of a layer's embedding
  int64_t vocab = 0;   // tokens that have such embeddings
  int64_t rank = 0;    // of the path beside attention
  // Per layer, by how many standard deviations a gate must exceed the mean; -infinity: all pass.
  std::vector<double> sparsity;
  bool operator==(const AltUpConfig&) const = default;
};

// Layers with a recurrent state instead of attention: a convolution over the last inputs of each
// channel, then a state space with one decay per head (Mamba-2), or linear attention by the gated
// delta rule (Qwen3-Next), whose keys are the vectors of a group and whose channels are values.
struct RecurrentConfig {
  int64_t heads = 0;             // 0: the model has none
  int64_t head_dim = 0;          // channels of a head
  int64_t state = 0;             // numbers that a channel keeps
  int64_t groups = 1;            // of heads that share their input and output vectors
  int64_t norm_groups = 1;       // of channels that are normalised together (Mamba-2)
  int64_t taps = 0;              // of the convolution
  bool delta = false;            // the gated delta rule
  bool beside = false;           // attention reads the same input, in all layers (Falcon-H1)
  bool gated_norm = true;        // the result is normalised after its gate (Falcon-H1: may be not)
  bool tiled = false;            // of delta: heads i, i + groups, ... share a key, not neighbours
  int64_t step_rank = 0;         // Mamba: of the vector that steps are computed from; 0: Mamba-2
  bool step_norms = false;       // of it and of the input and output vectors (Jamba, Falcon-Mamba),
  bool unit_step_norms = false;  // without weights (Falcon-Mamba)
  bool short_conv = false;       // LFM2: the convolution, between two gates, and no other state
  std::vector<bool> layers;      // which layers they are; empty: all
  bool conv_bias = true;
  bool decay_log = false;                // the file has log(-a) instead of a
  double step_low = 0.0, step_high = 0;  // limits of a time step; 0: none above
  bool at(int64_t layer) const {
    return heads > 0 && (layers.empty() || layers[static_cast<size_t>(layer)]);
  }
  int64_t states() const { return short_conv ? 1 : 2; }
  int64_t inner() const { return heads * head_dim; }
  // Channels of the convolution: Mamba computes input and output vectors from its results.
  int64_t channels() const { return inner() + (step_rank > 0 ? 0 : 2 * groups * state); }
  bool operator==(const RecurrentConfig&) const = default;
};

// Falcon-H1: factors of what the parts of a block read and give.
struct BlockScales {
  double key = 1, attention_in = 1, attention_out = 1, gate = 1, down = 1, ssm_in = 1, ssm_out = 1;
  double ssm_gate = 1, ssm_x = 1, ssm_b = 1, ssm_c = 1, ssm_step = 1;
  bool operator==(const BlockScales&) const = default;
};

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
  bool parallel = false;        // attention and MLP read the same input (Cohere, Phi-2)
  bool two_norms = false;       // and each has a norm of its own (GPT-NeoX), else they share one
  bool qk_norm = false;         // norm over each head of q and k, before the rotation
  bool wide_qk_norm = false;    // norm over all heads of q and k together
  bool head_qk_norm = false;    // of qk_norm: each head has its own weights (Command R+)
  bool late_qk_norm = false;    // of qk_norm: after the rotation (Hunyuan)
  bool unit_norms = false;      // norms have no weights (OLMo 1)
  bool embedding_norm = false;  // a norm after the embedding (BLOOM, nanochat)
  bool unit_qk = false;         // rotated q and k are normalised, without weights (Llama 4)
  bool pre_norms = true;        // norms before attention and MLP
  bool post_norms = false;      // norms after attention and MLP (OLMo 2; Gemma 2/3, GLM-4: both)
  bool sub_norms = false;       // norms before the last matrix of attention and MLP (BitNet)
  bool round_inputs = false;    // inputs of matrices are rounded to 255 steps per token (BitNet)
  bool tied_embeddings = false;
  bool output_bias = false;
  bool learned_positions = false;  // GPT-2, BERT
  double embedding_scale = 1.0;
  double residual_scale = 1.0;  // of what attention and MLP add
  double logit_scale = 1.0;
  double attention_scale = 0.0;    // 0 = head_dim^-0.5
  bool scale_by_layer = false;     // GPT-2: layer i divides its scores by i + 1 as well
  double attention_softcap = 0.0;  // 0 = none
  bool attention_gate = false;     // what attention gives is multiplied by a sigmoid of the token
  bool attention_sinks = false;    // a weight per head joins the softmax
  std::vector<double> alibi;       // ALiBi: slope of each head; empty = none
  double final_softcap = 0.0;
  double clip_qkv = 0.0;           // limit of q, k and v; 0 = none
  std::vector<XieluConfig> xielu;  // per layer, with Activation::kXielu
  // Llama 4: layers without positions multiply queries by 1 + scale * log(1 + (position + 1) /
  // length), the quotient rounded down. 0: none.
  double temperature_scale = 0.0;
  int64_t temperature_length = 0;
  bool temperature_everywhere = false;  // Ministral 3: all layers, with position / length

  int64_t sliding_window =
      0;                 // tokens visible to a sliding layer, including the current one; 0 = none
  bool chunked = false;  // sliding layers see the tokens of their chunk of sliding_window positions
  std::vector<bool> layer_slides;   // per layer; empty = none slides
  std::vector<bool> layer_rotates;  // per layer; empty = all
  bool alone = false;  // a layer is attention, a recurrent part or an MLP, not two of them
  std::vector<bool> mlp_layers;  // with `alone`, the MLPs; empty = none
  int64_t shared_kv_layers = 0;  // the last layers, which read the keys and values of earlier ones
  bool shared_kv_weights = false;  // the file has their matrices nevertheless
  // Gemma 4: layers without a window have heads of another size (0: the same) and may have no value
  // matrix, the keys being the values; layers that share keys may have MLPs of twice the width; a
  // number multiplies what each layer gives.
  int64_t full_head_dim = 0, full_kv_heads = 0;
  bool keys_are_values = false, wide_shared_mlp = false, layer_scales = false;
  BlockScales block_scales;
  ExpertConfig experts;
  LatentConfig latent;
  RecurrentConfig recurrent;
  AltUpConfig altup;
  RopeConfig rope;        // layers with full attention
  RopeConfig rope_local;  // sliding layers, if different (Gemma 3); dims == 0 = same as rope
  // Pairs that images rotate by time, height and width; the same for texts. For GGUF files only.
  std::vector<int64_t> rope_sections;

  bool only_mlp(int64_t layer) const {
    return !mlp_layers.empty() && mlp_layers[static_cast<size_t>(layer)];
  }
  bool windowed(int64_t layer) const {
    return !layer_slides.empty() && layer_slides[static_cast<size_t>(layer)];
  }
  int64_t head_dim_at(int64_t layer) const {
    return full_head_dim > 0 && !windowed(layer) ? full_head_dim : head_dim;
  }
  int64_t kv_heads_at(int64_t layer) const {
    return full_kv_heads > 0 && !windowed(layer) ? full_kv_heads : kv_heads;
  }
  int64_t ffn_at(int64_t layer) const {
    return wide_shared_mlp && shares_kv(layer) ? 2 * ffn : ffn;
  }
  bool shares_kv(int64_t layer) const { return layer >= layers - shared_kv_layers; }
  // The layer whose keys and values a layer reads: the last one of its kind that has its own.
  int64_t kv_layer(int64_t layer) const {
    if (!shares_kv(layer)) return layer;
    int64_t own = layers - shared_kv_layers - 1;
    while (own >= 0 && windowed(own) != windowed(layer)) --own;
    return own;
  }

  // Encoders: every row sees all rows of its sequence (sliding layers: those within
  // sliding_window), and the result is one vector per sequence.
  bool norm_first = false;  // norms before the parts of a layer (ModernBERT), else after the sums
  int64_t token_types = 0;  // rows of the table of segments
  Activation head_activation = Activation::kTanh;  // of a classifier's dense layer
  EmbeddingSpec embedding;
  // Dense layers after the pooling: what each gives, and whether tanh follows it.
  std::vector<int64_t> dense;
  bool dense_tanh = false;
  int64_t vector_size() const { return dense.empty() ? hidden : dense.back(); }

  // Canonical weight name (as in GGUF: "token_embd.weight", "blk.3.attn_q.weight") -> its source.
  // The recipes hide the
  // differences between formats; shapes are those after the recipe: matrices are [out, in], q/k
  // rows are in split-half rotary order, norm weights need no adjustment. Norms and biases are f32.
  // A model with tied embeddings has no "output.weight".
  struct Weight {
    Recipe recipe;
    DType dtype;
    std::vector<int64_t> dims;
    double factor = 1.0;  // of what a linear layer gives (NVFP4: the scale of the whole matrix)
  };
  std::map<std::string, Weight, std::less<>> weights;
};

}  // namespace tokamak
