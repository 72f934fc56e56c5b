#include "compile/shapes.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "compile/import/model_config.h"

namespace tokamak {
namespace {

CompileOptions small_options() {
  CompileOptions o;
  o.max_sequences = 8;
  o.max_tokens = 100;
  o.max_logit_rows = 32;
  return o;
}

TEST(Shapes, ABackendAsksForPaddedDecodeSteps) {
  CompileOptions o = small_options();
  o.max_sequences = o.max_logit_rows = 100;
  auto sizes = [&](const CompileOptions& options) {
    std::vector<std::string> out;
    for (const auto& guard : decode_guards(options))
      out.push_back(fmt::format("{}-{} pad {} x{}", guard[0].lo, guard[0].hi, guard[0].pad,
                                guard[0].multiple));
    return fmt::format("{}", fmt::join(out, ", "));
  };
  EXPECT_EQ(sizes(o), "1-1 pad 0 x1, 1-8 pad 0 x1, 1-100 pad 0 x1");
  o.pads_decode_above = make_backend("cuda")->pads_decode_above();
  EXPECT_EQ(sizes(o),
            "1-1 pad 0 x1, 1-8 pad 0 x1, 9-64 pad 64 x8, 65-96 pad 96 x16, 1-100 pad 0 x1");
  o.max_sequences = 24;
  EXPECT_EQ(sizes(o), "1-1 pad 0 x1, 1-8 pad 0 x1, 9-24 pad 24 x8");
  o.max_sequences = 8;
  EXPECT_EQ(sizes(o), "1-1 pad 0 x1, 1-8 pad 0 x1");
  o.max_sequences = 100;
  o.shapes = Shapes::kDynamic;
  EXPECT_EQ(sizes(o), "1-100 pad 0 x1");
}

TEST(Shapes, FixedShapesPadEverySymbol) {
  CompileOptions o = small_options();
  o.shapes = Shapes::kFixed;
  o.tree_mask = true;
  Guards guards = step_guards(o);
  ASSERT_EQ(guards.size(), 7u);  // 1, 8, 16, 32, 64, 100 and any
  for (size_t i = 0; i + 1 < guards.size(); ++i) {
    ASSERT_EQ(guards[i].size(), 4u);
    for (const GuardRange& g : guards[i]) {
      EXPECT_EQ(g.pad, g.hi) << g.symbol;
      EXPECT_EQ(g.multiple, 1);
    }
  }
  for (const GuardRange& g : guards.back()) EXPECT_EQ(g.pad, 0);
  EXPECT_EQ(guards[2][0].hi, 16);
  EXPECT_EQ(guards[2][1].hi, 9) << "and a sequence of padding";
  for (const Guards& derived : {decode_guards(o), verify_guards(o, 2)}) {
    ASSERT_GT(derived.size(), 1u);
    EXPECT_EQ(derived[0][0].symbol, "B");
    EXPECT_EQ(derived[0][0].pad, derived[0][0].hi);
    EXPECT_EQ(derived.back()[0].pad, 0);
  }
}

// A module with an encoder beside its step.
Module module_with_encoder() {
  Module m("two");
  m.symbols = {{"T", 1, 64, 1}, {"B", 1, 8, 1}, {"R", 1, 64, 1}, {"P", 1, 40, 1}};
  SymExpr t = SymExpr::symbol("T"), r = SymExpr::symbol("R"), p = SymExpr::symbol("P");
  Function& step = m.add_function("step");
  auto integers = [](const char* axis, SymExpr n) {
    return Type::of({DType::kI32, {{axis, std::move(n), false}}});
  };
  Ref ids = step.add_input("ids", integers("t", t));
  Ref rows = step.add_input("out_rows", integers("r", r));
  m.add_weight({"table", {DType::kF32, {{"v", 10, false}, {"d", 4, false}}}, {{"table"}, {}}});
  Ref x = step.add("embed", {ids, step.weight("table")});
  step.set_result("logits", step.add("gather", {x, rows}, Value::Object{{"axis", 0}}));
  Function& encode = m.add_function("encode");
  Ref image =
      encode.add_input("patches", Type::of({DType::kF32, {{"p", p, false}, {"d", 4, false}}}));
  encode.set_result("encoded", encode.add("square", {image}));
  return m;
}

TEST(Shapes, OtherFunctionsOfAModuleArePlanned) {
  Module m = module_with_encoder();
  ModelConfig config;
  config.vocab = 10;
  config.hidden = 4;
  config.context = 64;
  auto backend = make_backend("ref");
  PlanSet set = compile_module(m, config, *backend, small_options());
  int plans = 0;
  for (const Plan& plan : set.plans) {
    if (plan.function != "encode") continue;
    ++plans;
    EXPECT_EQ(plan_name(plan), "encode P<=40");
    ASSERT_EQ(plan.outputs.size(), 1u);
    EXPECT_EQ(plan.outputs[0].name, "encoded");
  }
  EXPECT_EQ(plans, 1);

  WeightTable weights;
  weights.add_f32("table", {10, 4}, std::vector<float>(40, 1.0f));
  auto exe = backend->load(set, weights, {});
  StepInputs in;
  in.function = "encode";
  const float values[] = {1, 2, 3, 4, 5, 6, 7, 8};
  auto bytes = std::as_bytes(std::span(values));
  in.inputs.push_back({"patches", DType::kF32, {2, 4}, {bytes.begin(), bytes.end()}});
  StepResult out;
  exe->collect(exe->submit(in), out);
  ASSERT_EQ(out.outputs.size(), 1u);
  EXPECT_EQ(out.outputs[0].dims, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(reinterpret_cast<const float*>(out.outputs[0].bytes.data())[7], 64.0f);
}

TEST(Shapes, AModuleWithoutStepIsRefused) {
  Module m("encoder");
  Function& encode = m.add_function("encode");
  Ref x = encode.add_input("x", Type::of({DType::kF32, {{"d", 4, false}}}));
  encode.set_result("y", encode.add("square", {x}));
  try {
    compile_module(m, ModelConfig{}, *make_backend("ref"), small_options());
    ADD_FAILURE() << "compiled";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(e.what()).find("encoder has no function step"), std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace tokamak
