// The backend of toy_backend.h with two kernels: one for single ops, one for a norm before matrices
// that share it. Patterns are matched, regions made and kernels chosen from what kernels() says,
// and the plans run to the reference's logits.
#include <gtest/gtest.h>

#include "compile/fuse/report.h"
#include "compile/open_model.h"
#include "tests/contract/toy_backend.h"
#include "tests/numerics/model_runner.h"

namespace tokamak {
namespace {

// Good for few rows: a start, and then every row at a time.
double fused_cost(const KernelDesc&, const KernelWork& work, const Machine&) {
  return 1e-6 + 1e-6 * work.m;
}
double free_cost(const KernelDesc&, const KernelWork&, const Machine&) { return 0; }
uint64_t inside_bytes(const KernelWork& work) { return static_cast<uint64_t>(work.inside_bytes); }
double op_cost(const KernelDesc&, const KernelWork&, const Machine&) { return 3e-6; }

std::vector<KernelDesc> two_kernels() {
  return {{.name = "toy.op",
           .pattern = "*",
           .weight_layout = "",
           .numeric_class = "f32, sums in f64",
           .cost = op_cost},
          {.name = "toy.norm_linears",
           .pattern = "[rms_norm] -> linear(f32, weight *, weight *)+",
           .weight_layout = "",
           .numeric_class = "",
           .cost = fused_cost,
           .scratch = inside_bytes},
          // For a newer model, which this device is not.
          {.name = "toy.norm_linears_2",
           .pattern = "[rms_norm] -> linear(f32, weight *, weight *)+",
           .weight_layout = "",
           .numeric_class = "",
           .needs = "toy+v2",
           .cost = free_cost}};
}

CompileOptions toy_options(const RunnerOptions& options) {
  CompileOptions compile;
  compile.activations = options.activations;
  compile.kv_dtype = options.kv_dtype;
  compile.max_sequences = options.sequences;
  compile.max_tokens = compile.max_logit_rows = options.max_tokens;
  compile.fusion = std::make_shared<FusionReport>();
  return compile;
}

TEST(Contract, ABackendInOneFileRunsAModel) {
  std::string path = std::string(std::getenv("TOKAMAK_TINY_MODELS")) + "/llama";
  RunnerOptions options;
  options.sequences = 32;
  std::map<std::string, int> runs;
  CompileOptions compile = toy_options(options);
  auto backend = std::make_unique<ToyBackend>(two_kernels(), &runs);
  auto source = compile_model(path, *backend, compile, nullptr);
  ModelRunner toy(std::move(source), std::move(backend), options);
  ModelRunner ref(path, options);

  std::vector<int32_t> ids = {3, 14, 15, 9, 2, 6, 5, 35, 8, 9, 7, 9};
  EXPECT_EQ(toy.all_logits(0, ids, 5), ref.all_logits(0, ids, 5));
  EXPECT_EQ(toy.decode({{0, {4}}}), ref.decode({{0, {4}}}));
  EXPECT_GT(runs["decode toy.norm_linears"], 0);
  EXPECT_EQ(runs["step toy.norm_linears"], 0);  // many rows: op by op

  EXPECT_EQ(runs["decode toy.norm_linears_2"], 0);
  EXPECT_TRUE(isa_has("toy+v2+v3", "v2+toy"));
  EXPECT_FALSE(isa_has("toy+v22", "v2"));

  // The same function, but more sequences than the fused kernel is good for.
  int fused = runs["decode toy.norm_linears"];
  std::vector<ModelRunner::Part> parts;
  for (int s = 1; s <= 20; ++s) parts.push_back({s, {s}});
  toy.step(parts);
  ref.step(parts);
  EXPECT_EQ(toy.decode(parts), ref.decode(parts));
  EXPECT_EQ(runs["decode toy.norm_linears"], fused);

  // The report says what was chosen against what.
  bool won = false, lost = false;
  for (const KernelChoice& c : compile.fusion->choices) {
    won = won || (c.kernel == "toy.norm_linears" && !c.losers.empty());
    for (const KernelChoice::Loser& l : c.losers)
      lost =
          lost || (l.kernel == "toy.norm_linears" && l.reason == "slower" && l.seconds > c.seconds);
  }
  EXPECT_TRUE(won);
  EXPECT_TRUE(lost);
}

// A kernel that promises more than it holds: predicted times choose it, measured ones do not.
TEST(Contract, MaxAutotuneTakesWhatRunsFastest) {
  std::vector<KernelDesc> kernels = two_kernels();
  kernels.push_back(
      {.name = "toy.norm_linears_slow",
       .pattern = "[rms_norm] -> linear(f32, weight *, weight *)+",
       .weight_layout = "",
       .numeric_class = "",
       .cost = [](const KernelDesc&, const KernelWork&, const Machine&) { return 5e-7; },
       .scratch = inside_bytes});
  std::string path = std::string(std::getenv("TOKAMAK_TINY_MODELS")) + "/llama";
  RunnerOptions options;
  std::vector<std::vector<float>> logits[2];
  for (bool tuned : {false, true}) {
    std::map<std::string, int> runs;
    CompileOptions compile = toy_options(options);
    compile.autotune = tuned;
    auto backend = std::make_unique<ToyBackend>(kernels, &runs);
    auto source = compile_model(path, *backend, compile, nullptr);
    for (const Plan& plan : source->plans().plans)
      EXPECT_EQ(plan.function.find('#'), std::string::npos) << "a trial is left in the plans";
    ModelRunner toy(std::move(source), std::move(backend), options);
    runs.clear();
    toy.step({{0, {3, 14, 15}}});
    logits[tuned] = toy.decode({{0, {4}}});
    EXPECT_EQ(runs["decode toy.norm_linears_slow"] > 0, !tuned);
    bool changed = false;
    for (const TunedPlan& p : compile.fusion->tuned) {
      changed = changed || !p.changes.empty();
      EXPECT_LE(p.seconds_after, p.seconds_before);
    }
    EXPECT_EQ(changed, tuned);
  }
  EXPECT_EQ(logits[0], logits[1]);
}

}  // namespace
}  // namespace tokamak
