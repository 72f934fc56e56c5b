#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "compile/planner/planner.h"

namespace tokamak {
namespace {

// The law: values alive at the same time never share a byte; the peak is where the last byte ends.
void expect_sound(const std::vector<Lifetime>& values, const Packing& p) {
  uint64_t end = 0;
  for (size_t a = 0; a < values.size(); ++a) {
    EXPECT_EQ(p.offsets[a] % kArenaAlignment, 0u);
    end = std::max(end, p.offsets[a] + values[a].bytes);
    for (size_t b = a + 1; b < values.size(); ++b) {
      bool together = values[a].first <= values[b].last && values[b].first <= values[a].last;
      bool apart = p.offsets[a] + values[a].bytes <= p.offsets[b] ||
                   p.offsets[b] + values[b].bytes <= p.offsets[a];
      EXPECT_TRUE(!together || apart) << a << " and " << b;
    }
  }
  EXPECT_GE(p.peak, end);
  EXPECT_LT(p.peak, end + kArenaAlignment);
}

TEST(PackArena, RandomLifetimesNeverCollide) {
  Rng rng(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<Lifetime> values(1 + rng.below(40));
    for (Lifetime& v : values) {
      v.bytes = 1 + rng.below(5000);
      v.first = static_cast<uint32_t>(rng.below(30));
      v.last = v.first + static_cast<uint32_t>(rng.below(8));
    }
    expect_sound(values, pack_arena(values));
  }
}

TEST(PackArena, AChainNeedsTwoBuffers) {
  std::vector<Lifetime> chain;
  for (uint32_t i = 0; i < 50; ++i) chain.push_back({1024, i, i + 1});
  Packing p = pack_arena(chain);
  EXPECT_EQ(p.peak, 2048u);
  EXPECT_EQ(p.lower_bound, 2048u);
  EXPECT_EQ(p.method, "first-fit by size");
}

// Lists kernels and runs nothing.
class ListedKernels final : public Backend {
 public:
  explicit ListedKernels(bool in_place)
      : kernels_{{"k.add", 1, "add(f32, f32)", "", "", in_place},
                 {"k.mul", 1, "mul(f32, f32)", "", "", in_place},
                 {"k.any", 1, "*", "", "", false}} {}
  std::string_view name() const override { return "listed"; }
  std::string isa() const override { return "none"; }
  std::span<const KernelDesc> kernels() const override { return kernels_; }
  std::unique_ptr<Executable> load(const PlanSet&, const WeightSource&,
                                   const LoadOptions&) override {
    return nullptr;
  }

 private:
  std::vector<KernelDesc> kernels_;
};

// x [T,8] -> a = silu(x); the rest as `build` says; the result is returned.
template <class Build>
Plan plan_of(bool in_place, Build build) {
  Module module("m");
  module.symbols = {{"T", 1, 64, 1}};
  Function& fn = module.add_function("step");
  auto input = [&](const char* name, int64_t width) {
    return fn.add_input(
        name, Type::of({DType::kF32, {{"t", SymExpr::symbol("T"), false}, {"w", width, false}}}));
  };
  Ref x = input("x", 8), column = input("column", 1);
  fn.set_result("y", build(fn, fn.add("silu", {x}), column));
  verify_module(module);
  PlanSet set;
  set.model = "m";
  set.backend = "listed";
  set.symbols = module.symbols;
  std::vector<PlanRequest> requests(1);
  requests[0].function = &fn;
  requests[0].guard = {{"T", 1, 64, 1}};
  ListedKernels backend(in_place);
  Machine machine;
  plan_functions(set, requests, backend, machine);
  check_plan_set(set);  // among others: every read finds what was written for it
  return set.plans[0];
}

TEST(InPlace, ADyingInputGivesItsPlace) {
  constexpr uint64_t kValue = 64 * 8 * 4;
  auto twice = [](Function& fn, Ref a, Ref) { return fn.add("add", {a, a}); };
  EXPECT_EQ(plan_of(true, twice).arena_bytes, kValue);
  EXPECT_EQ(plan_of(false, twice).arena_bytes, 2 * kValue);
  auto second = [](Function& fn, Ref a, Ref) {  // exp(a) keeps a alive, then a dies
    return fn.add("add", {fn.add("exp", {a}), a});
  };
  Plan p = plan_of(true, second);
  EXPECT_EQ(p.arena_bytes, 2 * kValue);
  EXPECT_EQ(p.calls[2].out[0].offset, p.calls[1].out[0].offset);
  EXPECT_NE(p.calls[2].out[0].index, p.calls[1].out[0].index);  // a value of its own
  EXPECT_EQ(p.arena_lower_bound, p.arena_bytes);
}

TEST(InPlace, NotWhileTheInputIsStillRead) {
  auto later = [](Function& fn, Ref a, Ref) {
    Ref b = fn.add("mul", {a, a});
    return fn.add("add", {fn.add("exp", {b}), a});
  };
  Plan p = plan_of(true, later);
  EXPECT_NE(p.calls[1].out[0].offset, p.calls[0].out[0].offset);
  auto reshaped = [](Function& fn, Ref a, Ref) {  // the reshape is the same bytes
    auto reshape = [&](Ref x, Value::Array dims, Value::Array axes) {
      return fn.add("reshape", {x}, Value::Object{{"dims", dims}, {"axes", axes}});
    };
    Ref cut = reshape(a, {"T", "4", "2"}, {"t", "u", "v"});
    Ref b = fn.add("mul", {a, a});
    return fn.add("add", {b, reshape(fn.add("exp", {cut}), {"T", "8"}, {"t", "w"})});
  };
  p = plan_of(true, reshaped);
  EXPECT_NE(p.calls[1].out[0].offset, p.calls[0].out[0].offset);
}

TEST(InPlace, NotOnAnOperandBesideABroadcastOne) {
  auto broadcast = [](Function& fn, Ref a, Ref column) { return fn.add("mul", {column, a}); };
  Plan p = plan_of(true, broadcast);
  EXPECT_NE(p.calls[1].out[0].offset, p.calls[0].out[0].offset);
  auto left = [](Function& fn, Ref a, Ref column) { return fn.add("mul", {a, column}); };
  p = plan_of(true, left);
  EXPECT_EQ(p.calls[1].out[0].offset, p.calls[0].out[0].offset);
}

}  // namespace
}  // namespace tokamak
