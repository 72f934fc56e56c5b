#include "compile/fuse/fuse.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "compile/simplify/check_backend.h"

namespace tokamak {
namespace {

constexpr int64_t kWidth = 64;

// Rows of 64 through element-wise ops, norms, quantised and plain matrices.
class BlockMaker {
 public:
  explicit BlockMaker(uint64_t seed) : rng_(seed), module_("random") {}

  Module make(size_t ops) {
    module_.symbols = {{"T", 1, 9, 1}};
    size_t pos = 0;
    for (const char* type : {"f32[n=64, k=64]", "f16[n=64, k=64]", "q4_0[n=64, k=64]",
                             "q8_0[n=64, k=64]", "q4_1[n=64, k=64]", "f32[n=64]", "f32[n=64]"})
      module_.add_weight({fmt::format("w{}", module_.weights.size()),
                          parse_tensor_type(type, pos = 0),
                          {{fmt::format("w{}", module_.weights.size())}, {}}});
    module_.add_constant({"c", parse_tensor_type("f32[n=1]", pos = 0), {0.75}});
    fn_ = &module_.add_function("step");
    for (const char* name : {"x", "y"})
      pool_.push_back(fn_->add_input(name, Type::of(parse_tensor_type("f32[t=T, d=64]", pos = 0))));
    for (size_t i = 0; i < ops; ++i) pool_.push_back(grow());
    for (size_t i = 0; i < 3; ++i) fn_->set_result(fmt::format("out{}", i), pick());
    fn_->set_result("last", pool_.back());
    return std::move(module_);
  }

 private:
  // Recent values more often: chains, not stars.
  Ref pick() {
    size_t back = rng_.below(rng_.below(3) == 0 ? pool_.size() : std::min<size_t>(4, pool_.size()));
    return pool_[pool_.size() - 1 - back];
  }
  Ref vector() { return fn_->weight(fmt::format("w{}", 5 + rng_.below(2))); }
  Ref grow() {
    static constexpr const char* kUnary[] = {"neg", "abs", "sigmoid", "silu", "tanh", "relu"};
    static constexpr const char* kBinary[] = {"add", "sub", "mul", "maximum"};
    Ref x = pick();
    Value eps = Value::Object{{"eps", 1e-5}};
    switch (rng_.below(9)) {
      case 0:
        return fn_->add(kUnary[rng_.below(6)], {x});
      case 1:
      case 2:
        return fn_->add(kBinary[rng_.below(4)], {x, pick()});
      case 3:
        return fn_->add(kBinary[rng_.below(4)], {x, rng_.below(2) ? vector() : fn_->constant("c")});
      case 4:
        return fn_->add("rms_norm", {x, vector()}, eps);
      case 5:
        return rng_.below(2) ? fn_->add("layer_norm", {x, vector(), vector()}, eps)
                             : fn_->add("softmax", {x});
      case 6: {
        std::vector<Ref> in = {x, fn_->weight(fmt::format("w{}", rng_.below(2)))};
        if (rng_.below(2)) in.push_back(vector());
        return fn_->add("linear", in);
      }
      default: {
        Ref q = fn_->add("quantize", {x}, Value::Object{{"format", "q8a"}});
        return fn_->add("linear", {q, fn_->weight(fmt::format("w{}", 2 + rng_.below(3)))});
      }
    }
  }

  Rng rng_;
  Module module_;
  Function* fn_ = nullptr;
  std::vector<Ref> pool_;
};

class FuseTest : public testing::Test {
 protected:
  // The function after the pass alone.
  Function& fuse(Module& module, FusionReport* report = nullptr) {
    CompileOptions options;
    options.passes = {"fuse"};
    options.fusion = std::make_shared<FusionReport>();
    Function& fn = *module.find_function("step");
    run_passes(module, fn, {*backend_, options});
    verify_module(module);
    if (report) *report = *options.fusion;
    return fn;
  }
  static size_t regions_in(const Function& fn) {
    size_t n = 0;
    for (const Node& node : fn.nodes()) n += is_region(node);
    return n;
  }
  std::unique_ptr<Backend> backend_ = make_backend("cpu", BackendOptions{2, {}, 0});
};

TEST_F(FuseTest, RandomBlocksKeepEveryBit) {
  size_t regions = 0, ops = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Module module = BlockMaker(seed).make(6 + seed % 20), after = module.clone();
    FusionReport report;
    Function& fn = fuse(after, &report);
    regions += regions_in(fn);
    for (const FusedRegion& r : report.regions) ops += r.ops.size();
    const Function& before = *module.find_function("step");
    CheckOptions exact{seed, 1, PassClass::kExact, false};
    CheckReport r = compare_on_backend(before, fn, *backend_, exact);
    ASSERT_TRUE(r.same && r.runs > 0) << "seed " << seed << ": " << r.message << "\n"
                                      << print_module(module) << print_module(after);
    r = check_functions(before, fn, exact);
    ASSERT_TRUE(r.same && r.runs > 0) << "seed " << seed << ": " << r.message;
  }
  fmt::print("{} regions of {} ops\n", regions, ops);
  EXPECT_GT(regions, 80u);
  EXPECT_GT(ops, 2 * regions);
}

// Many rows: activations are made once for all threads, in two phases.
TEST_F(FuseTest, LargeStepsKeepEveryBit) {
  size_t regions = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    Module module = BlockMaker(seed).make(14);
    module.symbols = {{"T", 700 + static_cast<int64_t>(seed), 900, 1}};
    Module after = module.clone();
    regions += regions_in(fuse(after));
    CheckReport r = compare_on_backend(*module.find_function("step"), *after.find_function("step"),
                                       *backend_, {seed, 1, PassClass::kExact, false});
    ASSERT_TRUE(r.same && r.runs > 0) << "seed " << seed << ": " << r.message;
  }
  EXPECT_GT(regions, 6u);
}

