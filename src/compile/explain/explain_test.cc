// Predicted against counted bytes for every call of tiny models of several families, and the
// resulting report.
#include "compile/explain/explain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "compile/explain/fold.h"
#include "compile/explain/traffic.h"
#include "compile/lower/region.h"
#include "compile/open_model.h"
#include "compile/tiles_test_util.h"
#include "ops/traced.h"

namespace tokamak {
namespace {

struct Built {
  std::unique_ptr<Backend> backend;
  PlanSet set;
  std::shared_ptr<FusionReport> fusion = std::make_shared<FusionReport>();
  std::shared_ptr<PassRecord> passes;
};

// `backend` "mixed": TilesBackend with --activations mixed.
// Empty if the tiny models are missing (the fixture creates them).
std::optional<Built> build(const std::string& model, const std::string& fn,
                           const char* backend = "cpu", const char* kv = "f16", bool eager = false,
                           Shapes shapes = Shapes::kAuto) {
  const char* folder = std::getenv("TOKAMAK_TINY_MODELS");
  if (!folder || !std::filesystem::exists(std::filesystem::path(folder) / model)) return {};
  Built out;
  const bool mixed = std::string(backend) == "mixed";
  if (mixed)
    out.backend = std::make_unique<TilesBackend>();
  else
    out.backend = make_backend(backend, {1, "", 0});
  OpenedModel opened = open_model(std::filesystem::path(folder) / model);
  CompileOptions options;
  options.context = 256;
  if (mixed) options.activations = "mixed";
  options.kv_dtype = std::string(kv) == "int8" ? DType::kI8 : dtype_from_name(kv).value();
  options.eager = eager;
  options.shapes = shapes;
  options.fusion = out.fusion;
  out.passes = std::make_shared<PassRecord>(fn);
  options.after_pass = [record = out.passes](const Function& f, const PassTiming& t) {
    record->add(f, t);
  };
  Module module = build_module(opened.model.config, options);
  out.passes->captured(*module.find_function("step"));
  out.set = compile_module(module, opened.model.config, *out.backend, options);
  return out;
}

void expect_counted(const Built& m, const std::string& fn, const StepShape& shape) {
  BoundStep bound = bind_step(m.set, fn, shape);
  const Plan& plan = m.set.plans[bound.plan];
  TrafficSite site{m.set, bound.step, bound.symbols};
  for (const KernelCall& call : plan.calls) {
    CallTraffic predicted = predict_traffic(site, call);
    std::optional<CallTraffic> counted = count_traffic(site, call);
    ASSERT_TRUE(counted) << call.label;
    for (size_t i = 0; i < call.in.size(); ++i)
      EXPECT_EQ(predicted.in[i].read, counted->in[i].read)
          << fn << ", " << m.set.kernels[call.kernel].name << " " << call.label << ", input " << i;
    for (size_t o = 0; o < call.out.size(); ++o)
      EXPECT_EQ(predicted.out[o].written, counted->out[o].written)
          << fn << ", " << m.set.kernels[call.kernel].name << " " << call.label << ", output " << o;
    EXPECT_GT(counted->bytes(), 0) << call.label;
  }
}

TEST(CountedBuckets, PaddingReadsAndWritesNoState) {
  auto m = build("llama.gguf", "decode", "cpu", "f16", false, Shapes::kBuckets);
  if (!m) GTEST_SKIP() << "no tiny models";
  EXPECT_EQ(bind_step(m->set, "decode", {3, 3, 37, 3}).symbols.at("B"), 8);
  expect_counted(*m, "decode", {3, 3, 37, 3});
  expect_counted(*m, "step", {2, 9, 50, 2});
}

struct CountCase {
  const char* model;
  const char* backend = "cpu";
  const char* kv = "f16";
  bool eager = false;
  friend void PrintTo(const CountCase& c, std::ostream* to) {
    *to << c.model << " " << c.backend << " " << c.kv << (c.eager ? " eager" : "");
  }
};
class Counted : public testing::TestWithParam<CountCase> {};

TEST_P(Counted, PredictedBytesAreTheBytesThatAreTouched) {
  const CountCase& c = GetParam();
  auto m = build(c.model, "decode", c.backend, c.kv, c.eager);
  if (!m) GTEST_SKIP() << "no tiny models";
  expect_counted(*m, "decode", {1, 1, 40, 1});
  expect_counted(*m, "decode", {3, 3, 37, 3});
  expect_counted(*m, "step", {1, 5, 5, 1});
  expect_counted(*m, "step", {2, 9, 50, 2});
}
INSTANTIATE_TEST_SUITE_P(
    Families, Counted,
    testing::Values(CountCase{"llama.gguf"}, CountCase{"llama"}, CountCase{"llama.gguf", "ref"},
                    CountCase{"llama.gguf", "cpu", "int8"},
                    CountCase{"llama.gguf", "cpu", "f32", true}, CountCase{"gemma2.gguf"},
                    CountCase{"gemma3.gguf"}, CountCase{"gpt2.gguf"}, CountCase{"qwen3.gguf"},
                    CountCase{"phi3.gguf"}, CountCase{"../tiny_families/mamba2"},
                    CountCase{"../tiny_families/mixtral"}, CountCase{"../tiny_families/gpt_oss"},
                    CountCase{"../tiny_families/deepseek3"},
                    CountCase{"../tiny_families/mamba2", "ref"}));

// A call that runs the body as Loop IR; all its arguments are arena values.
KernelCall loop_call(PlanSet& set, const Function& body) {
  BuiltRegion built = build_region(body);
  TK_CHECK(built && built.region->whole_program(), "{}", built.reason);
  KernelCall call;
  call.op = call.label = "region";
  call.region = static_cast<int32_t>(set.regions.size());
  set.regions.push_back(*built.region);
  auto add = [](std::vector<CallArg>& to, const TensorType& type) {
    CallArg arg;
    arg.index = static_cast<uint32_t>(to.size());
    arg.dtype = type.dtype;
    for (const Dim& d : type.dims) arg.dims.push_back(d.extent);
    to.push_back(std::move(arg));
  };
  for (NodeId id : body.inputs()) add(call.in, body.node(id).outputs[0].tensor);
  for (const Function::Result& r : body.results()) add(call.out, body.tensor(r.ref));
  return call;
}

TEST(CountedLoop, Programs) {
  Module module = parse_module(R"(module m format 1
symbol T in 1..4096
func residual {
  %0 = input x : f32[t=T, d=40]
  %1 = input y : f16[t=T, d=40]
  %2 = input w : f32[d=40]
  %3 = cast(%1) {dtype="f32"}
  %4 = add(%0, %3)
  %5 = rms_norm(%4, %2) {eps=1e-05}
  return sum = %4
  return out = %5
}
func halves {
  %0 = input x : f32[t=T, d=64]
  %1 = slice(%0) {axis=1, start=0, end=32}
  %2 = silu(%1)
  return out = %2
}
func gate {
  %0 = input g : f32[t=T, d=64]
  %1 = input u : f32[t=T, d=64]
  %2 = silu(%0)
  %3 = mul(%2, %1)
  %4 = quantize(%3) {format="q8a"}
  return out = %4
}
)");
  PlanSet set;
  set.symbols = module.symbols;
  StepInputs step;
  SymbolMap symbols{{"T", 7}};
  TrafficSite site{set, step, symbols};
  std::map<std::string, double> bytes = {
      {"residual", 7 * 40 * (4 + 2 + 4 + 4) + 40 * 4},
      {"halves", 7 * 32 * 4 * 2},
      {"gate", 7 * 64 * 4 * 2 + 7 * 2 * double(dtype_info(DType::kQ8A).block_bytes)}};
  for (const auto& fn : module.functions) {
    KernelCall call = loop_call(set, *fn);
    std::optional<CallTraffic> counted = count_traffic(site, call);
    ASSERT_TRUE(counted);
    EXPECT_EQ(predict_traffic(site, call).in, counted->in) << fn->name();
    EXPECT_EQ(predict_traffic(site, call).out, counted->out) << fn->name();
    EXPECT_EQ(counted->bytes(), bytes.at(fn->name())) << fn->name();
    EXPECT_GT(predict_work(site, call).vector, 0) << fn->name();
  }
}

TEST(Trace, CountsDistinctElementsAndBlocks) {
  TracedMemory<Traced> x(100), y(100);
  Trace trace;
  size_t from = trace.watch(x.data(), 100), to = trace.watch(y.data(), 100);
  for (int i = 0; i < 3; ++i) y.data()[50] = x.data()[7] + x.data()[8] + x.data()[40];
  EXPECT_EQ(trace.read(from), 3);
  EXPECT_EQ(trace.read(from, 32), 2);
  EXPECT_EQ(trace.written(from), 0);
  EXPECT_EQ(trace.written(to), 1);
  y.data()[1] = x.data()[99];
  EXPECT_EQ(trace.read(from), 4);
  EXPECT_EQ(trace.written(to), 2);
  EXPECT_EQ(trace.read(to), 0);
}

TEST(Shape, DefaultsAndErrors) {
  StepShape d = parse_shape("decode", {"B=8", "S=4096"});
  EXPECT_EQ(d.tokens, 8);
  EXPECT_EQ(d.kv_len, 4096);
  EXPECT_EQ(d.logit_rows, 8);
  StepShape s = parse_shape("step", {"T=100", "B=3"});
  EXPECT_EQ(s.kv_len, 34);
  EXPECT_EQ(s.logit_rows, 3);
  EXPECT_EQ(parse_shape("verify3", {"B=2"}).tokens, 8);
  StepShape cut = parse_shape("decode", {"B=2"});
  fit_context(cut, 64);
  EXPECT_EQ(cut.kv_len, 64);
  fit_context(d, 64);  // an explicit S is kept
  EXPECT_EQ(d.kv_len, 4096);
  auto message = [](const char* fn, std::vector<std::string> items) {
    try {
      parse_shape(fn, items);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(message("prefill", {}).find("step, decode or verify<k>"), std::string::npos);
  EXPECT_NE(message("decode", {"X=1"}).find("B and S"), std::string::npos);
  EXPECT_NE(message("decode", {"T=1"}).find("B and S"), std::string::npos);
  EXPECT_NE(message("decode", {"B=0"}).find("a number from 1"), std::string::npos);
  EXPECT_NE(message("decode", {"B"}).find("B and S"), std::string::npos);
  EXPECT_NE(message("step", {"T=8", "S=4"}).find("S=4"), std::string::npos);
  EXPECT_NE(message("step", {"T=2", "B=4"}).find("4 sequences"), std::string::npos);
}

TEST(Fold, NamesAndRanges) {
  EXPECT_EQ(layer_of("blk.12.attn_q"), 12);
  EXPECT_EQ(layer_of("output_norm"), -1);
  EXPECT_EQ(without_layer("blk.0.attn_q+blk.0.attn_k"), "blk.*.attn_q+blk.*.attn_k");
  EXPECT_EQ(layer_ranges({0, 1, 2, 4, 6, 7}), "0-2, 4, 6-7");
  EXPECT_EQ(layer_ranges({-1}), "");
}

Value report_of(const Built& m, const std::string& fn, const StepShape& shape, bool count = true) {
  ExplainRequest r;
  r.model = m.set.model;
  r.function = fn;
  r.mode = "compiled";
  r.shape = shape;
  r.backend = "cpu";
  r.set = &m.set;
  r.fusion = m.fusion.get();
  r.passes = m.passes.get();
  r.count = count;
  return explain(r);
}

TEST(Explain, ReportAddsUp) {
  auto m = build("llama.gguf", "decode");
  if (!m) GTEST_SKIP() << "no tiny models";
  StepShape shape = parse_shape("decode", {"B=2", "S=64"});
  Value report = report_of(*m, "decode", shape);
  const Value& totals = report.at("totals");
  EXPECT_EQ(totals.at("counted_bytes").as_double(), totals.at("bytes").as_double());
  EXPECT_TRUE(totals.at("counted_equal").as_bool());
  int64_t calls = 0;
  double bytes = 0;
  for (const Value& k : report.at("kernels").as_array()) {
    calls += k.at("calls").as_int();
    bytes += k.at("bytes").as_double() * static_cast<double>(k.at("calls").as_int());
    EXPECT_FALSE(k.at("ops").as_array().empty());
    EXPECT_FALSE(k.at("why").as_string().empty());
    EXPECT_GT(k.at("bound_us").as_double(), 0);
  }
  EXPECT_EQ(calls, totals.at("calls").as_int());
  EXPECT_EQ(bytes, totals.at("bytes").as_double());
  // Layers are folded: fewer kinds than calls.
  EXPECT_LT(totals.at("kinds").as_int(), calls);
  // The highest end of a value is the planned peak.
  int64_t peak = 0;
  for (const Value& v : report.at("memory").at("values").as_array())
    peak = std::max(peak, v.at("offset").as_int() + v.at("bytes").as_int());
  int64_t planned = report.at("memory").at("peak").as_int();
  EXPECT_LE(peak, planned);
  EXPECT_GT(peak + 64, planned);
  EXPECT_GE(planned, report.at("memory").at("lower_bound").as_int());
  EXPECT_GE(report.at("passes").size(), 5u);
  EXPECT_EQ(report.at("graphs").as_array()[0].at("stage").as_string(), "captured");
  EXPECT_NE(explain_text(report).find("PASSES"), std::string::npos);
  EXPECT_EQ(explain_html(report).find("/*DATA*/"), std::string::npos);
  CallProfile profile;
  profile.spans.push_back(
      {static_cast<uint32_t>(report.at("plan").at("index").as_int()), 0, 1000, 3000});
  Value trace = parse_json(explain_trace(report, profile), "trace");
  EXPECT_GT(trace.at("traceEvents").size(), report.at("passes").size() + 4);
}

TEST(Explain, PlansOfManyRowsHaveAFunctionOfTheirOwn) {
  for (const char* fn : {"step", "decode"}) {
    auto m = build("llama.gguf", fn, "mixed");
    if (!m) GTEST_SKIP() << "no tiny models";
    for (int64_t rows : {31, 32}) {
      const std::string source = rows < 32 ? fn : std::string(fn) + "_many";
      Value report = report_of(*m, fn, {rows, rows, 1, rows}, false);
      const Value& passes = report.at("passes");
      ASSERT_GT(passes.size(), 1u);
      EXPECT_EQ(passes.as_array().front().at("function").as_string(), "step");
      EXPECT_EQ(passes.as_array().back().at("function").as_string(), source);
      EXPECT_EQ(report.at("graphs").as_array().back().at("function").as_string(), source);
      ASSERT_FALSE(report.at("fusion").is_null()) << source;
      EXPECT_EQ(report.at("fusion").at("calls_after").as_int(),
                static_cast<int64_t>(m->fusion->totals.at(source).calls_after));
    }
  }
}

TEST(Explain, WarnsOfAMachineThatIsNotMeasured) {
  auto m = build("llama.gguf", "decode");
  if (!m) GTEST_SKIP() << "no tiny models";
  Value report = report_of(*m, "decode", parse_shape("decode", {"B=2", "S=64"}));
  ASSERT_EQ(report.at("warnings").size(), 1u);
  const std::string warning = report.at("warnings").as_array()[0].as_string();
  EXPECT_NE(warning.find("not measured"), std::string::npos);
  EXPECT_NE(explain_text(report).find("warning: " + warning), std::string::npos);
  EXPECT_NE(explain_html(report).find(warning), std::string::npos);
  report.set("warnings", Value::array());
  EXPECT_EQ(explain_text(report).find("not measured"), std::string::npos);
  EXPECT_EQ(explain_html(report).find(warning), std::string::npos);
}

TEST(Explain, ProfileOfARun) {
  const char* folder = std::getenv("TOKAMAK_TINY_MODELS");
  auto m = build("llama.gguf", "decode");
  if (!m) GTEST_SKIP() << "no tiny models";
  StepShape shape{2, 2, 20, 2};
  CallProfile profile;
  LoadOptions options;
  options.blocks = blocks_for(m->set, shape);
  options.profile = &profile;
  OpenedModel opened = open_model(std::filesystem::path(folder) / "llama.gguf");
  auto executable = m->backend->load(m->set, *opened.model.weights, options);
  StepInputs step = make_step(m->set, "decode", shape);
  StepResult result;
  executable->collect(executable->submit(step), result);
  size_t plan = plan_for(m->set, "decode", shape);
  const size_t calls = m->set.plans[plan].calls.size(), spans = profile.spans.size();
  ASSERT_GT(spans, calls);  // the rest is the plan that samples
  for (size_t i = 0; i < spans; ++i) {
    const CallProfile::Span& s = profile.spans[i];
    EXPECT_EQ(s.call, i < calls ? i : i - calls);
    EXPECT_EQ(m->set.plans[s.plan].function, i < calls ? "decode" : "sample");
    EXPECT_LE(s.begin, s.end);
  }
  profile.on = false;
  executable->collect(executable->submit(step), result);
  EXPECT_EQ(profile.spans.size(), spans);
}

}  // namespace
}  // namespace tokamak
