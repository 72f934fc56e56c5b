// BERT and related encoders: every token sees all tokens of its text. The differences between BERT,
// RoBERTa, DistilBERT, Nomic and ModernBERT are in the config: learned or rotary positions,
// segments, norms after or before the parts of a layer, a gated MLP, local attention.
#include "compile/models/builder.h"

namespace tokamak {
namespace {

Ref embeddings(ModelBuilder& b) {
  const ModelConfig& c = b.config;
  Ref x = b.embed(b.ids, "token_embd");
  if (c.learned_positions) x = b.op("add", {x, b.embed(b.pos, "position_embd")});
  if (c.token_types > 1)
    x = b.op("add", {x, b.embed(b.types, "token_types")});
  else if (c.token_types == 1)
    x = b.op("add", {x, b.weight("token_types.weight")});
  return b.norm(x, "token_embd_norm");
}

Ref self_attention(ModelBuilder& b, Ref x, int64_t layer) {
  const ModelConfig& c = b.config;
  std::string blk = fmt::format("blk.{}.", layer);
  Ref q = b.heads(b.linear(x, blk + "attn_q"), c.heads, c.head_dim);
  Ref k = b.heads(b.linear(x, blk + "attn_k"), c.kv_heads, c.head_dim);
  Ref v = b.heads(b.linear(x, blk + "attn_v"), c.kv_heads, c.head_dim);
  if (c.rope.dims > 0) {
    q = b.rope(q, layer);
    k = b.rope(k, layer);
  }
  return b.linear(b.merge_heads(b.attend_rows(layer, q, k, v)), blk + "attn_output");
}

Ref feed_forward(ModelBuilder& b, Ref x, int64_t layer) {
  std::string blk = fmt::format("blk.{}.", layer);
  Ref up = b.linear(x, blk + "ffn_up");
  Ref hidden = b.config.gated_mlp ? b.op("mul", {b.activation(b.linear(x, blk + "ffn_gate")), up})
                                  : b.activation(up);
  return b.linear(hidden, blk + "ffn_down");
}

}  // namespace

Module build_encoder(const ModelConfig& config, const CompileOptions& options) {
  ModelBuilder b(config, options);
  Ref x = embeddings(b);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    std::string blk = fmt::format("blk.{}.", layer);
    if (config.norm_first) {
      // The embeddings are normalised already: the first layer has no norm of its own.
      Ref h = b.has(blk + "attn_norm.weight") ? b.norm(x, blk + "attn_norm") : x;
      x = b.op("add", {x, self_attention(b, h, layer)});
      x = b.op("add", {x, feed_forward(b, b.norm(x, blk + "ffn_norm"), layer)});
    } else {
      x = b.norm(b.op("add", {x, self_attention(b, x, layer)}), blk + "attn_output_norm");
      x = b.norm(b.op("add", {x, feed_forward(b, x, layer)}), blk + "layer_output_norm");
    }
  }
  if (config.norm_first) x = b.norm(x, "output_norm");
  return b.finish_encoder(x);
}

}  // namespace tokamak