// Norms and rotations of keys in orders that cpu.region.rope_append takes and that it does not.
TEST_F(FuseTest, WhatThePlannerGivesAKernelLoadsAndKeepsEveryBit) {
  Module module = parse_module(read_text_file(TK_GRAPH_GOLDEN "/opt/fuse_order.tkg")),
         after = module.clone();
  EXPECT_GT(regions_in(fuse(after)), 4u);
  CheckReport r = compare_on_backend(*module.find_function("step"), *after.find_function("step"),
                                     *backend_, {1, 2, PassClass::kExact, false});
  EXPECT_TRUE(r.same && r.runs > 0) << r.message;
}

// Other backends run a region op by op.
TEST_F(FuseTest, ABackendWithoutKernelsRunsTheBody) {
  auto ref = make_backend("ref");
  for (uint64_t seed = 50; seed < 54; ++seed) {
    Module module = BlockMaker(seed).make(12), after = module.clone();
    ASSERT_GT(regions_in(fuse(after)), 0u);
    CheckReport r = compare_on_backend(*module.find_function("step"), *after.find_function("step"),
                                       *ref, {seed, 1, PassClass::kExact, false});
    EXPECT_TRUE(r.same && r.runs > 0) << r.message;
  }
}

// The cheapest of all covers, by trying them all.
double brute_force(const std::vector<Candidate>& candidates, const FusionGraph& graph,
                   const std::vector<double>& single, NodeId node, std::set<NodeId> covered,
                   std::vector<size_t> chosen) {
  while (node < single.size() && covered.contains(node)) ++node;
  if (node == single.size()) {
    if (!chosen.empty() && ordered_parts(graph, candidates, chosen).empty()) return 1e9;
    return 0;
  }
  std::set<NodeId> alone = covered;
  alone.insert(node);
  double best = single[node] + brute_force(candidates, graph, single, node, alone, chosen);
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& c = candidates[i];
    if (c.nodes.front() != node) continue;
    std::set<NodeId> with = covered;
    bool free = true;
    for (NodeId id : c.nodes) free = with.insert(id).second && free;
    if (!free) continue;
    std::vector<size_t> more = chosen;
    more.push_back(i);
    best = std::min(best, c.cost + brute_force(candidates, graph, single, node, with, more));
  }
  return best;
}

TEST_F(FuseTest, TheCoverIsTheCheapest) {
  KernelSet kernels(*backend_);
  ASSERT_TRUE(kernels.has_regions());
  Machine machine;
  size_t compared = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Module module = BlockMaker(seed).make(7);
    const Function& fn = *module.find_function("step");
    FusionGraph graph(fn);
    CostModel cost(graph, kernels, machine, design_shapes(fn));
    FusionPlan plan = plan_fusion(graph, cost, kernels);
    EXPECT_TRUE(plan.cover.exact);
    if (plan.candidates.size() > 60) continue;
    std::vector<double> single;
    for (NodeId id = 0; id < fn.nodes().size(); ++id) single.push_back(cost.single_cost(id));
    double best = brute_force(plan.candidates, graph, single, 0, {}, {});
    EXPECT_LE(plan.cover.cost, best * 1.000001) << "seed " << seed;
    EXPECT_GE(plan.cover.cost, best * 0.999999) << "seed " << seed;
    ++compared;
  }
  EXPECT_GT(compared, 15u);
}

