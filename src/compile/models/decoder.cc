// Llama and related models: blocks of attention and an MLP around a residual stream. The
// differences between the families are in the config: biases, where the norms are, norms of q and
// k, parallel blocks, layers of linear attention, experts, windows, layers without positions, caps
// and scales.
#include "compile/models/builder.h"

namespace tokamak {
namespace {

// BitNet: whole numbers of -127 to 127 times a scale for each token. A cast rounds towards zero, so
// that the numbers are made positive first.
Ref rounded(ModelBuilder& b, Ref x) {
  if (!b.config.round_inputs) return x;
  constexpr double kSteps = 127, kLeast = 1e-5F, kShift = 128;
  auto cast = [&](Ref y, const char* to) {
    return b.op("cast", {y}, Value::Object{{"dtype", to}});
  };
  Ref most = b.op("reduce_max", {b.op("abs", {x})}, Value::Object{{"axis", 1}, {"keep", 1}});
  Ref unit = b.scaled(b.op("maximum", {most, b.constant("least", {kLeast})}), 1 / kSteps);
  Ref y = b.op("add", {b.op("div", {x, unit}), b.constant("to_positive", {kShift + 0.5})});
  y = b.op("sub", {cast(cast(y, "i32"), "f32"), b.constant("from_positive", {kShift})});
  return b.op("mul", {y, unit});
}

Ref attention(ModelBuilder& b, Ref x, int64_t layer) {
  const ModelConfig& c = b.config;
  x = rounded(b, x);
  std::string blk = fmt::format("blk.{}.", layer);
  auto project = [&](const char* stem, int64_t heads) {
    Ref y = b.linear(x, blk + stem);
    if (c.wide_qk_norm && stem != std::string_view("attn_v")) y = b.norm(y, blk + stem + "_norm");
    if (c.clip_qkv > 0) y = b.clip(y, c.clip_qkv);
    return b.heads(y, heads, c.head_dim);
  };
  Ref q = project("attn_q", c.heads);
  Ref k = b.scaled(project("attn_k", c.kv_heads), c.block_scales.key);
  Ref v = project("attn_v", c.kv_heads);
  auto norms = [&] {
    q = c.head_qk_norm ? b.head_norm(q, blk + "attn_q_norm") : b.norm(q, blk + "attn_q_norm");
    k = c.head_qk_norm ? b.head_norm(k, blk + "attn_k_norm") : b.norm(k, blk + "attn_k_norm");
  };
  if (c.qk_norm && !c.late_qk_norm) norms();
  if (c.unit_qk && b.rotates(layer)) {  // Llama 4 does it after the rotation, which keeps lengths
    q = b.unit_norm(q, c.head_dim);
    k = b.unit_norm(k, c.head_dim);
  }
  q = b.rope(q, layer);
  k = b.rope(k, layer);
  if (c.qk_norm && c.late_qk_norm) norms();
  if (c.temperature_everywhere || !b.rotates(layer)) q = b.temper(q);
  Ref mixed =
      c.embedding.encoder ? b.attend_rows(layer, q, k, v) : b.append_and_attend(layer, q, k, v);
  Ref y = b.merge_heads(mixed);
  if (c.attention_gate) y = b.op("mul", {y, b.op("sigmoid", {b.linear(x, blk + "attn_gate")})});
  if (c.sub_norms) y = b.norm(y, blk + "attn_sub_norm");
  return b.linear(rounded(b, y), blk + "attn_output");
}

Ref mlp(ModelBuilder& b, Ref x, int64_t layer) {
  const ExpertConfig& experts = b.config.experts;
  if (experts.count > 0 && experts.layers[static_cast<size_t>(layer)])
    return expert_mlp(b, x, layer);
  std::string blk = fmt::format("blk.{}.", layer);
  x = rounded(b, x);
  if (!b.config.gated_mlp)
    return b.linear(rounded(b, b.activation(b.linear(x, blk + "ffn_up"), layer)), blk + "ffn_down");
  const BlockScales& scales = b.config.block_scales;
  Ref gate = b.activation(b.scaled(b.linear(x, blk + "ffn_gate"), scales.gate));
  Ref up = b.linear(x, blk + "ffn_up");
  Ref y = b.op("mul", {gate, up});
  if (b.config.sub_norms) y = b.norm(y, blk + "ffn_sub_norm");
  return b.scaled(b.linear(rounded(b, y), blk + "ffn_down"), scales.down);
}

// What mixes tokens: attention, a recurrent part, or both of them side by side (Falcon-H1).
Ref mix_tokens(ModelBuilder& b, Ref x, int64_t layer) {
  const ModelConfig& c = b.config;
  const BlockScales& s = c.block_scales;
  if (c.recurrent.at(layer) && !c.recurrent.beside) return recurrent_mixer(b, x, layer);
  if (c.latent.rank > 0) return latent_attention(b, x, layer);
  Ref y = b.scaled(attention(b, b.scaled(x, s.attention_in), layer), s.attention_out);
  if (!c.recurrent.beside) return y;
  Ref other = recurrent_mixer(b, b.scaled(x, s.ssm_in), layer);
  return b.op("add", {b.scaled(other, s.ssm_out), y});
}

// x plus what a part of the block gives.
Ref add_part(ModelBuilder& b, Ref x, Ref part, const std::string& post_norm) {
  if (b.config.post_norms) part = b.norm(part, post_norm);
  return b.op("add", {x, b.scaled(part, b.config.residual_scale)});
}

Ref decoder_layers(ModelBuilder& b) {
  const ModelConfig& config = b.config;
  Ref x = b.scaled(b.embed(b.ids, "token_embd"), config.embedding_scale);
  if (config.embedding_norm) x = b.norm(x, "token_embd_norm");
  for (int64_t layer = 0; layer < b.layers(); ++layer) {
    b.before_layer(x);
    std::string blk = fmt::format("blk.{}.", layer);
    Ref h = config.pre_norms ? b.norm(x, blk + "attn_norm") : x;
    if (config.only_mlp(layer)) {
      x = add_part(b, x, mlp(b, h, layer), "");
      continue;
    }
    Ref a = mix_tokens(b, h, layer);
    if (config.parallel) {
      if (config.two_norms) h = b.norm(x, blk + "ffn_norm");
      x = b.op("add", {b.op("add", {x, a}), mlp(b, h, layer)});
      continue;
    }
    x = add_part(b, x, a, blk + "post_attention_norm");
    if (config.alone) continue;
    h = config.pre_norms ? b.norm(x, blk + "ffn_norm") : x;
    x = add_part(b, x, mlp(b, h, layer), blk + "post_ffw_norm");
  }
  return x;
}

}  // namespace

Module build_decoder(const ModelConfig& config, const CompileOptions& options) {
  ModelBuilder b(config, options);
  if (config.embedding.encoder)  // EmbeddingGemma
    return b.finish_encoder(b.norm(decoder_layers(b), "output_norm"));
  do b.finish(decoder_layers(b), "output_norm");
  while (b.next_function());
  return b.module();
}

}  // namespace tokamak
