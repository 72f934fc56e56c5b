#include "graph/region.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "graph/evaluate.h"
#include "graph/rebuild.h"
#include "graph/test_models.h"

namespace tokamak {
namespace {

constexpr const char* kText = R"(module regions format 1
symbol T in 1..8
symbol B in 1..8
group full window 0 block 16
state kv in full per_token {k: f16[h=1, d=4], v: f16[h=1, d=4]}
weight w : f32[n=4]

func fused.rows.norm {
  %0 = input in0 : f32[t=T, d=4]
  %1 = input in1 : f32[t=T, d=4]
  %2 = input in2 : f32[n=4]
  %3 = add(%0, %1) : f32[t=T, d=4]
  %4 = rms_norm(%3, %2) {eps=1e-05} : f32[t=T, d=4]
  return out0 = %3
  return out1 = %4
}

func fused.write {
  %0 = input in0 : state<kv>
  %1 = input in1 : view<full>
  %2 = input in2 : i32[t=T]
  %3 = input in3 : i32[t=T]
  %4 = input in4 : f32[t=T, d=4]
  %5 = neg(%4) : f32[t=T, d=4]
  %6 = append(%0, %1, %2, %3, %5, %4) : state<kv>
  return kv = %6
  return out1 = %5
}

func step {
  %0 = input x : f32[t=T, d=4]
  %1 = input pos : i32[t=T]
  %2 = input seq : i32[t=T]
  %3 = input slot : i32[t=T]
  %4 = input q_start : i32[b=B + 1]
  %5 = input kv_len : i32[b=B]
  %6 = input view : view<full>
  %7 = input kv : state<kv>
  %8 = region(%0, %0, @w) {body="fused.rows.norm"} : f32[t=T, d=4], f32[t=T, d=4]
  %9 = reshape(%8.1) {axes=["t", "h", "d"], dims=["T", 1, 4]} : f32[t=T, h=1, d=4]
  %10 = attend(%9, %7, %6, %1, %2, %3, %4, %5) {scale=1.0} : f32[t=T, h=1, d=4]
  %11 = region_write(%7, %6, %2, %3, %8, %10) {body="fused.write"} : state<kv>, f32[t=T, d=4]
  return y = %11.1
  return z = %10
  return kv = %11
}
)";

std::string refusal(const std::string& text) {
  try {
    verify_module(parse_module(text));
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    return e.what();
  }
  return "accepted";
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

EvalResults<float> run_step(const Function& fn, uint64_t seed) {
  Rng rng(seed);
  SymbolValues symbols = {{"T", 3}, {"B", 2}};
  return evaluate<float>(fn,
                         convert_inputs<float>(random_inputs(fn, symbols, rng, Values::kNormal)));
}

TEST(Region, TextRoundTrips) {
  Module m = parse_module(kText);
  verify_module(m);
  EXPECT_EQ(print_module(m), kText);
  Module again = parse_module(print_module(m));
  EXPECT_EQ(structural_hash(*again.find_function("step")),
            structural_hash(*m.find_function("step")));
  EXPECT_EQ(body_names(m), (std::set<std::string>{"fused.rows.norm", "fused.write"}));
}

// The body counts, its name does not.
TEST(Region, IdentityIncludesTheBody) {
  std::string other = kText;
  for (int i = 0; i < 2; ++i) other = replaced(other, "fused.rows.norm", "fused.rows.other");
  uint64_t hash = structural_hash(*parse_module(kText).find_function("step"));
  EXPECT_EQ(structural_hash(*parse_module(other).find_function("step")), hash);
  other = replaced(kText, "eps=1e-05", "eps=1e-06");
  EXPECT_NE(structural_hash(*parse_module(other).find_function("step")), hash);
}

TEST(Region, MeansWhatItsBodyMeans) {
  Module m = parse_module(kText), plain = m.clone();
  Function& fn = *plain.find_function("step");
  inline_regions(plain, fn, [](const Node&) { return true; });
  verify_module(plain);
  for (const Node& node : fn.nodes()) EXPECT_FALSE(is_region(node));
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    EvalResults<float> a = run_step(*m.find_function("step"), seed), b = run_step(fn, seed);
    for (const char* name : {"y", "z"}) EXPECT_EQ(a.tensors.at(name).f, b.tensors.at(name).f);
    for (size_t p = 0; p < 2; ++p)
      EXPECT_EQ(a.states.at("kv").planes[p].data, b.states.at("kv").planes[p].data);
  }
  drop_unused_bodies(plain);
  EXPECT_EQ(plain.functions.size(), 1u);
}

TEST(Region, RebuildKeepsWritesAndNamesTheirReads) {
  Module m = parse_module(kText);
  Function& fn = *m.find_function("step");
  rebuild(m, fn, [](Function& to, const Node& node, const std::vector<Ref>& in) {
    return copy_node(to, node, in);
  });
  verify_module(m);
  EXPECT_EQ(print_module(m), kText);
  GraphStats stats = graph_stats(fn, {{"T", 2}, {"B", 1}});
  EXPECT_EQ(stats.per_op.at("region"), 1u);
  // The sum inside and the norm count; what is between them is not in memory twice.
  EXPECT_GT(stats.flops, graph_stats(*m.find_function("fused.write"), {{"T", 2}, {"B", 1}}).flops);
}

TEST(Region, SpecializeTakesTheBodyAlong) {
  Module m = parse_module(kText);
  Function& decode = specialize(m, "step", "decode", {{"T", SymExpr::symbol("B")}}, {});
  verify_module(m);
  for (const Node& node : decode.nodes()) {
    if (!is_region(node)) continue;
    for (const std::string& name : {node.attrs.at("body").as_string()}) {
      EXPECT_EQ(name.find("fused."), 0u);
      EXPECT_EQ(print_function(*m.find_function(name)).find("t=T"), std::string::npos);
    }
  }
  EXPECT_EQ(print_module(parse_module(print_module(m))), print_module(m));
}

TEST(Region, WhatDoesNotFitIsRefused) {
  auto expect = [](const std::string& text, std::string_view what) {
    EXPECT_NE(refusal(text).find(what), std::string::npos) << refusal(text);
  };
  expect(replaced(kText, "region(%0, %0, @w)", "region(%0, %0)"), "takes 3 inputs");
  expect(replaced(kText, "region(%0, %0, @w)", "region(%0, %1, @w)"), "input 1 is");
  expect(replaced(kText, "{body=\"fused.rows.norm\"", "{body=\"fused.nothing\""), "no function");
  expect(replaced(kText, "{body=\"fused.rows.norm\"}", "{kind=\"rows\"}"), "kind");
  expect(replaced(kText, "{body=\"fused.rows.norm\"}", ""), "body");
  expect(replaced(kText, "= region_write(", "= region("), "writes a state");
  expect(replaced(kText, "  return kv = %6\n", ""), "must be the state");
  expect(
      replaced(kText, "region_write(%7, %6, %2, %3, %8, %10)", "region_write(%7, %6, %2, %3, %8)"),
      "list this read among the inputs of that write");
  expect(replaced(kText, "add(%0, %1) : f32[t=T, d=4]", "add(%0, @w) : f32[t=T, d=4]"),
         "names a weight");
}

}  // namespace
}  // namespace tokamak