// Free barriers and calls, and a memory as fast as registers: nothing is gained by fusing.
TEST_F(FuseTest, TheMachineDecides) {
  Module module = parse_module(read_text_file(TK_GRAPH_GOLDEN "/opt/fuse_llama.tkg"));
  Machine free;
  free.call_seconds = free.barrier_seconds = 0;
  for (MachineLevel& l : free.levels) l.bandwidth = 1e18;
  free.vector_ops = free.i8_ops = free.f32_flops = 1e18;
  const Function& fn = *module.find_function("step");
  FusionGraph graph(fn);
  KernelSet kernels(*backend_);
  CostModel nothing(graph, kernels, free, design_shapes(fn)),
      usual(graph, kernels, Machine{}, design_shapes(fn));
  EXPECT_LT(plan_fusion(graph, nothing, kernels).cover.cost, 1e-6);
  EXPECT_GE(plan_fusion(graph, usual, kernels).cover.chosen.size(), 4u);
  double apart = 0;
  for (NodeId id = 0; id < fn.nodes().size(); ++id) apart += usual.single_cost(id);
  EXPECT_LT(plan_fusion(graph, usual, kernels).cover.cost, apart * 0.9);
}

// What stays inside a region comes from the level that holds it.
TEST_F(FuseTest, CachesThatHoldNothingMakeRegionsSlower) {
  Module module = parse_module(read_text_file(TK_GRAPH_GOLDEN "/opt/fuse_llama.tkg"));
  const Function& fn = *module.find_function("step");
  FusionGraph graph(fn);
  KernelSet kernels(*backend_);
  Machine large, small;
  large.levels[0].capacity = 1e15;
  small.levels[0].capacity = 1;
  CostModel in_cache(graph, kernels, large, design_shapes(fn)),
      outside(graph, kernels, small, design_shapes(fn));
  size_t slower = 0;
  for (const Candidate& c : enumerate_candidates(graph, kernels))
    slower += outside.region(c, 0).seconds > in_cache.region(c, 0).seconds;
  EXPECT_GT(slower, 10u);
}

// Element-wise nodes that read any of the 16 before them: wide, and nothing like a transformer.
Module tangled(size_t nodes) {
  Module module("tangled");
  module.symbols = {{"T", 1, 64, 1}};
  Function& fn = module.add_function("step");
  size_t pos = 0;
  std::vector<Ref> values = {
      fn.add_input("x", Type::of(parse_tensor_type("f32[t=T, d=4096]", pos)))};
  Rng rng(7);
  auto recent = [&] {
    return values[values.size() - 1 - rng.below(std::min<size_t>(16, values.size()))];
  };
  while (values.size() < nodes) {
    Ref a = recent(), b = recent();
    values.push_back(fn.add(rng.below(2) ? "add" : "mul", {a, b}));
  }
  fn.set_result("y", values.back());
  return module;
}

TEST_F(FuseTest, TheSearchHasABudget) {
  const size_t nodes = 200;  // without a budget this takes a minute
  Module module = tangled(nodes);
  FusionReport report;
  Function& fn = fuse(module, &report);
  EXPECT_GT(regions_in(fn), nodes / 50);
  EXPECT_LE(report.totals.at("step").candidates, 40'000u);
  EXPECT_LE(report.totals.at("step").states, 10'000'000u);
}

TEST(MachineFile, ReadsWritesAndRefuses) {
  Machine m;
  m.cores = 7;
  m.levels = {{"near", 1e5, 1e11}, {"far", 0, 1e10}};
  Machine back = machine_from_value(parse_json(dump_json(machine_value(m))), "text");
  EXPECT_EQ(back.cores, 7);
  ASSERT_EQ(back.levels.size(), 2u);
  EXPECT_EQ(back.level_of(4e4).name, "near");
  EXPECT_EQ(back.level_of(6e4).name, "far");
  EXPECT_EQ(back.i8_ops, m.i8_ops);
  EXPECT_EQ(back.loop_step_seconds, m.loop_step_seconds);
  EXPECT_FALSE(back.real_time);
  EXPECT_TRUE(machine_from_value(parse_json(R"({"real_time": true})"), "text").real_time);
  back = machine_from_value(parse_json(R"({"name": "h", "flops": 9e14, "bandwidth": 4e12})"), "h");
  EXPECT_EQ(back.i8_ops, 9e14);
  EXPECT_EQ(back.memory().bandwidth, 4e12);
  for (const char* bad :
       {R"({"cores": 0})", R"({"cores": 1.5})", R"({"levels": []})",
        R"({"levels": [{"name": "x"}]})", R"({"i8_ops": -1})", R"({"real_time": 1})", "[]"})
    EXPECT_THROW(machine_from_value(parse_json(bad), "bad"), Error) << bad;
}

}  // namespace
}  // namespace tokamak
