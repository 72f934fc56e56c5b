// Gemma 4: layers without a window have larger heads, rotate a part of them and may use keys as
// values; values are normalised; layers may add an embedding of the token that is their own, may
// read the keys and values of earlier ones, and may have experts beside their MLP.
#include <cmath>

#include "compile/models/builder.h"

namespace tokamak {
namespace {

Ref gemma4_attention(ModelBuilder& b, Ref x, int64_t layer) {
  const ModelConfig& c = b.config;
  std::string blk = fmt::format("blk.{}.", layer);
  int64_t head = c.head_dim_at(layer), kv = c.kv_heads_at(layer);
  Ref q = b.heads(b.linear(x, blk + "attn_q"), c.heads, head);
  q = b.rope(b.norm(q, blk + "attn_q_norm"), layer);
  if (c.shares_kv(layer))
    return b.linear(b.merge_heads(b.attend_shared(layer, q)), blk + "attn_output");
  Ref k = b.heads(b.linear(x, blk + "attn_k"), kv, head);
  bool same = c.keys_are_values && !c.windowed(layer);
  Ref v = same ? k : b.heads(b.linear(x, blk + "attn_v"), kv, head);
  v = b.op("rms_norm",
           {v, b.constant(fmt::format("unit.{}", head),
                          std::vector<double>(static_cast<size_t>(head), 1.0))},
           Value::Object{{"eps", c.norm_eps}});
  k = b.rope(b.norm(k, blk + "attn_k_norm"), layer);
  return b.linear(b.merge_heads(b.append_and_attend(layer, q, k, v)), blk + "attn_output");
}

Ref gemma4_mlp(ModelBuilder& b, Ref x, const std::string& blk) {
  Ref gate = b.activation(b.linear(x, blk + "ffn_gate")), up = b.linear(x, blk + "ffn_up");
  return b.linear(b.op("mul", {gate, up}), blk + "ffn_down");
}

// The MLP and, beside it, experts; the router reads the sum before both.
Ref feed_forward(ModelBuilder& b, Ref x, int64_t layer) {
  const ModelConfig& c = b.config;
  std::string blk = fmt::format("blk.{}.", layer);
  Ref y = gemma4_mlp(b, b.norm(x, blk + "ffn_norm"), blk);
  if (c.experts.count > 0) {
    Ref routed = b.op("mul", {b.unit_norm(x, c.hidden), b.weight(blk + "ffn_gate_inp.scale")});
    routed = b.scaled(routed, 1 / std::sqrt(static_cast<double>(c.hidden)));
    Ref chosen = expert_mlp(b, b.norm(x, blk + "pre_ffw_norm_2"), layer, routed);
    y = b.op("add", {b.norm(y, blk + "post_ffw_norm_1"), b.norm(chosen, blk + "post_ffw_norm_2")});
  }
  return b.norm(y, blk + "post_ffw_norm");
}

Ref gemma4_block(ModelBuilder& b, Ref x, Ref inputs, int64_t layer) {
  std::string blk = fmt::format("blk.{}.", layer);
  Ref a = gemma4_attention(b, b.norm(x, blk + "attn_norm"), layer);
  x = b.op("add", {x, b.norm(a, blk + "post_attention_norm")});
  x = b.op("add", {x, feed_forward(b, x, layer)});
  if (inputs.valid()) {
    Ref own =
        b.op("mul", {b.activation(b.linear(x, blk + "inp_gate")), layer_input(b, inputs, layer)});
    x = b.op("add", {x, b.norm(b.linear(own, blk + "proj"), blk + "post_norm")});
  }
  return b.config.layer_scales ? b.op("mul", {x, b.weight(blk + "layer_output_scale.weight")}) : x;
}

}  // namespace

Module build_gemma4(const ModelConfig& config, const CompileOptions& options) {
  ModelBuilder b(config, options);
  do {
    Ref x = b.scaled(b.embed(b.ids, "token_embd"), config.embedding_scale);
    Ref inputs = config.altup.width > 0 ? layer_inputs(b, x) : Ref();
    for (int64_t layer = 0; layer < b.layers(); ++layer) {
      b.before_layer(x);
      x = gemma4_block(b, x, inputs, layer);
    }
    b.finish(x, "output_norm");
  } while (b.next_function());
  return b.module();
}

}  // namespace tokamak
