// Layers with a recurrent state: what a sequence remembers has a fixed size, and there are no
// positions. Mamba has nothing else; Jamba, Qwen3-Next, Granite 4, Nemotron-H and LFM2 have such
// layers between those with attention.
#include <cmath>

#include "compile/models/builder.h"

namespace tokamak {
namespace {

// Columns [begin, end) of [t, n].
Ref columns(ModelBuilder& b, Ref x, int64_t begin, int64_t end) {
  return b.op("slice", {x}, Value::Object{{"axis", 1}, {"start", begin}, {"end", end}});
}

// log(1 + exp(x)), also where exp(x) is not finite.
Ref softplus(ModelBuilder& b, Ref x) {
  Ref small = b.op("exp", {b.op("neg", {b.op("abs", {x})})});
  return b.op("add",
              {b.op("relu", {x}), b.op("log", {b.op("add", {small, b.constant("one", {1.0})})})});
}

// Inputs and vectors of the state space are one matrix, and may have factors of their own.
Ref scaled_inputs(ModelBuilder& b, Ref x) {
  const RecurrentConfig& r = b.config.recurrent;
  const BlockScales& s = b.config.block_scales;
  if (s.ssm_x == 1 && s.ssm_b == 1 && s.ssm_c == 1) return x;
  std::vector<double> factors(static_cast<size_t>(r.inner()), s.ssm_x);
  factors.insert(factors.end(), static_cast<size_t>(r.groups * r.state), s.ssm_b);
  factors.insert(factors.end(), static_cast<size_t>(r.groups * r.state), s.ssm_c);
  return b.op("mul", {x, b.constant("ssm_scale", factors)});
}

Ref time_steps(ModelBuilder& b, Ref x, const std::string& blk) {
  const RecurrentConfig& r = b.config.recurrent;
  Ref step = b.scaled(b.linear(x, blk + "ssm_step"), b.config.block_scales.ssm_step);
  Ref dt = softplus(b, b.op("add", {step, b.weight(blk + "ssm_dt.bias")}));
  if (r.step_low > 0) dt = b.op("maximum", {dt, b.constant("step_low", {r.step_low})});
  if (r.step_high > 0) dt = b.op("minimum", {dt, b.constant("step_high", {r.step_high})});
  return dt;
}

// A weight per head, as a factor of [t, heads, width].
Ref per_head(ModelBuilder& b, const std::string& name) {
  std::string heads = std::to_string(b.config.recurrent.heads);
  return b.op("reshape", {b.weight(name)},
              Value::Object{{"dims", Value::Array{heads, "1"}}, {"axes", Value::Array{"h", "hd"}}});
}

Ref decays(ModelBuilder& b, const std::string& blk) {
  Ref a = b.weight(blk + "ssm_a.weight");
  return b.config.recurrent.decay_log ? b.op("neg", {b.op("exp", {a})}) : a;
}

// Each group of channels is normalised for itself.
Ref group_norm(ModelBuilder& b, Ref y, const std::string& name) {
  const RecurrentConfig& r = b.config.recurrent;
  if (r.norm_groups == 0) return y;  // has no norm
  if (r.norm_groups == 1) return b.norm(y, name);
  int64_t width = r.inner() / r.norm_groups;
  Ref ones = b.constant("group_norm", std::vector<double>(static_cast<size_t>(width), 1.0));
  y = b.op("rms_norm", {b.heads(y, r.norm_groups, width), ones},
           Value::Object{{"eps", b.config.norm_eps}}, name);
  return b.op("mul", {b.merge_heads(y), b.weight(name + ".weight")});
}

Ref mixer(ModelBuilder& b, Ref x, int64_t layer) {
  const RecurrentConfig& r = b.config.recurrent;
  std::string blk = fmt::format("blk.{}.", layer);
  std::vector<Ref> conv = {scaled_inputs(b, b.linear(x, blk + "ssm_xbc")),
                           b.weight(blk + "ssm_conv1d.weight")};
  if (r.conv_bias) conv.push_back(b.weight(blk + "ssm_conv1d.bias"));
  Ref mixed = b.op("silu", {b.advance(layer, 0, "causal_conv", std::move(conv))});
  int64_t inner = r.inner(), vectors = r.groups * r.state;
  Ref input = b.heads(columns(b, mixed, 0, inner), r.heads, r.head_dim);
  Ref in = b.heads(columns(b, mixed, inner, inner + vectors), r.groups, r.state);
  Ref out = b.heads(columns(b, mixed, inner + vectors, r.channels()), r.groups, r.state);
  Ref y = b.advance(layer, 1, "ssm_scan", {input, time_steps(b, x, blk), decays(b, blk), in, out});
  y = b.op("add", {y, b.op("mul", {input, per_head(b, blk + "ssm_d.weight")})});
  y = b.merge_heads(y);
  if (!r.gated_norm) y = group_norm(b, y, blk + "ssm_norm");
  Ref gate = b.scaled(b.linear(x, blk + "ssm_gate"), b.config.block_scales.ssm_gate);
  y = b.op("mul", {y, b.op("silu", {gate})});
  if (r.gated_norm) y = group_norm(b, y, blk + "ssm_norm");
  return b.linear(y, blk + "ssm_out");
}

// Mamba: every channel has decays of its own, and the convolution's result decides what is read and
// written, and how fast.
Ref channel_mixer(ModelBuilder& b, Ref x, int64_t layer) {
  const RecurrentConfig& r = b.config.recurrent;
  std::string blk = fmt::format("blk.{}.", layer);
  std::vector<Ref> conv = {b.linear(x, blk + "ssm_in"), b.weight(blk + "ssm_conv1d.weight")};
  if (r.conv_bias) conv.push_back(b.weight(blk + "ssm_conv1d.bias"));
  Ref mixed = b.op("silu", {b.advance(layer, 0, "causal_conv", std::move(conv))});
  Ref all = b.linear(mixed, blk + "ssm_x");
  auto part = [&](int64_t begin, int64_t size, const char* stem) {
    Ref y = columns(b, all, begin, begin + size);
    if (!r.step_norms) return y;
    constexpr double kEpsilon = 1e-6F;  // of norms without weights, whatever that of the others is
    std::vector<double> ones(static_cast<size_t>(size), 1.0);
    return r.unit_step_norms ? b.op("rms_norm", {y, b.constant(stem, ones)},
                                    Value::Object{{"eps", kEpsilon}}, blk + stem)
                             : b.norm(y, blk + stem);
  };
  Ref dt = softplus(b, b.linear(part(0, r.step_rank, "ssm_dt_norm"), blk + "ssm_dt"));
  Ref in = b.heads(part(r.step_rank, r.state, "ssm_b_norm"), 1, r.state);
  Ref out = b.heads(part(r.step_rank + r.state, r.state, "ssm_c_norm"), 1, r.state);
  Ref input = b.heads(mixed, r.heads, 1);
  Ref y = b.advance(layer, 1, "ssm_scan", {input, dt, decays(b, blk), in, out});
  y = b.merge_heads(b.op("add", {y, b.op("mul", {input, per_head(b, blk + "ssm_d.weight")})}));
  y = b.op("mul", {y, b.op("silu", {b.linear(x, blk + "ssm_gate")})});
  return b.linear(y, blk + "ssm_out");
}

// Queries and keys have length one: rms_norm divides by the root of the mean square, here that of
// the sum is asked for.
Ref delta_attention(ModelBuilder& b, Ref x, int64_t layer) {
  const RecurrentConfig& r = b.config.recurrent;
  std::string blk = fmt::format("blk.{}.", layer);
  Ref mixed =
      b.op("concat",
           {b.linear(x, blk + "ssm_q"), b.linear(x, blk + "ssm_k"), b.linear(x, blk + "ssm_v")},
           Value::Object{{"axis", 1}});
  mixed = b.activation(
      b.advance(layer, 0, "causal_conv", {mixed, b.weight(blk + "ssm_conv1d.weight")}));
  int64_t keys = r.groups * r.state;
  auto n = static_cast<double>(r.state);
  auto unit = [&](int64_t begin, const char* name, double length) {
    Ref vectors = b.heads(columns(b, mixed, begin, begin + keys), r.groups, r.state);
    std::vector<double> scale(static_cast<size_t>(r.state), length / std::sqrt(n));
    return b.op("rms_norm", {vectors, b.constant(name, scale)}, Value::Object{{"eps", 1e-6 / n}});
  };
  Ref q = unit(0, "delta_query", 1 / std::sqrt(n)), k = unit(keys, "delta_key", 1);
  if (r.tiled) {
    std::vector<Ref> queries(static_cast<size_t>(r.heads / r.groups), q), same(queries.size(), k);
    q = b.op("concat", std::move(queries), Value::Object{{"axis", 1}});
    k = b.op("concat", std::move(same), Value::Object{{"axis", 1}});
  }
  Ref v = b.heads(columns(b, mixed, 2 * keys, r.channels()), r.heads, r.head_dim);
  Ref decay = decays(b, blk);
  Ref rate = b.op("sigmoid", {b.linear(x, blk + "ssm_rate")});
  Ref y = b.advance(layer, 1, "gated_delta",
                    {q, k, v, b.op("mul", {time_steps(b, x, blk), decay}), rate});
  Ref gate = b.op("silu", {b.heads(b.linear(x, blk + "ssm_gate"), r.heads, r.head_dim)});
  y = b.op("mul", {b.norm(y, blk + "ssm_norm"), gate});
  return b.linear(b.merge_heads(y), blk + "ssm_out");
}

// LFM2: a gate, a convolution over the last tokens of each channel, another gate.
Ref short_conv(ModelBuilder& b, Ref x, int64_t layer) {
  std::string blk = fmt::format("blk.{}.", layer);
  Ref in = b.op("mul", {b.linear(x, blk + "ssm_b"), b.linear(x, blk + "ssm_x")});
  Ref y = b.advance(layer, 0, "causal_conv", {in, b.weight(blk + "ssm_conv1d.weight")});
  return b.linear(b.op("mul", {b.linear(x, blk + "ssm_c"), y}), blk + "ssm_out");
}

}  // namespace

Ref recurrent_mixer(ModelBuilder& b, Ref x, int64_t layer) {
  const RecurrentConfig& r = b.config.recurrent;
  return r.delta           ? delta_attention(b, x, layer)
         : r.short_conv    ? short_conv(b, x, layer)
         : r.step_rank > 0 ? channel_mixer(b, x, layer)
                           : mixer(b, x, layer);
}

}  // namespace tokamak
