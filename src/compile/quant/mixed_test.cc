// --activations mixed: plans of few rows multiply int8 activations, plans of many rows bf16 ones,
// from the same packed weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "compile/compiler.h"
#include "compile/import/model_config.h"
#include "compile/shapes.h"
#include "compile/tiles_test_util.h"

namespace tokamak {
namespace {

constexpr const char* kDecoder = R"(module mixed format 1
symbol T in 1..512
symbol B in 1..64
symbol R in 1..64
group full window 0 block 16
state kv.0 in full per_token {k: f16[kvh=1, hd=32], v: f16[kvh=1, hd=32]}
weight table : q8_0[v=96, d=64] from table
weight norm : f32[n=64] from norm
weight q : q4_0[n=32, k=64] from q
weight k : q4_k[n=32, k=256] from k
weight wide : q8_0[n=256, k=64] from wide
func step {
  %0 = input ids : i32[t=T]
  %1 = input pos : i32[t=T]
  %2 = input seq : i32[t=T]
  %3 = input slot : i32[t=T]
  %4 = input q_start : i32[b=B + 1]
  %5 = input kv_len : i32[b=B]
  %6 = input out_rows : i32[r=R]
  %7 = embed(%0, @table)
  %8 = rms_norm(%7, @norm) {eps=1e-05}
  %9 = linear(%8, @q)
  %10 = linear(%8, @wide)
  %11 = linear(%10, @k)
  %12 = add(%9, %11)
  %13 = reduce_sum(%12) {axis=1, keep=1}
  %14 = mul(%8, %13)
  %15 = gather(%14, %6)
  %16 = linear(%15, @table)
  return logits = %16
}
)";

PlanSet compile(const Backend& backend, const char* activations, CompileOptions options = {}) {
  Module module = parse_module(kDecoder);
  options.activations = activations;
  options.context = 128;
  options.disabled_passes = {"fuse"};  // each product is a call of its own
  options.verify = {4};
  ModelConfig config;
  config.layers = 1;
  config.vocab = 96;
  config.hidden = 64;
  return compile_module(module, config, backend, options);
}

// "q8a q8a bf16": the activations of the plan's products, in order.
std::string activations_of(const Plan& plan) {
  std::string out;
  for (const KernelCall& call : plan.calls)
    if (call.op == "linear")
      out += fmt::format("{}{}", out.empty() ? "" : " ", dtype_name(call.in[0].dtype));
  return out;
}

// By the function and the largest value of its first symbol: "step 64".
std::map<std::string, std::string> products(const PlanSet& set) {
  std::map<std::string, std::string> out;
  for (const Plan& plan : set.plans)
    if (!plan.guard.empty() && plan.function != "sample")
      out[fmt::format("{} {}", plan.function, plan.guard[0].hi)] = activations_of(plan);
  return out;
}

TEST(MixedActivations, ManyRowsTakeBf16) {
  TilesBackend tiles;
  PlanSet set = compile(tiles, "mixed");
  const std::string few = "q8a q8a q8a q8a", many = "bf16 bf16 bf16 bf16";
  // Rows that ask for logits are few in step.
  EXPECT_EQ(products(set), (std::map<std::string, std::string>{{"step 31", few},
                                                               {"step 64", "bf16 bf16 bf16 q8a"},
                                                               {"step 512", "bf16 bf16 bf16 q8a"},
                                                               {"decode 1", few},
                                                               {"decode 8", few},
                                                               {"decode 31", few},
                                                               {"decode 64", many},
                                                               {"verify4 6", few},
                                                               {"verify4 12", many}}));
  std::map<std::string, int> times;
  for (const WeightEntry& w : set.weights) ++times[w.name];
  for (const auto& [name, n] : times) EXPECT_EQ(n, 1) << name << " is held once";
  PlanSet usual = compile(tiles, "auto");
  EXPECT_EQ(set.weights.size(), usual.weights.size());
  EXPECT_NE(set.numerics_id, usual.numerics_id);
  for (const auto& [plan, types] : products(usual)) EXPECT_EQ(types, few) << plan;
}

// With other shapes a plan for any number of rows would have bf16 products, also for one row.
TEST(MixedActivations, NeedsShapesAuto) {
  for (Shapes shapes : {Shapes::kDynamic, Shapes::kBuckets, Shapes::kFixed}) {
    CompileOptions options;
    options.shapes = shapes;
    try {
      compile(TilesBackend(), "mixed", options);
      FAIL() << "compiled with " << shapes_name(shapes);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(e.what()).find("--activations mixed needs --shapes auto: "),
                std::string::npos)
          << e.what();
    }
  }
}

// Plans are tried in order: up to 31 rows the first that takes a step is one of few rows.
TEST(MixedActivations, DraftTreesHavePlansOfFewRows) {
  CompileOptions options;
  options.bf16_rows = 32;
  options.tree_mask = true;
  auto bounds = [](const Guards& guards) {
    std::vector<int64_t> out;
    for (const std::vector<GuardRange>& guard : guards) out.push_back(guard[0].hi);
    return out;
  };
  EXPECT_EQ(bounds(step_guards(options)), (std::vector<int64_t>{31, 64, 512}));
  EXPECT_EQ(bounds(decode_guards(options)), (std::vector<int64_t>{1, 8, 31, 64}));
  EXPECT_EQ(bounds(verify_guards(options, 4)), (std::vector<int64_t>{6, 12}));
  for (const std::vector<GuardRange>& guard : step_guards(options)) {
    EXPECT_EQ(guard.back().symbol, "M");
    EXPECT_EQ(guard.back().hi, guard[0].hi) << "a row of the mask for each of the step";
  }
}

TEST(MixedActivations, NeedsKernels) {
  try {
    compile(*make_backend("ref"), "mixed");
    FAIL() << "compiled";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
    EXPECT_STREQ(e.what(),
                 "--activations mixed needs a CPU with AMX; the backend is ref: use auto");
  }
}

}  // namespace
}  // namespace tokamak
