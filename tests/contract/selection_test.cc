// Which kernel runs a call: the toy backend lists kernels that differ in guard, numeric class or
// weight layout, and the plans and `explain` must say what was chosen and why the others were not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/file.h"
#include "compile/explain/explain.h"
#include "compile/fuse/report.h"
#include "compile/open_model.h"
#include "tests/contract/toy_backend.h"

namespace tokamak {
namespace {

const std::filesystem::path kFolder = TK_PLAN_GOLDEN;

double one_us(const KernelDesc&, const KernelWork&, const Machine&) { return 1e-6; }
double two_us(const KernelDesc&, const KernelWork&, const Machine&) { return 2e-6; }
double three_us(const KernelDesc&, const KernelWork&, const Machine&) { return 3e-6; }
double free_for_few_rows(const KernelDesc&, const KernelWork& work, const Machine&) {
  return work.m <= 1 ? 0 : 1e-3;
}

constexpr const char* kMatrices = "linear(f32, weight *, weight *)";
constexpr const char* kStrict = "f32, sums in f64";

KernelDesc any_op() {
  return {.name = "toy.op",
          .pattern = "*",
          .weight_layout = "",
          .numeric_class = kStrict,
          .cost = three_us};
}
KernelDesc matrix(const char* name,
                  double (*cost)(const KernelDesc&, const KernelWork&, const Machine&)) {
  return {.name = name,
          .pattern = kMatrices,
          .weight_layout = "",
          .numeric_class = kStrict,
          .cost = cost};
}

struct Compiled {
  PlanSet set;
  std::shared_ptr<FusionReport> fusion = std::make_shared<FusionReport>();

