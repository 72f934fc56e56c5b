// Gemma 3n: the residual stream has several copies, of which one passes attention and the MLP and
// the others are predicted from it and corrected by it (alternating updates); a low-rank path runs
// beside attention, each layer adds an embedding of the token that is its own, and the last layers
// read the keys and values of earlier ones.
#include <cmath>

#include "compile/models/builder.h"

namespace tokamak {
namespace {

Ref scale(ModelBuilder& b, Ref x, double value) {
  return b.op("scale", {x}, Value::Object{{"value", value}});
}

Ref reshape(ModelBuilder& b, Ref x, std::vector<int64_t> rest) {
  Value::Array dims = {b.fn().tensor(x).extent(0).text()}, axes = {"t"};
  for (int64_t d : rest) dims.emplace_back(std::to_string(d));
  for (size_t i = 0; i < rest.size(); ++i) axes.emplace_back(fmt::format("n{}", i));
  return b.op("reshape", {x}, Value::Object{{"dims", std::move(dims)}, {"axes", std::move(axes)}});
}

// Row i of the middle axis of [t, n, width].
Ref part(ModelBuilder& b, Ref x, int64_t i, int64_t width) {
  return reshape(b, b.op("slice", {x}, Value::Object{{"axis", 1}, {"start", i}, {"end", i + 1}}),
                 {width});
}

Ref mean(ModelBuilder& b, Ref x) {
  return b.op("reduce_mean", {x}, Value::Object{{"axis", 1}, {"keep", 1}});
}

// x with the magnitude of another row.
Ref as_large_as(ModelBuilder& b, Ref x, Ref like) {
  Ref wanted = b.op("sqrt", {mean(b, b.op("square", {like}))});
  Ref own = b.op("maximum", {mean(b, b.op("square", {x})), b.constant("least_square", {1e-5})});
  return b.op("div", {b.op("mul", {x, wanted}), b.op("sqrt", {own})});
}

Ref gemma3n_attention(ModelBuilder& b, Ref x, int64_t layer) {
  const ModelConfig& c = b.config;
  std::string blk = fmt::format("blk.{}.", layer);
  auto heads = [&](const char* stem, int64_t count) {
    return b.heads(b.linear(x, blk + stem), count, c.head_dim);
  };
  Ref q = b.rope(b.norm(heads("attn_q", c.heads), blk + "attn_q_norm"), layer);
  if (c.shares_kv(layer))
    return b.linear(b.merge_heads(b.attend_shared(layer, q)), blk + "attn_output");
  Ref k = b.rope(b.norm(heads("attn_k", c.kv_heads), blk + "attn_k_norm"), layer);
  Ref v = b.unit_norm(heads("attn_v", c.kv_heads), c.head_dim);
  return b.linear(b.merge_heads(b.append_and_attend(layer, q, k, v)), blk + "attn_output");
}

// Gates that do not exceed the mean by some standard deviations are zero.
Ref sparse(ModelBuilder& b, Ref gate, double deviations) {
  if (!std::isfinite(deviations)) return gate;
  Ref centred = b.op("sub", {gate, mean(b, gate)});
  Ref deviation = b.op("sqrt", {mean(b, b.op("square", {centred}))});
  return b.op("relu", {b.op("sub", {centred, scale(b, deviation, deviations)})});
}

Ref sparse_mlp(ModelBuilder& b, Ref x, int64_t layer) {
  std::string blk = fmt::format("blk.{}.", layer);
  Ref gate =
      sparse(b, b.linear(x, blk + "ffn_gate"), b.config.altup.sparsity[static_cast<size_t>(layer)]);
  Ref up = b.linear(x, blk + "ffn_up");
  return b.linear(b.op("mul", {b.activation(gate), up}), blk + "ffn_down");
}

// How the copies depend on each other for this row.
Ref modalities(ModelBuilder& b, Ref x, const std::string& blk) {
  Ref h = scale(b, b.norm(x, blk + "altup_router_norm"), 1 / static_cast<double>(b.config.hidden));
  return b.op("tanh", {b.linear(h, blk + "altup_router")});
}

// copies: [t, n, hidden].
Ref predict(ModelBuilder& b, Ref copies, const std::string& blk) {
  const AltUpConfig& a = b.config.altup;
  Ref active = part(b, copies, a.active, b.config.hidden);
  Ref coefs = b.linear(modalities(b, active, blk), blk + "altup_predict_coef");
  return b.op("add", {b.op("matmul", {reshape(b, coefs, {a.copies, a.copies}), copies}), copies});
}

Ref correct(ModelBuilder& b, Ref predicted, Ref active, Ref activated, const std::string& blk) {
  const AltUpConfig& a = b.config.altup;
  Ref coefs = b.linear(modalities(b, activated, blk), blk + "altup_correct_coef");
  coefs = reshape(b, b.op("add", {coefs, b.constant("one", {1.0})}), {a.copies, 1});
  Ref change = reshape(b, b.op("sub", {activated, active}), {1, b.config.hidden});
  return b.op("add", {predicted, b.op("mul", {coefs, change})});
}

// Adds the layer's own embedding to all copies but the first.
Ref add_layer_input(ModelBuilder& b, Ref copies, Ref input, const std::string& blk) {
  const AltUpConfig& a = b.config.altup;
  int64_t hidden = b.config.hidden;
  Ref x = b.op("mul",
               {part(b, copies, a.active, hidden), b.weight(blk + "altup_correct_scale.weight")});
  x = b.op("mul", {b.activation(b.linear(x, blk + "inp_gate")), input});
  x = reshape(b, b.norm(b.linear(x, blk + "proj"), blk + "post_norm"), {1, hidden});
  std::vector<double> others(static_cast<size_t>(a.copies), 1.0);
  others[0] = 0.0;
  Ref mask = b.op("reshape", {b.constant("other_copies", others)},
                  Value::Object{{"dims", Value::Array{std::to_string(a.copies), "1"}},
                                {"axes", Value::Array{"n0", "n1"}}});
  return b.op("add", {copies, b.op("mul", {mask, x})});
}

Ref block(ModelBuilder& b, Ref copies, Ref inputs, int64_t layer) {
  const ModelConfig& c = b.config;
  std::string blk = fmt::format("blk.{}.", layer);
  Ref predicted = predict(b, copies, blk);
  Ref active = part(b, predicted, c.altup.active, c.hidden);
  Ref h = b.norm(active, blk + "attn_norm");
  Ref low = b.linear(b.linear(h, blk + "laurel_l"), blk + "laurel_r");
  Ref beside = b.op("add", {h, b.norm(low, blk + "laurel_post_norm")});
  Ref mixed = b.norm(gemma3n_attention(b, h, layer), blk + "post_attention_norm");
  Ref x = scale(b, b.op("add", {b.op("add", {active, mixed}), beside}), std::sqrt(0.5));
  Ref y = sparse_mlp(b, b.norm(x, blk + "ffn_norm"), layer);
  x = b.op("add", {x, b.norm(y, blk + "post_ffw_norm")});
  Ref corrected = correct(b, predicted, active, x, blk);
  return add_layer_input(b, corrected, layer_input(b, inputs, layer), blk);
}

Ref stack(ModelBuilder& b, const std::vector<Ref>& rows) {
  std::vector<Ref> parts;
  for (Ref row : rows) parts.push_back(reshape(b, row, {1, b.config.hidden}));
  return b.op("concat", std::move(parts), Value::Object{{"axis", 1}});
}

void build_gemma3n_function(ModelBuilder& b) {
  const ModelConfig& c = b.config;
  const AltUpConfig& a = c.altup;
  Ref first = scale(b, b.embed(b.ids, "token_embd"), c.embedding_scale);
  Ref inputs = layer_inputs(b, first);
  std::vector<Ref> rows = {first};
  for (int64_t i = 1; i < a.copies; ++i)
    rows.push_back(as_large_as(b, b.linear(first, fmt::format("altup_proj_{}", i - 1)), first));
  Ref copies = stack(b, rows);
  for (int64_t layer = 0; layer < b.layers(); ++layer) copies = block(b, copies, inputs, layer);
  first = part(b, copies, 0, c.hidden);
  Ref sum = first;
  for (int64_t i = 1; i < a.copies; ++i) {
    Ref back = b.linear(part(b, copies, i, c.hidden), fmt::format("altup_unembd_proj_{}", i - 1));
    sum = b.op("add", {sum, as_large_as(b, back, first)});
  }
  b.finish(scale(b, sum, 1 / static_cast<double>(a.copies)), "output_norm");
}

}  // namespace

Ref layer_inputs(ModelBuilder& b, Ref x) {
  const ModelConfig& c = b.config;
  const AltUpConfig& a = c.altup;
  Ref ids = b.ids;
  if (a.vocab < c.vocab) {  // tokens without such an embedding use that of token 0
    Ref number = b.op("cast", {ids}, Value::Object{{"dtype", "f32"}});
    Ref known = b.op("compare", {number, b.constant("layer_vocab", {static_cast<double>(a.vocab)})},
                     Value::Object{{"kind", "lt"}});
    known = b.op("cast", {known}, Value::Object{{"dtype", "f32"}});
    ids = b.op("cast", {b.op("mul", {number, known})}, Value::Object{{"dtype", "i32"}});
  }
  auto shaped = [&](Ref y) { return reshape(b, y, {c.layers, a.width}); };
  Ref own = scale(b, b.embed(ids, "per_layer_token_embd"), std::sqrt(static_cast<double>(a.width)));
  Ref projected =
      scale(b, b.linear(x, "per_layer_model_proj"), 1 / std::sqrt(static_cast<double>(c.hidden)));
  projected = b.norm(shaped(projected), "per_layer_proj_norm");
  return scale(b, b.op("add", {projected, shaped(own)}), std::sqrt(0.5));
}

Ref layer_input(ModelBuilder& b, Ref inputs, int64_t layer) {
  return part(b, inputs, layer, b.config.altup.width);
}

Module build_gemma3n(const ModelConfig& config, const CompileOptions& options) {
  if (options.layer_logits)
    fail(ErrorCode::kUnsupported,
         "DoLa needs logits of inner layers, which Gemma 3n does not have");
  ModelBuilder b(config, options);
  do build_gemma3n_function(b);
  while (b.next_function());
  return b.module();
}

}  // namespace tokamak
