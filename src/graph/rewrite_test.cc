#include "graph/rewrite.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "graph/evaluate.h"
#include "graph/test_models.h"

namespace tokamak {
namespace {

const char* const kHeader = R"(module m format 1
symbol T in 4..16
symbol S in 1..8
weight w : f32[n=8] from file.w
constant half : f32[] = [0.5]
func f {
  %0 = input x : f32[t=T, d=8]
  %1 = input y : f32[t=T, d=8]
  %2 = input z : f32[s=S, d=8]
)";

Module graph(const std::string& body) { return parse_module(kHeader + body + "\n}\n"); }

RewriteStats rewrite(Module& m, const std::string& rules, RewriteOptions options = {}) {
  std::vector<RewriteRule> parsed = parse_rules(rules);
  std::vector<const RewriteRule*> pointers;
  for (const RewriteRule& r : parsed) pointers.push_back(&r);
  RewriteStats stats = Rewriter(m, pointers, options).run(*m.functions[0]);
  verify_module(m);
  return stats;
}

std::string ops(const Module& m) {
  std::string out;
  for (const Node& n : m.functions[0]->nodes())
    if (n.op->tier != Tier::kStructural) out += fmt::format("{} ", n.op->name);
  return out;
}

struct Case {
  const char *body, *rules, *want;
  size_t fired;
};

void expect_rewrites(std::span<const Case> cases) {
  for (const Case& c : cases) {
    SCOPED_TRACE(std::string(c.body) + "\n" + c.rules);
    Module m = graph(c.body);
    RewriteStats stats = rewrite(m, c.rules);
    EXPECT_EQ(stats.fired, c.fired);
    EXPECT_EQ(ops(m), c.want) << print_module(m);
  }
}

// T in 4..16 and S in 1..8 may have the same value: then neither "equal" nor "different" is known.
TEST(Rewrite, ConditionsThatSymbolsDoNotDecideAreFalse) {
  const std::pair<const char*, bool> cases[] = {
      {"m != n", false},
      {"m == n", false},
      {"not (m == n)", false},
      {"not same_shape(x, y)", false},
      {"dims(x) != dims(y)", false},
      {"not known(m == n)", true},
      {"m == n or rank(x) == 1", true},  // one operand decides
      {"m == n and rank(x) == 2", false},
      {"m != n + 16", true},  // different for all values
      {"[m, 1] != [n, 2]", true},
      {"2 * m / m == 2", true},
      {"m / n == 1", false},
  };
  for (const auto& [condition, holds] : cases) {
    SCOPED_TRACE(condition);
    Module m = graph(
        "%3 = reduce_sum(%0) {axis=1}\n%4 = reduce_sum(%2) {axis=1}\n%5 = "
        "concat(%3, %4) {axis=0}\n%6 = neg(%5)\nreturn r = %6");
    RewriteStats stats = rewrite(m, fmt::format("rule a exact: x: f32[m] y: f32[n] "
                                                "neg(concat(x, y){{axis=0}}) => "
                                                "abs(concat(x, y){{axis=0}}) if {}",
                                                condition));
    EXPECT_EQ(stats.fired, holds ? 1u : 0u);
  }
}

TEST(Rewrite, Table) {
  const Case cases[] = {
      // both orders of a commutative op, and a sub-pattern used twice is one node
      {"%3 = sigmoid(%0)\n%4 = mul(%3, %0)\nreturn r = %4",
       "rule a real: x: f32 mul(x, sigmoid(x)) => silu(x)", "silu ", 1},
      {"%3 = sigmoid(%1)\n%4 = mul(%0, %3)\nreturn r = %4",
       "rule a real: x: f32 mul(x, sigmoid(x)) => silu(x)", "sigmoid mul ", 0},
      // what a rule makes is looked at again
      {"%3 = neg(%0)\n%4 = neg(%3)\n%5 = neg(%4)\n%6 = neg(%5)\nreturn r = %6",
       "rule a exact: x: f32 neg(neg(x)) => x", "", 2},
      // used elsewhere: the inner node stays, and a rule may ask for that
      {"%3 = exp(%0)\n%4 = neg(%3)\nreturn r = %4\nreturn s = %3",
       "rule a real: y: f32 neg(y) => sub(y, y) if uses(y) == 1", "exp neg ", 0},
      // attributes bind names, defaults count, axes are counted from the front
      {"%3 = reduce_sum(%0) {axis=1}\nreturn r = %3",
       "rule a real: x: f32 reduce_sum(x){axis=-1, keep=k} => reduce_max(x){axis=-1, keep=k} if k "
       "== 0",
       "reduce_max ", 1},
      {"%3 = reduce_sum(%0) {axis=0}\nreturn r = %3",
       "rule a real: x: f32 reduce_sum(x){axis=-1, keep=k} => reduce_max(x){axis=-1, keep=k}",
       "reduce_sum ", 0},
      // with symbols a comparison must hold for all values: T is at least 4, S only 1
      {"%3 = slice(%0) {axis=0, start=0, end=1}\n%4 = neg(%3)\n%5 = slice(%2) {axis=0, start=0, "
       "end=1}\n"
       "%6 = neg(%5)\nreturn r = %4\nreturn s = %6",
       "rule a real: x: f32[n, d] neg(slice(x){axis=0, start=0, end=e}) => "
       "abs(slice(x){axis=0, start=0, end=e}) if n >= e + 3",
       "slice abs slice neg ", 1},
      // another type never replaces
      {"%3 = cast(%0) {dtype=\"f16\"}\nreturn r = %3", "rule a exact: cast(x){..} => x", "cast ",
       0},
      // numbers are told apart bit by bit
      {"%3 = scale(%0) {value=-0.0}\nreturn r = %3",
       "rule a exact: x: f32 scale(x){value=0.0} => neg(x)", "scale ", 0},
      // weights get one more step in their recipe
      {"%3 = scale(@w) {value=0.5}\n%4 = rms_norm(%0, %3) {eps=1e-5}\nreturn r = %4",
       "rule a exact: w: weight f32 scale(w){value=a} => recipe(w){scale=a}", "rms_norm ", 1},
  };
  expect_rewrites(cases);
}

// A storage type is part of a node: a pattern that does not name it does not match.
TEST(Rewrite, StorageTypesAreKept) {
  const Case cases[] = {
      {"%3 = neg(%0) {out=\"bf16\"}\n%4 = neg(%3)\nreturn r = %4",
       "rule a exact: x: f32 neg(neg(x)) => x", "neg neg ", 0},
      {"%3 = sigmoid(%0)\n%4 = mul(%3, %0) {out=\"f16\"}\nreturn r = %4",
       "rule a real: x: f32 mul(x, sigmoid(x)) => silu(x)", "sigmoid mul ", 0},
      {"%3 = rms_norm(%0, @w) {eps=1e-5, out=\"f16\"}\n%4 = neg(%3)\nreturn r = %4",
       "rule a real: x: f32 w: f32 neg(rms_norm(x, w){..}) => neg(rms_norm(x, w){eps=1e-5})",
       "rms_norm neg ", 0},
      // a rule that names it keeps it
      {"%3 = sigmoid(%0)\n%4 = mul(%3, %0) {out=\"f16\"}\nreturn r = %4",
       "rule a real: x: f32 mul(x, sigmoid(x)){out=t} => silu(x){out=t}", "silu ", 1},
      {"%3 = sigmoid(%0)\n%4 = mul(%3, %0) {out=\"f16\"}\nreturn r = %4",
       "rule a real: x: f32 mul(x, sigmoid(x)){out=t} => silu(x)", "sigmoid mul ", 0},
      // and nodes that differ in it are two
      {"%3 = exp(%0)\n%4 = exp(%0) {out=\"f16\"}\n%5 = exp(%0) {out=\"f16\"}\n"
       "%6 = add(%3, %4)\n%7 = add(%6, %5)\nreturn r = %7",
       "rule a exact: x: f32 neg(neg(x)) => x", "exp exp add add ", 0},
  };
  expect_rewrites(cases);
}

TEST(Rewrite, CyclesAndBudget) {
  Module m = graph("%3 = add(%0, %1)\nreturn r = %3");
  RewriteStats stats = rewrite(
      m, "rule a real: sub(x, neg(y)) => add(x, y)  rule b real: add(x, y) => sub(x, neg(y))");
  ASSERT_EQ(stats.cycles.size(), 1u);
  EXPECT_EQ(stats.cycles[0], "b, a");
  RewriteOptions options;
  options.budget = 7;
  Module n = graph("%3 = exp(%0)\nreturn r = %3");
  RewriteStats growing = rewrite(n, "rule g real: x: f32 exp(x) => exp(neg(x))", options);
  EXPECT_TRUE(growing.exhausted);
  EXPECT_EQ(growing.fired, 7u);
}

TEST(Rewrite, ProvenanceNamesTheRuleAndThePlace) {
  Module m = graph("%3 = sigmoid(%0)\n%4 = mul(%3, %0)  # gate [\"import\"]\nreturn r = %4");
  rewrite(m, "rule to_silu real: x: f32 mul(x, sigmoid(x)) => silu(x)");
  const Node& node = m.functions[0]->nodes().back();
  EXPECT_EQ(node.name, "gate");
  EXPECT_EQ(node.provenance, (std::vector<std::string>{"import", "rule to_silu @ %4"}));
}

// A read that a rule replaces: the write after it names the new one.
TEST(Rewrite, ReadsStayOrdered) {
  Module m = two_writes();
  rewrite(m,
          "rule a real: q: f32 s: state v: view attend(q, s, v, p, e, l, t, k){scale=1.0} => "
          "neg(attend(q, s, v, p, e, l, t, k){scale=2.0})");
  const Function& fn = *m.functions[0];
  EXPECT_EQ(ops(m), "append attend neg append ");
  const Node& second = fn.node(fn.results()[1].ref.node);
  ASSERT_EQ(second.op->name, "append");
  EXPECT_EQ(fn.node(second.inputs.back().node).op->name, "attend");
}

TEST(Rewrite, InterpreterRunsStates) {
  Module m = two_writes();
  const Function& fn = *m.functions[0];
  Rng rng(3);
  EvalInputs<double> in = random_inputs(fn, random_symbols(fn, rng), rng, Values::kNormal);
  EvalResults<float> out = evaluate<float>(fn, convert_inputs<float>(in));
  ASSERT_TRUE(out.states.contains("kv.0"));
  EXPECT_NE(out.states.at("kv.0").planes[0].data,
            convert_inputs<float>(in).states.at("kv.0").planes[0].data);
  EXPECT_EQ(out.tensors.at("out").dims, in.tensors.at("q").dims);
}

}  // namespace
}  // namespace tokamak