  // The choice for a call in the first or last plan of a function.
  const KernelChoice& choice(const std::string& function, bool last,
                             const std::string& call) const {
    const KernelChoice* found = nullptr;
    for (const KernelChoice& c : fusion->choices)
      if (c.function == function && c.call == call && (last || !found)) found = &c;
    TK_CHECK(found, "no choice for {} {}", function, call);
    return *found;
  }
  // Why `kernel` does not run it.
  static std::string reason(const KernelChoice& choice, const std::string& kernel) {
    for (const KernelChoice::Loser& l : choice.losers)
      if (l.kernel == kernel) return l.reason;
    return choice.kernel == kernel ? "chosen" : "unknown";
  }
  std::set<std::string> kernels() const {
    std::set<std::string> out;
    for (const KernelEntry& k : set.kernels) out.insert(k.name);
    return out;
  }
  std::string layout(const std::string& weight) const {
    for (const WeightEntry& w : set.weights)
      if (w.name == weight) return w.layout;
    return "absent";
  }
};

// tests/golden/plan/decoder.tkg: its matrices have k = 32, 64 and 96, and the embedding is tied.
Compiled compile(const Backend& backend) {
  Compiled out;
  Module module = parse_module(read_text_file(kFolder / "decoder.tkg"));
  CompileOptions options;
  options.machine = kFolder / "machine.json";
  options.context = 128;
  options.activations = "f32";
  options.max_sequences = options.max_logit_rows = 8;
  options.max_tokens = 64;
  options.fusion = out.fusion;
  ModelConfig config;
  config.name = module.name;
  config.layers = 1;
  config.vocab = 96;
  config.hidden = 64;
  out.set = compile_module(module, config, backend, options);
  check_plan_set(out.set);
  return out;
}

std::string explained(const Compiled& c, const std::string& function,
                      const std::vector<std::string>& shape) {
  ExplainRequest r;
  r.model = c.set.model;
  r.function = function;
  r.mode = "compiled";
  r.shape = parse_shape(function, shape);
  r.backend = "toy";
  r.isa = "toy";
  r.machine = load_machine_file(kFolder / "machine.json");
  r.set = &c.set;
  r.fusion = c.fusion.get();
  return explain_text(explain(r));
}

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Selection, AGuardExcludesAKernelFromThePlansAndShapesThatItDoesNotAdmit) {
  KernelDesc few = matrix("toy.few_rows", two_us), wide = matrix("toy.k96", one_us);
  few.guard = {{.extent = 'm', .hi = 4}};
  wide.guard = {{.extent = 'k', .multiple = 96}};
  ToyBackend backend({any_op(), few, wide});
  Compiled c = compile(backend);
  using C = Compiled;
  const KernelChoice& one = c.choice("decode", false, "blk.0.attn_q");  // m = 1, k = 64
  EXPECT_EQ(one.kernel, "toy.few_rows");
  EXPECT_EQ(C::reason(one, "toy.k96"), "guard k % 96 = 0");
  EXPECT_EQ(C::reason(one, "toy.op"), "slower");
  const KernelChoice& many = c.choice("step", true, "blk.0.attn_q");  // m up to 64
  EXPECT_EQ(many.kernel, "toy.op");
  EXPECT_EQ(C::reason(many, "toy.few_rows"), "guard m <= 4");
  EXPECT_EQ(C::reason(many, "toy.k96"), "guard k % 96 = 0");
  EXPECT_EQ(c.choice("decode", false, "blk.0.ffn_down").kernel, "toy.k96");
  EXPECT_EQ(c.choice("step", true, "blk.0.ffn_down").kernel, "toy.k96");
}

// A fused kernel with a guard: one call where it holds, op by op where it does not, and never a
// region where it holds nowhere. The text is what a user reads.
TEST(Selection, ExplainSaysWhichGuardExcludesAFusedKernel) {
  KernelDesc few = {.name = "toy.norm_linears",
                    .pattern = "[rms_norm] -> linear(f32, weight *, weight *)+",
                    .weight_layout = "",
                    .numeric_class = "",
                    .guard = {{.extent = 'm', .hi = 16}},
                    .cost = one_us};
  KernelDesc gated = {.name = "toy.gated",
                      .pattern = "linear(f32, weight *, weight *)+ -> [silu mul]",
                      .weight_layout = "",
                      .numeric_class = "",
                      .guard = {{.extent = 'k', .multiple = 128}},
                      .cost = one_us};
  ToyBackend backend({any_op(), few, gated});
  Compiled c = compile(backend);
  std::string decode = explained(c, "decode", {"B=2", "S=64"}),
              step = explained(c, "step", {"B=2", "T=20", "S=64"});
  EXPECT_NE(decode.find("toy.norm_linears"), std::string::npos);
  EXPECT_NE(step.find("not toy.norm_linears: guard m <= 16"), std::string::npos) << step;
  EXPECT_NE(step.find("toy.gated"), std::string::npos);
  EXPECT_FALSE(c.kernels().contains("toy.gated"));
  std::filesystem::path path = kFolder / "decoder.toy.explain";
  if (std::getenv("TK_GOLDEN_WRITE")) write_text_file(path, decode + "\n" + step);
  EXPECT_EQ(read_text_file(path), decode + "\n" + step);
}

// The sum before blk.0.ffn_norm is also the residual of the next sum. Regions of a kernel that can
// store it may have it as a result; those of one that cannot begin after it.
TEST(Selection, WhatIsComputedBeforeAnAnchorLeavesTheRegionOnlyIfTheKernelStoresIt) {
  KernelDesc fused = {.name = "toy.add_norm_linears",
                      .pattern = "[add rms_norm] -> linear(f32, weight *, weight *)+",
                      .weight_layout = "",
                      .numeric_class = "",
                      .cost = one_us};
  // Values other than an anchor's results that leave a region.
  auto leaving = [](const Compiled& c) {
    int n = 0;
    for (const Region& region : c.set.regions)
      for (uint32_t value : region.results)
        if (!region.pieces[static_cast<size_t>(region.producer(value))].is_anchor()) ++n;
    return n;
  };
  Compiled stores = compile(ToyBackend({any_op(), fused}));
  fused.before_leaves = false;
  Compiled keeps = compile(ToyBackend({any_op(), fused}));
  ASSERT_TRUE(keeps.kernels().contains("toy.add_norm_linears"));
  EXPECT_GT(leaving(stores), 0);
  EXPECT_EQ(leaving(keeps), 0);
}

TEST(Selection, ACheaperKernelOfAWeakerNumericClassIsNotTaken) {
  KernelDesc loose = matrix("toy.loose", one_us);
  loose.numeric_class = "f16 sums";
  ToyBackend backend({any_op(), loose});
  Compiled c = compile(backend);
  EXPECT_FALSE(c.kernels().contains("toy.loose"));
  const KernelChoice& choice = c.choice("decode", false, "output");
  EXPECT_EQ(choice.kernel, "toy.op");
  EXPECT_EQ(Compiled::reason(choice, "toy.loose"), "numeric class");
}

// Batching changes no bit: where the preferred class has no kernel in some plan, no plan uses it.
TEST(Selection, OneNumericClassPerOpInAllPlans) {
  KernelDesc strict = matrix("toy.strict", one_us), loose = matrix("toy.loose", three_us);
  strict.guard = {{.extent = 'm', .hi = 4}};
  loose.numeric_class = "f16 sums";
  KernelDesc rest = any_op();
  rest.numeric_class = "f16 sums";
  ToyBackend backend({strict, loose, rest});
  Compiled c = compile(backend);
  const KernelChoice& choice = c.choice("decode", false, "blk.0.attn_q");
  EXPECT_EQ(choice.kernel, "toy.loose");
  EXPECT_EQ(Compiled::reason(choice, "toy.strict"), "numeric class");
}

TEST(Selection, AWeightHasOneLayoutInAllPlans) {
  KernelDesc panel = matrix("toy.panel", one_us);
  panel.weight_layout = "panel";
  ToyBackend backend({any_op(), panel});
  Compiled c = compile(backend);
  EXPECT_EQ(c.layout("blk.0.ffn_up.weight"), "panel");  // cheaper everywhere
  EXPECT_EQ(c.choice("step", true, "blk.0.ffn_up").kernel, "toy.panel");
  // The embedding is read by rows as well: a panel would be a second copy.
  EXPECT_EQ(c.layout("token_embd.weight"), "");
  const KernelChoice& tied = c.choice("decode", false, "output");
  EXPECT_EQ(tied.kernel, "toy.op");
  EXPECT_EQ(Compiled::reason(tied, "toy.panel"), "layout panel");
  std::set<std::string> names;
  for (const WeightEntry& w : c.set.weights) EXPECT_TRUE(names.insert(w.name).second) << w.name;

  // Cheaper for one row, and much slower for many: the plan for one row would need its own copy.
  panel.cost = free_for_few_rows;
  ToyBackend uneven({any_op(), panel});
  Compiled d = compile(uneven);
  EXPECT_EQ(d.layout("blk.0.ffn_up.weight"), "");
  const KernelChoice& one = d.choice("decode", false, "blk.0.ffn_up");
  EXPECT_EQ(one.kernel, "toy.op");
  EXPECT_EQ(Compiled::reason(one, "toy.panel"), "layout panel");
}

// A fused kernel with a layout of its own is no reason for a second copy either: op by op is
// possible in rows.
TEST(Selection, AFusedKernelInAnotherLayoutRunsOnlyWhereTheWeightHasIt) {
  KernelDesc fused = {.name = "toy.norm_linears",
                      .pattern = "[rms_norm] -> linear(f32, weight *, weight *)+",
                      .weight_layout = "panel",
                      .numeric_class = "",
                      .cost = one_us};
  ToyBackend backend({any_op(), fused});
  Compiled c = compile(backend);
  EXPECT_EQ(c.layout("blk.0.ffn_up.weight"), "panel");
  EXPECT_EQ(c.layout("token_embd.weight"), "");
  EXPECT_EQ(Compiled::reason(c.choice("decode", false, "output_norm+output"), "toy.norm_linears"),
            "layout panel");
}

TEST(Selection, UsesWithoutACommonLayoutAreAnError) {
  KernelDesc panel = matrix("toy.panel", one_us), rows = any_op();
  panel.weight_layout = "panel";
  panel.numeric_class = "panels";
  rows.numeric_class = "rows";
  ToyBackend backend({panel, rows});  // the preferred class of linear exists in panels only
  std::string error = error_of([&] { compile(backend); });
  EXPECT_NE(error.find("weight token_embd.weight: kernels of backend toy for linear read it as "
                       "panel, those of its other uses as rows"),
            std::string::npos)
      << error;
}

TEST(Selection, APlanWithAnUnknownKernelFailsAtLoadWithBothNames) {
  std::string path = std::string(std::getenv("TOKAMAK_TINY_MODELS")) + "/llama";
  std::vector<std::unique_ptr<Backend>> backends;
  backends.push_back(std::make_unique<ToyBackend>(std::vector<KernelDesc>{any_op()}));
  for (const char* name : {"cpu", "ref"}) backends.push_back(make_backend(name, {2, ""}));
  for (auto& backend : backends) {
    SCOPED_TRACE(backend->name());
    auto source = compile_model(path, *backend, {}, nullptr);
    LoadOptions load;
    load.blocks.assign(source->plans().groups.size(), 4);
    PlanSet plans = source->plans();
    plans.kernels[0].name = "abacus.add";
    std::string error = error_of([&] { backend->load(plans, source->weights(), load); });
    EXPECT_NE(error.find("asks for abacus.add (version 1)"), std::string::npos) << error;
    EXPECT_NE(error.find(backend->name()), std::string::npos) << error;
    plans = source->plans();
    plans.kernels[0].abi = 7;
    error = error_of([&] { backend->load(plans, source->weights(), load); });
    EXPECT_NE(error.find(source->plans().kernels[0].name + " (version 7)"), std::string::npos)
        << error;
    EXPECT_NE(error.find("has " + source->plans().kernels[0].name + " (version 1)"),
              std::string::npos)
        << error;
  }
}

}  // namespace
}  // namespace tokamak
