// Every pass alone and the whole pipeline against the reference interpreter on random graphs, bytes
// of states included. TK_FUZZ_GRAPHS sets how many, TK_FUZZ_SEED where to start.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "compile/simplify/check.h"
#include "compile/simplify/random_graph.h"
#include "compile/simplify/rules.h"
#include "graph/rewrite.h"

namespace tokamak {
namespace {

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoll(text) : otherwise;
}

class Fuzz : public testing::Test {
 protected:
  std::unique_ptr<Backend> backend_ = make_backend("cpu");

  // The graph after `passes` must compute what it did before.
  bool holds(const Module& module, std::vector<std::string> passes, uint64_t seed) {
    CompileOptions options;
    options.passes = passes;
    Module after = module.clone();
    Function& fn = *after.functions[0];
    for (const PassTiming& t : run_passes(after, fn, {*backend_, options})) fired_ += t.fired;
    verify_module(after);
    CheckOptions check{seed, 2, class_of(chosen_passes(options)), false};
    check.wide = check.cls == PassClass::kReal;
    CheckReport r = check_functions(*module.functions[0], fn, check);
    compared_ += r.runs;
    EXPECT_TRUE(r.same) << "seed " << seed << ", " << testing::PrintToString(passes) << ": "
                        << r.message << "\n"
                        << print_module(module) << print_function(fn);
    return r.same;
  }
  size_t fired_ = 0;
  int compared_ = 0;
};

TEST_F(Fuzz, PassesKeepTheMeaning) {
  int64_t graphs = from_environment("TK_FUZZ_GRAPHS", 40),
          first = from_environment("TK_FUZZ_SEED", 1);
  size_t nodes = 0;
  std::vector<std::string> all;
  for (const Pass& p : pipeline())
    if (p.cls != PassClass::kLossy) all.emplace_back(p.name);
  for (int64_t i = 0; i < graphs; ++i) {
    auto seed = static_cast<uint64_t>(first + i);
    Module module = random_graph(seed);
    verify_module(module);
    nodes += module.functions[0]->nodes().size();
    for (const std::string& pass : all)
      if (!holds(module, {pass}, seed)) return;
    if (!holds(module, all, seed)) return;
  }
  fmt::print("{} graphs, {} nodes, {} rewrites and folds, {} comparisons\n", graphs, nodes, fired_,
             compared_);
  EXPECT_GT(compared_, graphs * 4);
  EXPECT_GT(fired_, static_cast<size_t>(graphs));
}

// A pass that ran once has nothing left to do, and the order of the rules does not matter for where
// the exact ones end.
TEST_F(Fuzz, CanonicalFormIsAFixedPoint) {
  int moved = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Module module = random_graph(seed);
    CompileOptions options;
    options.passes = {"canonicalize"};
    run_passes(module, *module.functions[0], {*backend_, options});
    uint64_t hash = structural_hash(*module.functions[0]);
    auto again = run_passes(module, *module.functions[0], {*backend_, options});
    EXPECT_EQ(again[0].fired, 0u) << "seed " << seed << "\n" << print_module(module);
    EXPECT_EQ(structural_hash(*module.functions[0]), hash);

    std::vector<const RewriteRule*> reversed;
    for (const RewriteRule& r : rules_of("canonical")) reversed.insert(reversed.begin(), &r);
    Module other = random_graph(seed);
    Rewriter(other, reversed).run(*other.functions[0]);
    moved += structural_hash(*other.functions[0]) != hash;
  }
  EXPECT_LE(moved, 3) << "rules that do not meet again";
}

// The writes of a state are never dropped, whatever reads them.
TEST_F(Fuzz, EveryWriteSurvives) {
  size_t writes = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Module module = random_graph(seed);
    auto count = [&] {
      size_t n = 0;
      for (const Node& node : module.functions[0]->nodes()) n += node.op->writes_state;
      return n;
    };
    size_t before = count();
    run_passes(module, *module.functions[0], {*backend_, {}});
    EXPECT_EQ(count(), before) << "seed " << seed;
    writes += before;
  }
  EXPECT_GT(writes, 30u);
}

// Folds between the rounds of recognition are changes like any other: bisection counts them.
TEST_F(Fuzz, TheBudgetHoldsForFoldsToo) {
  const char* text =
      "module m format 1\nconstant one : f32[] = [1]\nconstant two : f32[] = [2]\nfunc f {\n"
      "%0 = input x : f32[d=8]\n%1 = add($one, $two)\n%2 = mul(%0, %1)\nreturn y = %2\n}\n";
  CompileOptions options;
  options.passes = {"recognize"};
  for (size_t budget = 0; budget < 4; ++budget) {
    Module module = parse_module(text);
    size_t left = budget;
    std::string last;
    PassContext context{*backend_, options, nullptr, &left, &last};
    auto timing = run_passes(module, *module.functions[0], context);
    size_t want = std::min<size_t>(budget, 2);  // the sum, and the product with one number
    EXPECT_EQ(timing[0].fired, want);
    EXPECT_EQ(left, budget - want);
    if (budget == 1) {
      EXPECT_EQ(last, "fold of %1 (add)");
    }
    EXPECT_EQ(print_module(module).find("scale") != std::string::npos, want == 2);
  }
}

TEST_F(Fuzz, BisectNamesAPlantedRule) {
  CompileOptions options;
  options.rules = load_rules("rule planted real: x: f32 silu(x) => sigmoid(x)", true);
  PassContext context{*backend_, options};
  int found = 0;
  for (uint64_t seed = 1; seed <= 400 && found < 3; ++seed) {
    Module module = random_graph(seed);
    options.disabled_passes = {"quantize-activations"};
    Culprit c = bisect(module, "step", context, {seed, 2, PassClass::kReal, false});
    if (!c.found) continue;
    ++found;
    EXPECT_EQ(c.pass, "user-rules");
    EXPECT_EQ(c.firing.rfind("rule planted at", 0), 0u) << c.firing;
    EXPECT_LE(c.checks, 16);
  }
  EXPECT_GE(found, 1);
}

}  // namespace
}  // namespace tokamak
