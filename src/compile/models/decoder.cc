// Llama and related models: pre-norm blocks of attention and a gated MLP around a residual stream.
// The differences between Llama, Mistral, Qwen2, Qwen3, Gemma 2/3 and Phi-3 are in the config:
// biases, norms of q and k, norms after each part, windows, caps and scales.
#include "compile/models/builder.h"

namespace tokamak {
namespace {

Ref attention(ModelBuilder& b, Ref x, int64_t layer) {
  const ModelConfig& c = b.config;
  std::string blk = fmt::format("blk.{}.", layer);
  Ref q = b.heads(b.linear(x, blk + "attn_q"), c.heads, c.head_dim);
  Ref k = b.heads(b.linear(x, blk + "attn_k"), c.kv_heads, c.head_dim);
  Ref v = b.heads(b.linear(x, blk + "attn_v"), c.kv_heads, c.head_dim);
  if (c.qk_norm) {
    q = b.norm(q, blk + "attn_q_norm");
    k = b.norm(k, blk + "attn_k_norm");
  }
  q = b.rope(q, layer);
  k = b.rope(k, layer);
  Ref mixed = b.append_and_attend(layer, q, k, v);
  return b.linear(b.merge_heads(mixed), blk + "attn_output");
}

Ref mlp(ModelBuilder& b, Ref x, int64_t layer) {
  std::string blk = fmt::format("blk.{}.", layer);
  Ref gate = b.activation(b.linear(x, blk + "ffn_gate"));
  Ref up = b.linear(x, blk + "ffn_up");
  return b.linear(b.op("mul", {gate, up}), blk + "ffn_down");
}

}  // namespace

Module build_decoder(const ModelConfig& config, const CompileOptions& options) {
  ModelBuilder b(config, options);
  Ref x = b.embed(b.ids, "token_embd");
  if (config.embedding_scale != 1.0)
    x = b.op("scale", {x}, Value::Object{{"value", config.embedding_scale}});
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    std::string blk = fmt::format("blk.{}.", layer);
    Ref a = attention(b, b.norm(x, blk + "attn_norm"), layer);
    if (config.post_norms) a = b.norm(a, blk + "post_attention_norm");
    x = b.op("add", {x, a});
    Ref m = mlp(b, b.norm(x, blk + "ffn_norm"), layer);
    if (config.post_norms) m = b.norm(m, blk + "post_ffw_norm");
    x = b.op("add", {x, m});
  }
  return b.finish(x, "output_norm");
}

}  // namespace tokamak
