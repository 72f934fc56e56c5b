// Text in, text out: a graph is compiled for a fixed machine, and its plans and the decisions of
// the compiler are compared with files (tests/golden/plan; TK_GOLDEN_WRITE=1 rewrites them).
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/file.h"
#include "base/json.h"
#include "compile/explain/explain.h"
#include "compile/fuse/report.h"

namespace tokamak {
namespace {

const std::filesystem::path kFolder = TK_PLAN_GOLDEN;

void expect_golden(const std::filesystem::path& path, const std::string& text) {
  SCOPED_TRACE(path);
  if (std::getenv("TK_GOLDEN_WRITE")) write_text_file(path, text);
  EXPECT_EQ(read_text_file(path), text);
}

struct Compiled {
  PlanSet set;
  std::shared_ptr<FusionReport> fusion = std::make_shared<FusionReport>();
  Machine machine;
};

Compiled compile_text(const std::string& text, const Backend& backend,
                      const std::filesystem::path& machine = kFolder / "machine.json",
                      const char* activations = "auto") {
  Compiled out;
  Module module = parse_module(text);
  verify_module(module);
  CompileOptions options;
  options.activations = activations;
  options.machine = machine;
  options.context = 128;
  options.max_sequences = module.find_symbol("B")->hi;
  options.max_tokens = module.find_symbol("T")->hi;
  options.max_logit_rows = module.find_symbol("R")->hi;
  options.fusion = out.fusion;
  ModelConfig config;  // of it only the sizes count
  config.name = module.name;
  config.layers = 1;
  config.vocab = module.find_weight("token_embd.weight")->type.extent(0).constant().value();
  config.hidden = module.find_weight("token_embd.weight")->type.extent(1).constant().value();
  out.set = compile_module(module, config, backend, options);
  out.set.numerics_id.clear();  // depends on the instruction set
  out.machine = load_machine_file(options.machine);
  return out;
}

std::string explain_call(const Compiled& c, const std::string& backend, const std::string& function,
                         const std::vector<std::string>& shape) {
  ExplainRequest r;
  r.model = c.set.model;
  r.function = function;
  r.mode = "compiled";
  r.shape = parse_shape(function, shape);
  r.backend = backend;
  r.isa = "any";
  r.machine = c.machine;
  r.set = &c.set;
  r.fusion = c.fusion.get();
  r.count = true;
  return explain_text(explain(r));
}

TEST(PlanGolden, TextInPlansAndReasonsOut) {
  std::string text = read_text_file(kFolder / "decoder.tkg");
  for (const std::string name : {"cpu", "ref"}) {
    auto backend = make_backend(name, {2, "", 0});
    Compiled c = compile_text(text, *backend);
    expect_golden(kFolder / ("decoder." + name + ".plan"), plan_set_text(c.set));
    if (name == "cpu")  // ref has no region kernels
      expect_golden(kFolder / "decoder.cpu.fusion", fusion_report_text(*c.fusion));
    expect_golden(kFolder / ("decoder." + name + ".explain"),
                  explain_call(c, name, "decode", {"B=2", "S=64"}) + "\n" +
                      explain_call(c, name, "step", {"B=2", "T=20", "S=64"}));
  }
}

// Plans without the names of calls.
std::string nameless(const PlanSet& set) {
  std::string text = plan_set_text(set);
  for (size_t at; (at = text.find("  # ")) != std::string::npos;)
    text.erase(at, text.find('\n', at) - at);
  return text;
}

// The decoder as other programs write it: norms, activations and rotations spelled out. Kernels,
// operands and offsets are those of the usual spelling.
TEST(PlanGolden, AnotherSpellingEndsInTheSamePlan) {
  auto backend = make_backend("cpu", {2, "", 0});
  std::string text = read_text_file(kFolder / "decoder.tkg");
  // In a graph eps is a constant of type f32: the same number in both must be one.
  for (size_t at; (at = text.find("eps=1e-5")) != std::string::npos;)
    text.replace(at, 8, "eps=7.62939453125e-06");
  Compiled usual = compile_text(text, *backend);
  for (const char* name : {"spelled_torch.tkg", "spelled_onnx.tkg", "spelled_xla.tkg"}) {
    SCOPED_TRACE(name);
    Compiled spelled = compile_text(read_text_file(kFolder / name), *backend);
    EXPECT_EQ(nameless(spelled.set), nameless(usual.set));
  }
}

// The same graph for machines that differ in the capacity of their nearest cache: values inside a
// region are free while a row of them fits, and go through the next level where it does not.
TEST(PlanGolden, CacheCapacityDecidesWhatIsFused) {
  std::string text = read_text_file(kFolder / "cache.tkg"), all;
  Value file = parse_json(read_text_file(kFolder / "machine.json"));
  auto backend = make_backend("cpu", {2, "", 0});
  std::set<std::string> plans;
  for (double capacity : {1.0, 65536.0, 1e15}) {
    auto level = [](const char* name, double bytes, double bandwidth) {
      return Value::Object{{"name", name}, {"capacity", bytes}, {"bandwidth", bandwidth}};
    };
    file.set("levels", Value::Array{level("L1", capacity, 2e11), level("L2", 64e6, 1e11),
                                    level("memory", 0, 5e10)});
    std::filesystem::path machine =
        testing::TempDir() + fmt::format("tokamak_l1_{:.0f}.json", capacity);
    write_text_file(machine, dump_json(file));
    // Its weights are f16: whether activations are rounded for them depends on the processor.
    Compiled c = compile_text(text, *backend, machine, "f32");
    std::filesystem::remove(machine);
    std::string calls;
    for (const Plan& plan : c.set.plans) {
      if (plan.function != "step") continue;
      calls += plan_name(plan) + ":";
      for (const KernelCall& call : plan.calls)
        calls += fmt::format(" {}", c.set.kernels[call.kernel].name);
      calls += "\n";
    }
    plans.insert(calls);
    std::erase_if(c.fusion->totals, [](const auto& total) { return total.first != "step"; });
    all +=
        fmt::format("L1 of {:.0f} bytes\n{}{}\n", capacity, calls, fusion_report_text(*c.fusion));
  }
  EXPECT_GT(plans.size(), 1u) << all;
  expect_golden(kFolder / "cache.cpu.fusion", all);
}

}  // namespace
}  // namespace tokamak
