// Tiny models of every architecture on the cuda backend against the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "tests/numerics/model_runner.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

bool on_gpu() { return std::getenv("TOKAMAK_TEST_GPU") != nullptr; }

constexpr const char* kFolders[] = {"TOKAMAK_TINY_MODELS", "TOKAMAK_TINY_FAMILIES"};

// Families whose layers the other models do not have.
constexpr const char* kFamilies[] = {"mixtral",   "qwen2moe", "glm4moe",   "gpt_oss_mxfp4",
                                     "deepseek2", "mamba2",   "qwen3next", "deepseek3"};

std::string model_path(const std::string& name) {
  for (const char* variable : kFolders)
    if (const char* folder = std::getenv(variable); folder && fs::exists(fs::path(folder) / name))
      return (fs::path(folder) / name).string();
  return {};
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  const char* folder = std::getenv("TOKAMAK_TINY_MODELS");
  if (!folder || !fs::is_directory(folder)) return {"none"};
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::string name = entry.path().filename().string();
    if (fs::exists(entry.path() / "config.json") || entry.path().extension() == ".gguf")
      names.push_back(name);
  }
  for (const char* name : kFamilies)
    if (!model_path(name).empty()) names.push_back(name);
  std::sort(names.begin(), names.end());
  std::erase_if(names, [](const std::string& n) {  // encoders: attend_rows has no kernel here
    return n.find("bert") != std::string::npos || n.starts_with("nomic") ||
           n.starts_with("embeddinggemma");
  });
  if (on_gpu()) return names;
  // The emulator is slow: folders only, and not every variant of a family.
  std::erase_if(names, [](const std::string& n) {
    return n.ends_with(".gguf") || (n.starts_with("llama_") && n != "llama_bias");
  });
  return names;
}

class CudaModels : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    path_ = model_path(GetParam());
    if (path_.empty()) GTEST_SKIP() << "no " << GetParam() << " in TOKAMAK_TINY_MODELS";
    for (int i = 0; i < (on_gpu() ? 48 : 18); ++i) ids_.push_back((i * 37 + 11) % 101);
  }
  // The error of all logits against ref with the same options.
  double error(RunnerOptions options) {
    if (options.storage.empty()) options.storage = "f32";
    options.backend = "ref";
    ModelRunner ref(path_, options);
    options.backend = "cuda";
    ModelRunner cuda(path_, options);
    std::vector<float> got;
    std::vector<double> want;
    for (const auto& row : cuda.all_logits(0, ids_, 64))
      got.insert(got.end(), row.begin(), row.end());
    for (const auto& row : ref.all_logits(0, ids_, 64))
      want.insert(want.end(), row.begin(), row.end());
    return nmse(got, want);
  }
  std::string path_;
  std::vector<int32_t> ids_;
};

TEST_P(CudaModels, LogitsAreThoseOfTheReference) {
  struct Case {
    const char* name;
    RunnerOptions options;
    double bound;
  };
  std::vector<Case> cases = {{"f32", {}, 1e-9}, {"KV f16", {.kv_dtype = DType::kF16}, 1e-7}};
  if (on_gpu() || GetParam() == "llama") {
    cases.push_back({"KV int8", {.kv_dtype = DType::kI8}, 1e-4});
    cases.push_back({"storage bf16", {.storage = "bf16,residual=f32"}, 2e-4});
    cases.push_back({"storage f16", {.storage = "f16"}, 1e-5});
    cases.push_back({"q8a", {.activations = "auto"}, 1e-4});
  }
  if (GetParam() == "deepseek2")
    cases.push_back({"materialized prefill", {.materialized_prefill = true}, 1e-9});
  if (GetParam() == "mixtral" || GetParam() == "deepseek3")
    cases.push_back({"storage bf16", {.storage = "bf16,residual=f32"}, 2e-4});
  for (const Case& c : cases) {
    double e = error(c.options);
    EXPECT_LE(e, c.bound) << c.name;
    std::printf("nmse %s, %s: %.2e\n", GetParam().c_str(), c.name, e);
  }
}

TEST_P(CudaModels, GreedyTokensAreThoseOfTheReference) {
  ModelRunner ref(path_, {}), cuda(path_, {.backend = "cuda", .storage = "f32"});
  int count = on_gpu() ? 16 : 8;
  EXPECT_EQ(cuda.greedy(0, ids_, count), ref.greedy(0, ids_, count));
}

TEST_P(CudaModels, LogitBitsDoNotDependOnBatching) {
  constexpr const char* kEmulated[] = {"llama", "gemma3", "mixtral", "deepseek2", "mamba2"};
  if (!on_gpu() &&
      std::find(std::begin(kEmulated), std::end(kEmulated), GetParam()) == std::end(kEmulated))
    return;
  ModelRunner runner(
      path_, {.backend = "cuda", .storage = "f32", .kv_dtype = DType::kF16, .sequences = 24});
  auto whole = runner.all_logits(0, ids_, 64);
  std::vector<ModelRunner::Part> many;  // padded to 16
  for (int32_t s = 6; s < 17; ++s) many.push_back({s, {}});
  EXPECT_EQ(runner.all_logits(1, ids_, 5), whole) << "chunks of 5";
  for (size_t i = 0; i < ids_.size(); ++i)
    EXPECT_EQ(runner.decode({{2, {ids_[i]}}})[0], whole[i]) << "decode, token " << i;
  for (size_t i = 0; i + 1 < ids_.size(); ++i) {
    auto rows = runner.step({{3, {ids_[i]}}, {4, {ids_[i]}}, {5, {ids_[i]}}});
    for (const auto& row : rows) EXPECT_EQ(row, whole[i]) << "three at a time, token " << i;
  }
  for (size_t i = 0; i < 3; ++i) {
    for (ModelRunner::Part& part : many) part.ids = {ids_[i]};
    for (const auto& row : runner.decode(many)) EXPECT_EQ(row, whole[i]) << "padded, token " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, CudaModels, testing::ValuesIn(model_names()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

}  // namespace
}  // namespace tokamak
