// The MLP of a layer with experts: a router scores them, each token passes the best ones, and their
// results are added with the router's weights. A shared expert is an MLP that every token passes.
#include "compile/models/builder.h"

namespace tokamak {
namespace {

Ref shared_expert(ModelBuilder& b, Ref x, const std::string& blk) {
  Ref up = b.linear(x, blk + "ffn_up_shexp");
  Ref mixed = b.config.gated_mlp
                  ? b.op("mul", {b.activation(b.linear(x, blk + "ffn_gate_shexp")), up})
                  : b.activation(up);
  Ref y = b.linear(mixed, blk + "ffn_down_shexp");
  if (!b.config.experts.shared_gate) return y;
  return b.op("mul", {y, b.op("sigmoid", {b.linear(x, blk + "ffn_gate_inp_shexp")})});
}

// gpt-oss: gate and up are limited, and the activation is g * sigmoid(1.702 g) * (up + 1).
Ref clamped(ModelBuilder& b, Ref gate, Ref up) {
  double limit = b.config.experts.clamp;
  Ref top = b.constant("experts.limit", {limit}), bottom = b.constant("experts.floor", {-limit});
  gate = b.op("minimum", {gate, top});
  up = b.op("maximum", {b.op("minimum", {up, top}), bottom});
  Ref slope = b.op("scale", {gate}, Value::Object{{"value", 1.702}});
  gate = b.op("mul", {gate, b.op("sigmoid", {slope})});
  return b.op("mul", {b.op("add", {up, b.constant("experts.one", {1.0})}), gate});
}

// SparseMixer: the best two experts. The weight of each is that of a softmax over the experts whose
// scores are close to its own; the first is not among those of the second.
std::vector<Ref> mixed_route(ModelBuilder& b, Ref scores, const std::string& blk) {
  const ExpertConfig& e = b.config.experts;
  std::vector<Ref> best =
      b.op_multi("top_k", {scores}, Value::Object{{"k", e.used}}, blk + "route");
  Ref expert = b.op("iota", {}, Value::Object{{"n", std::to_string(e.count)}});
  Ref zero = b.constant("zero", {0.0}), one = b.constant("one", {1.0});
  auto column = [&](Ref x, int64_t i) {
    return b.op("slice", {x}, Value::Object{{"axis", 1}, {"start", i}, {"end", i + 1}});
  };
  std::vector<Ref> weights;
  for (int64_t i = 0; i < e.used; ++i) {
    Ref top = column(best[0], i);
    Ref size = b.op("maximum", {b.op("abs", {scores}), top});
    Ref apart = b.op("div", {b.op("sub", {top, scores}), size});
    // Scores of 0 are close to each other: 0 / 0 is not greater than anything.
    Ref far =
        b.op("compare", {apart, b.constant("mixer", {2 * e.mixer})}, Value::Object{{"kind", "gt"}});
    Ref parts = b.op("select", {far, zero, b.op("exp", {b.op("sub", {scores, top})})});
    if (i > 0) {
      Ref first = b.op("compare", {expert, column(best[1], 0)}, Value::Object{{"kind", "eq"}});
      parts = b.op("select", {first, zero, parts});
    }
    Ref sum = b.op("reduce_sum", {parts}, Value::Object{{"axis", 1}, {"keep", 1}});
    weights.push_back(b.op("div", {one, sum}));
  }
  return {b.op("concat", std::move(weights), Value::Object{{"axis", 1}}), best[1]};
}

Ref ones_like(ModelBuilder& b, Ref x) {
  Attrs shape = Value::Object{{"dims", Value::Array{b.fn().tensor(x).extent(0).text(), "1"}},
                              {"axes", Value::Array{"t", "k"}}};
  return b.op("broadcast", {b.constant("one", {1.0})}, std::move(shape));
}

}  // namespace

Ref expert_mlp(ModelBuilder& b, Ref x, int64_t layer, Ref routed) {
  const ExpertConfig& e = b.config.experts;
  std::string blk = fmt::format("blk.{}.", layer);
  Value::Object attrs = {{"k", e.used}};
  if (e.sigmoid) attrs.emplace_back("gate", "sigmoid");
  if (e.normalize) attrs.emplace_back("normalize", 1);
  if (e.scale != 1) attrs.emplace_back("scale", e.scale);
  if (e.groups > 1) {
    attrs.emplace_back("groups", e.groups);
    attrs.emplace_back("used_groups", e.used_groups);
  }
  std::vector<Ref> scores = {b.linear(routed.valid() ? routed : x, blk + "ffn_gate_inp")};
  if (e.score_bias) scores.push_back(b.weight(blk + "exp_probs_b.bias"));
  std::vector<Ref> route = e.mixer > 0
                               ? mixed_route(b, scores[0], blk)
                               : b.op_multi("moe_route", scores, std::move(attrs), blk + "route");
  Ref from = e.scale_inputs ? b.op("mul", {x, route[0]}) : x;
  std::vector<Ref> rows = b.op_multi("moe_dispatch", {from, route[1]},
                                     Value::Object{{"count", e.count}}, blk + "dispatch");
  auto product = [&](Ref in, const std::string& stem) {
    std::vector<Ref> inputs = {in, b.weight(blk + stem + ".weight"), rows[1]};
    if (e.bias) inputs.push_back(b.weight(blk + stem + ".bias"));
    return b.op("grouped_linear", std::move(inputs), {}, blk + stem);
  };
  Ref gate = b.config.gated_mlp ? product(rows[0], "ffn_gate_exps") : Ref();
  Ref up = product(rows[0], "ffn_up_exps");
  Ref mixed = !b.config.gated_mlp ? b.activation(up)
              : e.clamp > 0       ? clamped(b, gate, up)
                                  : b.op("mul", {b.activation(gate), up});
  Ref down = product(mixed, "ffn_down_exps");
  Ref weights = e.scale_inputs ? ones_like(b, route[0]) : route[0];
  if (e.beside_mlp)  // a factor for each expert
    weights =
        b.op("mul", {weights, b.op("gather", {b.weight(blk + "ffn_down_exps.scale"), route[1]},
                                   Value::Object{{"axis", 0}})});
  Ref y = b.op("moe_combine", {down, rows[2], rows[1], weights}, {}, blk + "combine");
  return e.shared_ffn > 0 ? b.op("add", {y, shared_expert(b, x, blk)}) : y;
}

}  // namespace tokamak
