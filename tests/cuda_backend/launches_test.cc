// Launches of many calls: the planner decides, the plan records it, and the executable runs what
// the plan names and nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "backend/cuda/cost.h"
#include "backend/cuda/emulator/fake_driver.h"
#include "backend/cuda/executable.h"
#include "compile/compiler.h"
#include "compile/explain/explain.h"
#include "plan/bundle_plans.h"

namespace tokamak {
namespace {

struct Compiled {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<ModelSource> source;
  std::shared_ptr<FusionReport> report = std::make_shared<FusionReport>();
  const PlanSet& set() const { return source->plans(); }
};

class CudaLaunches : public testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("TOKAMAK_STREAM_MODELS");
    if (!folder || !std::filesystem::exists(std::filesystem::path(folder) / "llama_bf16.gguf"))
      GTEST_SKIP() << "no models in TOKAMAK_STREAM_MODELS";
    folder_ = folder;
  }
  Compiled compile(const std::string& model, bool fp8 = false, bool eager = false) const {
    Compiled out;
    BackendOptions options;
    options.fp8 = fp8;
    out.backend = make_backend("cuda", options);
    CompileOptions compile;
    compile.storage = "bf16,residual=f32";
    compile.max_sequences = 16;
    compile.max_tokens = 64;
    compile.eager = eager;
    compile.fusion = out.report;
    out.source = compile_model(folder_ / (model + ".gguf"), *out.backend, compile);
    return out;
  }
  std::filesystem::path folder_;
};

// "decode B<=8: cuda.decode_stream, cuda.decoder_layers" for each plan.
std::vector<std::string> named(const PlanSet& set) {
  std::vector<std::string> out;
  for (const Plan& plan : set.plans) {
    std::string line = plan_name(plan) + ":";
    for (const PlanLaunch& l : plan.launches) line += " " + set.kernels.at(l.kernel).name;
    out.push_back(line);
  }
  return out;
}

std::string why_not(const Compiled& c, size_t plan, const std::string& kernel) {
  for (const LaunchChoice& choice : c.report->launches)
    if (choice.plan == plan)
      for (const LaunchChoice::Option& o : choice.options)
        if (o.kernel == kernel) return o.reason;
  return "not considered";
}

TEST_F(CudaLaunches, ThePlannerDecidesForEachPlan) {
  Compiled c = compile("llama_bf16");
  EXPECT_EQ(named(c.set()), (std::vector<std::string>{
                                "step T<=64 B<=16 R<=64: cuda.decoder_layers",
                                "decode B=1: cuda.decode_stream cuda.decoder_layers",
                                "decode B<=8: cuda.decoder_layers cuda.decode_stream",
                                "decode B=9..16 padded to multiples of 8: cuda.decoder_layers",
                            }));
  for (const Plan& plan : c.set().plans) {
    EXPECT_GT(plan.seconds, 0);
    double before = 0;
    for (const PlanLaunch& l : plan.launches) {
      EXPECT_EQ(l.first, 0u);
      EXPECT_EQ(l.calls, plan.calls.size());
      EXPECT_GT(l.seconds, before);  // the fastest comes first
      EXPECT_LT(l.seconds, plan.seconds);
      before = l.seconds;
    }
  }
  EXPECT_EQ(why_not(c, 0, "cuda.decode_stream"), "it runs the function decode");
  EXPECT_EQ(why_not(c, 2, "cuda.decode_stream"), "");
  EXPECT_EQ(why_not(c, 2, "cuda.decode_stream.fp8"), "needs sm_90a+fp8");
  EXPECT_EQ(why_not(c, 3, "cuda.decode_stream"), "guard B <= 8");
}

