// Every op of docs/ops.md runs on the cpu backend and agrees with its definition.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "backend/backend.h"
#include "compile/simplify/check_backend.h"
#include "graph/graph.h"
#include "ops/op.h"

namespace tokamak {
namespace {

struct GraphCase {
  std::set<std::string_view> ops;
  const char* text;
};

// What other tests run on the cpu: sampling (sampling_test.cc) and the models' own ops.
const std::set<std::string_view> kElsewhere = {
    "penalize_tokens",  "penalize_repeats", "bias_tokens",  "allow_tokens",   "run_stages",
    "keep_top_n_sigma", "temper",           "keep_min_p",   "keep_top_k",     "keep_typical",
    "keep_top_p",       "exclude_top",      "choose_token", "token_logprobs", "append",
    "attend",           "attend_rows",      "mean_rows",    "quantize"};

const GraphCase kCases[] = {
    {{"add", "sub", "mul", "div", "maximum", "minimum"}, R"(
  %0 = input x : f32[t=T, d=6]
  %1 = input y : f32[t=T, d=6]
  %2 = add(%0, %1)
  %3 = sub(%2, $c)
  %4 = mul(%3, %1)
  %5 = div(%4, $c)
  %6 = maximum(%5, %0)
  %7 = minimum(%6, %1)
  return y = %7)"},
    {{"neg", "abs", "exp", "log", "sqrt", "rsqrt", "square"}, R"(
  %0 = input x : f32[t=T, d=6]
  %1 = abs(%0)
  %2 = add(%1, $c)
  %3 = log(%2)
  %4 = neg(%3)
  %5 = exp(%4)
  %6 = sqrt(%5)
  %7 = square(%6)
  %8 = add(%7, $c)
  %9 = rsqrt(%8)
  return y = %9)"},
    {{"sin", "cos", "tanh", "erf", "sigmoid", "relu", "silu", "gelu", "scale", "softcap"}, R"(
  %0 = input x : f32[t=T, d=6]
  %1 = sin(%0)
  %2 = cos(%1)
  %3 = tanh(%2)
  %4 = erf(%3)
  %5 = sigmoid(%4)
  %6 = relu(%5)
  %7 = silu(%6)
  %8 = gelu(%7) {approximate="none"}
  %9 = scale(%8) {value=3.0}
  %10 = softcap(%9) {cap=2.0}
  return y = %10)"},
    {{"cast", "compare", "select"}, R"(
  %0 = input x : f32[t=T, d=6]
  %1 = input y : f32[t=T, d=6]
  %2 = compare(%0, %1) {kind="lt"}
  %3 = select(%2, %0, %1)
  %4 = cast(%2) {dtype="f32"}
  %5 = add(%3, %4)
  return y = %5)"},
    {{"matmul"}, R"(
  %0 = input x : f32[t=T, m=3, k=5]
  %1 = input y : f32[t=T, k=5, n=4]
  %2 = matmul(%0, %1)
  return y = %2)"},
    {{"matmul"}, R"(
  %0 = input x : f32[t=T, k=5]
  %1 = matmul(%0, @table)
  return y = %1)"},
    {{"reduce_sum"}, R"(
  %0 = input x : f32[t=T, m=3, k=5]
  %1 = reduce_sum(%0) {axis=1, keep=0}
  return y = %1)"},
    {{"reduce_max"}, R"(
  %0 = input x : f32[t=T, m=3, k=5]
  %1 = reduce_max(%0) {axis=2, keep=1}
  return y = %1)"},
    {{"reduce_mean"}, R"(
  %0 = input x : f32[t=T, d=6]
  %1 = reduce_mean(%0) {axis=1, keep=1}
  return y = %1)"},
    {{"reshape", "transpose", "slice", "concat", "broadcast"}, R"(
  %0 = input x : f32[t=T, d=6]
  %1 = reshape(%0) {dims=["T", 2, 3], axes=["t", "a", "b"]}
  %2 = transpose(%1) {perm=[0, 2, 1]}
  %3 = slice(%2) {axis=1, start=1, end=3}
  %4 = concat(%3, %3) {axis=2}
  %5 = reshape(%4) {dims=["T", 8], axes=["t", "d"]}
  %6 = broadcast($c) {dims=["T", 6], axes=["t", "d"]}
  %7 = concat(%5, %6) {axis=1}
  return y = %7)"},
    {{"gather", "iota", "embed"}, R"(
  %0 = input ids : i32[t=T]
  %1 = embed(%0, @table)
  %2 = iota() {n="T"}
  %3 = gather(%1, %2) {axis=0}
  return y = %3)"},
    {{"top_k"}, R"(
  %0 = input x : f32[t=T, d=6]
  %1 = top_k(%0) {k=3}
  %2 = cast(%1.1) {dtype="f32"}
  %3 = mul(%1, %2)
  return y = %3)"},
    {{"identity", "dropout"}, R"(
  %0 = input x : f32[t=T, d=6]
  %1 = identity(%0)
  %2 = dropout(%1) {p=0.5}
  return y = %2)"},
    {{"linear", "rms_norm", "layer_norm", "softmax"}, R"(
  %0 = input x : f32[t=T, d=6]
  %1 = rms_norm(%0, $c) {eps=1e-5}
  %2 = linear(%1, @square)
  %3 = layer_norm(%2, $c, $c) {eps=1e-5}
  %4 = softmax(%3)
  return y = %4)"},
    {{"rope"}, R"(
  %0 = input x : f32[t=T, h=2, d=4]
  %1 = input pos : i32[t=T]
  %2 = rope(%0, %1, $freq)
  return y = %2)"},
    {{"sdpa"}, R"(
  %0 = input x : f32[t=T, a=3, d=4]
  %1 = input y : f32[t=T, s=5, d=4]
  %2 = input z : f32[t=T, s=5, v=6]
  %3 = sdpa(%0, %1, %2) {scale=0.5, causal=1}
  return y = %3)"},
    {{"lora"}, R"(
  %0 = input x : f32[t=T, d=6]
  %1 = input adapter : i32[t=T]
  %2 = lora(%0, @down, @up, %1)
  return y = %2)"},
    {{"head_linear"}, R"(
  %0 = input x : f32[t=T, h=6, d=6]
  %1 = head_linear(%0, @experts)
  return y = %1)"},
    {{"moe_route"}, R"(
  %0 = input x : f32[t=T, d=6]
  %1 = moe_route(%0, $c) {k=2, gate="sigmoid", normalize=1, scale=2.5, groups=3, used_groups=2}
  %2 = moe_dispatch(%0, %1.1) {count=6}
  %3 = grouped_linear(%2, @experts, %2.1, @expert_bias)
  %4 = moe_combine(%3, %2.2, %2.1, %1)
  return y = %4)"},
    {{"moe_dispatch", "grouped_linear", "moe_combine", "top_k"}, R"(
  %0 = input x : f32[t=T, d=6]
  %1 = linear(%0, @square)
  %2 = softmax(%1)
  %3 = top_k(%2) {k=2}
  %4 = moe_dispatch(%0, %3.1) {count=6}
  %5 = grouped_linear(%4, @experts, %4.1)
  %6 = moe_combine(%5, %4.2, %4.1, %3)
  return y = %6)"},
};

std::string module_text(const char* body) {
  return std::string(R"(module ops format 1
symbol T in 1..7
weight table : f16[v=5, d=4] from table
weight square : f32[n=6, k=6] from square
weight down : f16[s=3, r=2, k=6] from down
weight up : f32[s=3, n=4, r=2] from up
weight experts : f16[e=6, n=3, k=6] from experts
weight expert_bias : f32[e=6, n=3] from expert_bias
constant c : f32[d=6] = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
constant freq : f32[n=2] = [1.0, 0.01]

func f {)") +
         body + "\n}\n";
}

TEST(EveryOp, RunsOnTheCpuAsItIsDefined) {
  auto backend = make_backend("cpu", {2, {}});
  std::set<std::string_view> seen = kElsewhere;
  for (const GraphCase& c : kCases) {
    SCOPED_TRACE(c.text);
    seen.insert(c.ops.begin(), c.ops.end());
    Module module = parse_module(module_text(c.text));
    const Function& f = *module.find_function("f");
    for (std::string_view op : c.ops) {
      bool used = false;
      for (const Node& node : f.nodes()) used = used || node.op->name == op;
      EXPECT_TRUE(used) << op;
    }
    CheckReport report = check_on_backend(f, f, *backend, {});
    EXPECT_TRUE(report.same) << report.message;
    EXPECT_GT(report.runs, 0);
  }
  for (const OpDef* op : all_ops()) {
    if (op->tier == Tier::kStructural || op->tier == Tier::kRegion) continue;
    EXPECT_TRUE(seen.contains(op->name)) << op->name << " has no case";
  }
}

}  // namespace
}  // namespace tokamak
