// A bundle gives the same bits as its model, on this machine and at lower ISA levels, as do eager
// execution and every choice of shapes; nothing is compiled after loading.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "compile/bundle_compile.h"
#include "tests/numerics/model_runner.h"

namespace tokamak {
namespace {

std::string tiny_model(const char* name) {
  const char* folder = std::getenv("TOKAMAK_TINY_MODELS");
  return folder ? std::string(folder) + "/" + name : "";
}

RunnerOptions cpu_options(const std::string& backend = "cpu") {
  RunnerOptions o;
  o.backend = backend;
  o.activations = "auto";
  o.kv_dtype = DType::kF16;
  return o;
}

CompileOptions compile_like(const RunnerOptions& o) {
  CompileOptions c;
  c.activations = o.activations;
  c.kv_dtype = o.kv_dtype;
  c.max_sequences = o.sequences;
  c.max_tokens = o.max_tokens;
  c.max_logit_rows = o.max_tokens;
  return c;
}

class ScratchBundle {
 public:
  ScratchBundle()
      : path_(std::filesystem::temp_directory_path() / fmt::format("tk_{}.tkm", ::getpid())) {}
  ~ScratchBundle() {
    std::error_code ec;
    std::filesystem::remove(path_, ec);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::vector<float> logits_of(ModelRunner& runner) {
  std::vector<float> out;
  auto add = [&](const std::vector<std::vector<float>>& rows) {
    for (const auto& row : rows) out.insert(out.end(), row.begin(), row.end());
  };
  std::vector<int32_t> a, b;
  for (int32_t i = 0; i < 40; ++i) {
    a.push_back(i * 5 % 23);
    b.push_back(i * 3 % 19);
  }
  add(runner.all_logits(0, a, 17));
  add(runner.step({{0, {3}}, {1, b}}));
  for (int32_t i = 0; i < 4; ++i) add(runner.decode({{0, {i}}, {1, {i + 1}}}));
  add(runner.decode({{1, {2}}}));
  return out;
}

void expect_same(const std::vector<float>& a, const std::vector<float>& b,
                 const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << what;
}

ModelRunner runner_of(const std::filesystem::path& bundle, const RunnerOptions& options) {
  auto backend = make_backend(options.backend, {});
  auto model = std::make_unique<BundleModel>(BundleFile::open(bundle));
  fit_bundle(*model, *backend, nullptr);
  model->verify_weights();
  return ModelRunner(std::move(model), std::move(backend), options);
}

class BundleNumerics : public testing::Test {
 protected:
  void SetUp() override {
    if (tiny_model("").empty()) GTEST_SKIP() << "TOKAMAK_TINY_MODELS is not a folder";
    log::set_level(log::Level::kError);
  }
  void TearDown() override { log::set_level(log::Level::kInfo); }
};

TEST_F(BundleNumerics, TheSameBitsAsTheModel) {
  for (const char* name :
       {"smollm2.gguf", "gemma3", "qwen2", "phi3.gguf", "gpt2", "gemma3_types.gguf"})
    for (const char* backend_name : {"cpu", "ref"}) {
      if (std::string_view(backend_name) == "ref" && std::string_view(name) != "gemma3") continue;
      RunnerOptions options = cpu_options(backend_name);
      ScratchBundle bundle;
      auto backend = make_backend(backend_name, {});
      OpenedModel opened{import_model(tiny_model(name)), {}};
      BundleReport report =
          write_bundle(opened, *backend, compile_like(options), bundle.path(), "test");
      EXPECT_GT(report.weight_bytes, 0u);
      ModelRunner from_model(tiny_model(name), options),
          from_bundle = runner_of(bundle.path(), options);
      expect_same(logits_of(from_model), logits_of(from_bundle), name);
      EXPECT_EQ(from_bundle.memory().mapped > 0, options.backend == "cpu") << name;
    }
}

// Other instruction-set levels: the embedded graph is recompiled, weights are repacked.
TEST_F(BundleNumerics, AnotherIsaCompilesTheGraphInside) {
  RunnerOptions options = cpu_options();
  ScratchBundle bundle, again;
  OpenedModel opened{import_model(tiny_model("smollm2.gguf")), {}};
  write_bundle(opened, *make_backend("cpu", {}), compile_like(options), bundle.path(), "test");
  ::setenv("TOKAMAK_ISA", "scalar", 1);
  ModelRunner from_model(tiny_model("smollm2.gguf"), options);
  std::vector<float> want = logits_of(from_model);
  ModelRunner from_bundle = runner_of(bundle.path(), options);
  expect_same(want, logits_of(from_bundle), "scalar");
  EXPECT_EQ(from_bundle.plans().numerics_id, from_model.plans().numerics_id);
  ::unsetenv("TOKAMAK_ISA");
}

// Plans of an older program, whose kernels round in other places, are not run: the graph inside is
// compiled again, and one line says why.
TEST_F(BundleNumerics, AnotherNumericsIdCompilesTheGraphInside) {
  RunnerOptions options = cpu_options();
  ScratchBundle file;
  OpenedModel opened{import_model(tiny_model("smollm2.gguf")), {}};
  auto backend = make_backend("cpu", {});
  write_bundle(opened, *backend, compile_like(options), file.path(), "test");
  BundleModel bundle(BundleFile::open(file.path()));
  const std::string want = bundle.plans().numerics_id;
  PlanSet old = bundle.plans();
  const std::string kernel = old.kernels[0].name, rounds = old.kernels[0].numeric_class;
  old.kernels[0].numeric_class = "as it did before";
  old.numerics_id = "0123";
  bundle.replace_plans(old);
  log::set_level(log::Level::kWarn);
  testing::internal::CaptureStderr();
  fit_bundle(bundle, *backend, nullptr);
  const std::string said = testing::internal::GetCapturedStderr();
  const std::string name = file.path().string();
  EXPECT_EQ(said.substr(said.find(name)),
            fmt::format("{}: its kernel {} rounds as \"as it did before\", that of this program as "
                        "\"{}\"; compiling it again from the graph inside (tokamak compile {} -o "
                        "NEW.tkm keeps the result)\n",
                        name, kernel, rounds, name));
  EXPECT_EQ(bundle.plans().numerics_id, want);
}

// Likewise plans of an older version.
TEST_F(BundleNumerics, OldPlansCompileTheGraphInside) {
  RunnerOptions options = cpu_options();
  ScratchBundle file;
  OpenedModel opened{import_model(tiny_model("smollm2.gguf")), {}};
  auto backend = make_backend("cpu", {});
  write_bundle(opened, *backend, compile_like(options), file.path(), "test");
  {
    BundleModel whole(BundleFile::open(file.path()));
    PlanSet old = whole.plans();
    old.version = PlanSet::kVersion - 1;
    BundleWriter writer(file.path());
    backend->pack_weights(
        whole.plans(), *opened.model.weights,
        [&](const WeightEntry& e, const PackedWeight& p) { writer.add_weight(e, p); });
    writer.finish(whole.meta(), whole.graph(), old, whole.tokenizer());
  }
  BundleModel bundle(BundleFile::open(file.path()));
  EXPECT_FALSE(bundle.plans_readable());
  log::set_level(log::Level::kWarn);
  testing::internal::CaptureStderr();
  fit_bundle(bundle, *backend, nullptr);
  const std::string said = testing::internal::GetCapturedStderr();
  const std::string name = file.path().string();
  EXPECT_EQ(said.substr(said.find(name)),
            fmt::format("{}: its plans have version {}, this program runs version {}; compiling it "
                        "again from the graph inside (tokamak compile {} -o NEW.tkm keeps the "
                        "result)\n",
                        name, PlanSet::kVersion - 1, PlanSet::kVersion, name));
  EXPECT_EQ(bundle.plans().version, PlanSet::kVersion);
}

TEST_F(BundleNumerics, ABundleOfABundle) {
  RunnerOptions options = cpu_options();
  ScratchBundle first;
  std::filesystem::path second = first.path().string() + ".second";
  OpenedModel opened{import_model(tiny_model("gemma3")), {}};
  auto backend = make_backend("cpu", {});
  write_bundle(opened, *backend, compile_like(options), first.path(), "test");
  BundleModel model(BundleFile::open(first.path()));
  rewrite_bundle(first.path(), *backend, bundle_options(model), second, "test");
  ModelRunner a = runner_of(first.path(), options), b = runner_of(second, options);
  std::filesystem::remove(second);
  expect_same(logits_of(a), logits_of(b), "second");
}

ModelRunner runner_with(const char* name, const RunnerOptions& options,
                        const CompileOptions& compile) {
  auto backend = make_backend(options.backend, {});
  auto source = compile_model(tiny_model(name), *backend, compile);
  return ModelRunner(std::move(source), std::move(backend), options);
}

// One dynamic plan, buckets with padding, and eager plans: the same logits.
TEST_F(BundleNumerics, ShapesAndEagerGiveTheSameBits) {
  for (const char* name : {"smollm2.gguf", "gemma3"}) {
    RunnerOptions options = cpu_options();
    CompileOptions compile = compile_like(options);
    compile.disabled_passes = {"fold-scales", "fold-norms",
                               "recognize"};  // eager has none of these
    ModelRunner usual = runner_with(name, options, compile);
    std::vector<float> want = logits_of(usual);
    for (Shapes shapes : {Shapes::kDynamic, Shapes::kBuckets, Shapes::kFixed}) {
      CompileOptions other = compile;
      other.shapes = shapes;
      ModelRunner runner = runner_with(name, options, other);
      expect_same(want, logits_of(runner), name);
      const DispatchStats& d = runner.dispatch();
      EXPECT_EQ(d.compiles, 0);
      EXPECT_EQ(d.padded_rows > 0, shapes != Shapes::kDynamic);
      EXPECT_EQ(d.fallbacks, 0);
    }
    CompileOptions eager = compile;
    eager.eager = true;
    RunnerOptions eager_options = options;
    eager_options.eager = true;
    ModelRunner runner = runner_with(name, eager_options, eager);
    expect_same(want, logits_of(runner), name);
    EXPECT_EQ(runner.memory().arena, 0u);
  }
}

// Any shape within the limits, in any order: a plan exists, and none is compiled.
TEST_F(BundleNumerics, RandomShapesNeverCompile) {
  RunnerOptions options = cpu_options();
  options.length = 512;
  for (Shapes shapes : {Shapes::kAuto, Shapes::kDynamic, Shapes::kBuckets, Shapes::kFixed}) {
    CompileOptions compile = compile_like(options);
    compile.shapes = shapes;
    compile.max_logit_rows = options.max_tokens;
    ModelRunner runner = runner_with("smollm2.gguf", options, compile);
    Rng rng(17);
    int64_t rows = 0, steps = 0;
    for (int i = 0; i < 120; ++i) {
      std::vector<ModelRunner::Part> parts;
      auto most = static_cast<int>(1 + rng.below(8));
      bool decode = rng.below(2) == 0;
      for (int s = 0; s < most; ++s) {
        std::vector<int32_t> ids(decode ? 1 : 1 + rng.below(8), 5);
        rows += static_cast<int64_t>(ids.size());
        parts.push_back({s, std::move(ids)});
        runner.restart(s);
      }
      decode ? runner.decode(parts) : runner.step(parts);
      ++steps;
    }
    const DispatchStats& d = runner.dispatch();
    int64_t counted = 0;
    for (int64_t n : d.steps) counted += n;
    EXPECT_EQ(d.compiles, 0);
    EXPECT_EQ(counted, steps);
    EXPECT_EQ(d.rows, rows);
    EXPECT_EQ(d.fallbacks, 0);
  }
}

}  // namespace
}  // namespace tokamak
