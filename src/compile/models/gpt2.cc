// GPT-2: learned positions, LayerNorm with bias, a plain two-matrix MLP.
#include "compile/models/builder.h"

namespace tokamak {
namespace {

void build_gpt2_function(ModelBuilder& b) {
  const ModelConfig& config = b.config;
  Ref x = b.op("add", {b.embed(b.ids, "token_embd"), b.embed(b.pos, "position_embd")});
  for (int64_t layer = 0; layer < b.layers(); ++layer) {
    b.before_layer(x);
    std::string blk = fmt::format("blk.{}.", layer);
    Ref h = b.norm(x, blk + "attn_norm");
    Ref q = b.heads(b.linear(h, blk + "attn_q"), config.heads, config.head_dim);
    Ref k = b.heads(b.linear(h, blk + "attn_k"), config.kv_heads, config.head_dim);
    Ref v = b.heads(b.linear(h, blk + "attn_v"), config.kv_heads, config.head_dim);
    Ref a = b.linear(b.merge_heads(b.append_and_attend(layer, q, k, v)), blk + "attn_output");
    x = b.op("add", {x, a});
    h = b.activation(b.linear(b.norm(x, blk + "ffn_norm"), blk + "ffn_up"));
    x = b.op("add", {x, b.linear(h, blk + "ffn_down")});
  }
  b.finish(x, "output_norm");
}

}  // namespace

Module build_gpt2(const ModelConfig& config, const CompileOptions& options) {
  ModelBuilder b(config, options);
  do build_gpt2_function(b);
  while (b.next_function());
  return b.module();
}

}  // namespace tokamak