TEST_F(CudaLaunches, TypesAndTheDeviceDecideToo) {
  Compiled q8 = compile("llama_q8_0");
  EXPECT_EQ(named(q8.set())[1], "decode B=1: cuda.decode_stream cuda.decoder_layers");
  EXPECT_EQ(named(q8.set())[2], "decode B<=8: cuda.decoder_layers cuda.decode_stream");
  EXPECT_EQ(named(compile("llama_q6_k_head").set())[1],
            "decode B=1: cuda.decode_stream cuda.decoder_layers");
  EXPECT_EQ(named(compile("llama_q4_k_m").set())[1],
            "decode B=1: cuda.decode_stream cuda.decoder_layers");
  Compiled narrow = compile("llama_q4_k");
  EXPECT_EQ(named(narrow.set())[1], "decode B=1: cuda.decoder_layers");
  EXPECT_EQ(why_not(narrow, 1, "cuda.decode_stream"),
            "the persistent decode kernel needs widths that fall into equal parts of segments");
  Compiled fp8 = compile("llama_bf16", true);
  EXPECT_EQ(named(fp8.set())[2], "decode B<=8: cuda.decoder_layers cuda.decode_stream.fp8");
  EXPECT_EQ(why_not(fp8, 2, "cuda.decode_stream"), "slower");
  EXPECT_NE(fp8.set().numerics_id, compile("llama_bf16").set().numerics_id);
  EXPECT_EQ(named(compile("llama_bf16", false, true).set())[1], "decode B=1:");  // eager
  if (std::getenv("TOKAMAK_TEST_GPU")) return;
  cuda::fake_driver().capability = 80;
  Compiled other = compile("llama_bf16");
  cuda::fake_driver().capability = 90;
  EXPECT_EQ(other.backend->isa(), "sm_80");
  EXPECT_EQ(named(other.set())[1], "decode B=1: cuda.decoder_layers");
  EXPECT_EQ(why_not(other, 1, "cuda.decode_stream"), "needs sm_90a");
}

// Measured on an H200 (bench/results): the predictions that decide are near and in order.
TEST(CudaLaunchCost, FollowsWhatWasMeasured) {
  const Machine built_in;
  auto work = [](bool large, double rows, bool prompt) {
    cuda::DecoderWork w;
    w.few_rows = prompt ? 64 : 128;
    w.weight_bytes = large ? 15.01e9 : 3.44e9;
    w.flops = rows * w.weight_bytes;
    w.layers = large ? 32 : 28;
    w.rows = rows;
    w.row_bytes = large ? 266e3 : 127e3;
    return w;
  };
  struct Measured {
    bool large;
    double rows, stream_ms, layers_ms;  // 0: not measured
    bool prompt = false;
  };
  for (const Measured& m :
       {Measured{true, 1, 3.748, 0}, Measured{true, 2, 4.235, 4.489},
        Measured{true, 8, 4.735, 4.477}, Measured{true, 16, 0, 4.556}, Measured{false, 1, 1.296, 0},
        Measured{false, 2, 0, 1.674}, Measured{false, 8, 1.891, 1.681},
        Measured{false, 16, 0, 1.837}, Measured{true, 32, 0, 4.683}, Measured{true, 64, 0, 5.614},
        Measured{true, 96, 0, 7.075}, Measured{true, 128, 0, 7.441}, Measured{false, 64, 0, 2.573},
        Measured{true, 128, 0, 5.01, true}, Measured{false, 128, 0, 1.84, true}}) {
    const cuda::DecoderWork w = work(m.large, m.rows, m.prompt);
    const double stream = 1e3 * stream_seconds(w, built_in),
                 layers = 1e3 * layers_seconds(w, built_in);
    if (m.stream_ms > 0) {
      EXPECT_NEAR(stream, m.stream_ms, 0.15 * m.stream_ms) << m.rows;
    }
    if (m.layers_ms > 0) {
      EXPECT_NEAR(layers, m.layers_ms, 0.15 * m.layers_ms) << m.rows;
    }
    EXPECT_EQ(stream < layers, m.rows < 8) << m.rows;
  }
}

// Runs a decode step of one sequence.
std::pair<int64_t, int64_t> run_one(const Compiled& c, const PlanSet& set) {
  LoadOptions load;
  load.blocks = {4};
  load.max_rows = 4;
  auto executable = c.backend->load(set, c.source->weights(), load);
  StepInputs step;
  step.function = "decode";
  step.ids = {7};
  step.pos = step.slot = step.seq = step.row = step.out_rows = {0};
  step.kv_len = {1};
  step.q_start = {0, 1};
  step.tables.resize(1);
  step.tables[0] = {{0}, 1};
  step.samples.resize(1);
  step.samples[0].spec = std::make_shared<const SampleSpec>();
  step.samples[0].position = 1;
  StepResult result;
  executable->collect(executable->submit(step), result);
  EXPECT_GE(result.ids.at(0), 0);
  auto& cuda = dynamic_cast<cuda::CudaExecutable&>(*executable);
  return {cuda.streamed_steps(), cuda.layered_steps()};
}

