#pragma once
// Small models (TOKAMAK_STREAM_MODELS) through the persistent kernel or fused layers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "backend/cuda/emulator/fake_driver.h"
#include "tests/numerics/model_runner.h"

namespace tokamak {

inline bool on_gpu() { return std::getenv("TOKAMAK_TEST_GPU") != nullptr; }

inline std::string model_path(const std::string& name) {
  const char* folder = std::getenv("TOKAMAK_STREAM_MODELS");
  if (!folder) return {};
  auto path = std::filesystem::path(folder) / (name + ".gguf");
  return std::filesystem::exists(path) ? path.string() : std::string();
}

inline constexpr const char* kStorage = "bf16,residual=f32";

inline int64_t emulated_launches(std::string_view kernel) {
  const auto& launches = cuda::fake_driver().launches;
  return std::count_if(launches.begin(), launches.end(),
                       [kernel](const auto& l) { return l.kernel == kernel; });
}

class CudaStream : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    path_ = model_path(GetParam());
    if (path_.empty()) GTEST_SKIP() << "no " << GetParam() << ".gguf in TOKAMAK_STREAM_MODELS";
  }
  static RunnerOptions options(const char* backend) {
    return {.backend = backend, .storage = kStorage, .kv_dtype = DType::kF16};
  }
  std::string path_;
};

// Makes the rows of a step choose tokens.
inline void sample_all(StepInputs& step, const SampleSpec& spec) {
  auto shared = std::make_shared<const SampleSpec>(spec);
  for (size_t r = 0; r < step.samples.size(); ++r) {
    step.samples[r].mode = SampleRow::Mode::kSample;
    step.samples[r].spec = shared;
    step.samples[r].position = step.pos[static_cast<size_t>(step.out_rows[r])] + 1;
  }
}

}  // namespace tokamak