TEST_F(CudaLaunches, AnExecutableRunsWhatThePlanNames) {
  Compiled c = compile("llama_bf16");
  using Steps = std::pair<int64_t, int64_t>;
  EXPECT_EQ(run_one(c, c.set()), (Steps{1, 0}));
  PlanSet other = c.set();
  for (Plan& plan : other.plans) std::reverse(plan.launches.begin(), plan.launches.end());
  EXPECT_EQ(run_one(c, other), (Steps{0, 1}));
  for (Plan& plan : other.plans) plan.launches.clear();
  EXPECT_EQ(run_one(c, other), (Steps{0, 0}));
}

TEST_F(CudaLaunches, APlanThatNamesWhatTheBackendLacksFailsWithBothNames) {
  Compiled c = compile("llama_bf16");
  auto message = [&](auto&& change) -> std::string {
    PlanSet set = c.set();
    change(set);
    try {
      run_one(c, set);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
      return e.what();
    }
    return "nothing was thrown";
  };
  auto entry = [](PlanSet& set) -> KernelEntry& {
    return set.kernels.at(set.plans.at(1).launches.at(0).kernel);
  };
  std::string text = message([&](PlanSet& set) { entry(set).name = "cuda.decode_river"; });
  EXPECT_NE(text.find("asks for the launch cuda.decode_river (version 1)"), std::string::npos)
      << text;
  EXPECT_NE(text.find("has cuda.decode_stream (version 1)"), std::string::npos) << text;
  text = message([&](PlanSet& set) { entry(set).abi = 7; });
  EXPECT_NE(text.find("cuda.decode_stream (version 7)"), std::string::npos) << text;
  text = message([&](PlanSet& set) { set.plans[1].launches[0].calls = 3; });
  EXPECT_NE(text.find("runs all calls of a plan, not 3 of"), std::string::npos) << text;
}

TEST_F(CudaLaunches, BundlesKeepThemAndTheCheckerKnowsThem) {
  Compiled c = compile("llama_bf16");
  const std::string bytes = serialize_plans(c.set());
  const PlanSet back = parse_plans(std::as_bytes(std::span(bytes)));
  EXPECT_EQ(named(back), named(c.set()));
  EXPECT_EQ(plan_set_text(back), plan_set_text(c.set()));
  EXPECT_NE(plan_set_text(back).find("launch cuda.decode_stream instead of calls 0.."),
            std::string::npos);
  for (int what = 0; what < 3; ++what) {
    PlanSet bad = c.set();
    PlanLaunch& l = bad.plans[1].launches[0];
    if (what == 0) l.kernel = 1000;
    if (what == 1) l.calls += 1;
    if (what == 2) l.first = UINT32_MAX;
    EXPECT_THROW(check_plan_set(bad), Error) << what;
  }
}

TEST_F(CudaLaunches, ExplainPrintsThemAndWhatLost) {
  Compiled c = compile("llama_bf16", true);
  ExplainRequest r;
  r.model = "m";
  r.function = "decode";
  r.shape = parse_shape("decode", {"B=4", "S=16"});
  r.backend = "cuda";
  r.set = &c.set();
  r.fusion = c.report.get();
  const Value report = explain(r);
  const std::string text = explain_text(report);
  EXPECT_NE(text.find("LAUNCHES"), std::string::npos) << text;
  EXPECT_NE(text.find("cuda.decode_stream.fp8 "), std::string::npos) << text;
  EXPECT_NE(text.find("not cuda.decode_stream: slower, "), std::string::npos) << text;
  ASSERT_EQ(report.at("launches").size(), 3u);
  EXPECT_GT(report.at("launches").as_array()[2].at("predicted_us").as_double(),
            report.at("launches").as_array()[0].at("predicted_us").as_double());
}

}  // namespace
}  // namespace tokamak
