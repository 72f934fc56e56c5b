// Decode steps by the persistent kernel: from the plan to tokens, against the reference. Without a
// GPU a program of the kernel is interpreted on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "backend/cuda/decode_plan.h"
#include "backend/cuda/emulator/fake_driver.h"
#include "backend/cuda/executable.h"
#include "tests/numerics/model_runner.h"

namespace tokamak {
namespace {

bool on_gpu() { return std::getenv("TOKAMAK_TEST_GPU") != nullptr; }

std::string model_path(const std::string& name) {
  const char* folder = std::getenv("TOKAMAK_STREAM_MODELS");
  if (!folder) return {};
  auto path = std::filesystem::path(folder) / (name + ".gguf");
  return std::filesystem::exists(path) ? path.string() : std::string();
}

constexpr const char* kStorage = "bf16,residual=f32";

int64_t emulated_launches(std::string_view kernel) {
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
void sample_all(StepInputs& step, const SampleSpec& spec) {
  auto shared = std::make_shared<const SampleSpec>(spec);
  for (size_t r = 0; r < step.samples.size(); ++r) {
    step.samples[r].mode = SampleRow::Mode::kSample;
    step.samples[r].spec = shared;
    step.samples[r].position = step.pos[static_cast<size_t>(step.out_rows[r])] + 1;
  }
}

TEST_P(CudaStream, LogitsAreThoseOfTheReferenceInEveryBatch) {
  ModelRunner ref(path_, options("ref")), cuda(path_, options("cuda"));
  SampleSpec greedy;
  greedy.temperature = 0;
  auto sample = [&](StepInputs& step) { sample_all(step, greedy); };
  auto prompt = [](int sequence) {
    std::vector<int32_t> ids;
    for (int i = 0; i < 3 + 7 * sequence; ++i) ids.push_back((i * 37 + sequence * 5) % 251);
    return ids;
  };
  const int sequences = on_gpu() ? 8 : 3;
  const int64_t layers_before = emulated_launches("op_rotate_append");
  std::vector<float> got;
  std::vector<double> want;
  auto add = [](const std::vector<std::vector<float>>& rows, auto& to) {
    for (const auto& row : rows) to.insert(to.end(), row.begin(), row.end());
  };
  for (int s = 0; s < sequences; ++s) {
    if (s > 0) cuda.edit = sample;  // rows that choose no token run op by op
    add(cuda.all_logits(s, prompt(s), 64), got);
    add(ref.all_logits(s, prompt(s), 64), want);
  }
  std::printf("nmse %s, prompts: %.2e\n", GetParam(), nmse(got, want));
  EXPECT_LE(nmse(got, want), 5e-4);
  got.clear();
  want.clear();
  cuda.edit = ref.edit = sample;
  const int64_t before = emulated_launches("decode_stream");
  int64_t steps = 0;
  // The number of sequences goes up and down, and so does which of them take part.
  for (int batch : {1, 2, sequences, 1, sequences - 1, sequences})
    for (int repeat = 0; repeat < 2; ++repeat, ++steps) {
      std::vector<ModelRunner::Part> parts;
      for (int s = 0; s < batch; ++s)
        parts.push_back({(s + batch) % sequences, {static_cast<int32_t>((steps * 31 + s) % 251)}});
      add(cuda.decode(parts), got);
      add(ref.decode(parts), want);
    }
  if (!on_gpu()) {
    EXPECT_EQ(emulated_launches("decode_stream") - before, steps);
    const bool bf16 = std::string_view(GetParam()).ends_with("bf16");
    EXPECT_EQ(emulated_launches("op_rotate_append") > layers_before, bf16);
  }
  const double error = nmse(got, want);
  std::printf("nmse %s: %.2e\n", GetParam(), error);
  EXPECT_LE(error, 5e-4);
}

// The tokens that the device chooses are those that the host chooses from the same logits.
TEST_P(CudaStream, TokensAreTheHostsOfTheSameLogits) {
  auto backend = make_backend("cuda");
  CompileOptions compile;
  compile.storage = kStorage;
  compile.max_sequences = 4;
  auto source = compile_model(path_, *backend, compile);
  LoadOptions load;
  load.max_rows = 4;
  load.blocks = {16};
  auto executable = backend->load(source->plans(), source->weights(), load);
  auto step_of = [&](const SampleSpec& spec, bool logits, int position) {
    StepInputs step;
    step.function = "decode";
    step.return_logits = logits;
    for (int b = 0; b < 3; ++b) {
      step.ids.push_back(17 * b + position);
      step.pos.push_back(position);
      step.slot.push_back(position);
      step.seq.push_back(b);
      step.kv_len.push_back(position + 1);
      step.row.push_back(b);
      step.out_rows.push_back(b);
      step.q_start.push_back(b);
    }
    step.q_start.push_back(3);
    step.tables.resize(1);
    step.tables[0] = {{3, 5, 7}, 1};
    step.samples.resize(3);
    sample_all(step, spec);
    StepResult result;
    executable->collect(executable->submit(step), result);
    return result;
  };
  std::vector<SampleSpec> specs(5);
  specs[0].temperature = 0;
  specs[1].temperature = 0.8f;
  specs[2].top_k = 5;
  specs[3].top_p = 0.7f;
  specs[4].min_p = 0.05f;
  for (size_t i = 0; i < specs.size(); ++i) {
    specs[i].seed = 11 + i;
    const int position = static_cast<int>(i);
    StepResult device = step_of(specs[i], false, position);
    // Log-probabilities are the host's work. The cache gets the same values once more.
    SampleSpec on_host = specs[i];
    on_host.top_logprobs = 0;
    StepResult host = step_of(on_host, true, position);
    EXPECT_EQ(device.ids, host.ids) << "spec " << i;
    EXPECT_EQ(device.path, host.path);
    if (i == 0)
      for (size_t b = 0; b < 3; ++b) {
        auto row = host.logits.begin() + static_cast<ptrdiff_t>(b) * source->plans().vocab;
        EXPECT_EQ(host.ids[b], std::max_element(row, row + source->plans().vocab) - row);
      }
  }
  auto* loaded = dynamic_cast<cuda::CudaExecutable*>(executable.get());
  ASSERT_NE(loaded, nullptr);
  EXPECT_EQ(loaded->streamed_steps(), 2 * std::ssize(specs));  // all in the persistent kernel
}

INSTANTIATE_TEST_SUITE_P(Types, CudaStream,
                         testing::Values("llama_bf16", "qwen3_bf16", "llama_q8_0", "llama_q4_0"),
                         [](const auto& info) { return std::string(info.param); });

// Layers whose weights are read as FP8: as far from the reference as FP8 is, and not farther.
TEST(CudaStreamPlan, Fp8WeightsAreCloseToTheReference) {
  const std::string path = model_path("llama_bf16");
  if (path.empty()) GTEST_SKIP() << "no models in TOKAMAK_STREAM_MODELS";
  const RunnerOptions options{.backend = "cuda", .storage = kStorage, .kv_dtype = DType::kF16};
  RunnerOptions of_ref = options;
  of_ref.backend = "ref";
  BackendOptions fp8;
  fp8.fp8 = true;
  auto backend = make_backend("cuda", fp8);
  CompileOptions compile;
  compile.storage = kStorage;
  compile.kv_dtype = DType::kF16;
  compile.max_sequences = options.sequences;
  compile.max_tokens = options.max_tokens;
  auto source = compile_model(path, *backend, compile);
  ModelRunner cuda(std::move(source), std::move(backend), options), ref(path, of_ref);
  SampleSpec greedy;
  greedy.temperature = 0;
  cuda.edit = ref.edit = [&](StepInputs& step) { sample_all(step, greedy); };
  std::vector<float> got;
  std::vector<double> want;
  for (int32_t i = 0; i < 6; ++i)
    for (auto [runner, to] : {std::pair{&cuda, 0}, std::pair{&ref, 1}})
      for (const auto& row : runner->decode({{0, {17 * i + 3}}, {1, {5 * i + 1}}})) {
        if (to == 0) got.insert(got.end(), row.begin(), row.end());
        if (to == 1) want.insert(want.end(), row.begin(), row.end());
      }
  std::printf("nmse fp8: %.2e\n", nmse(got, want));
  EXPECT_LE(nmse(got, want), 1e-2);
  EXPECT_GE(nmse(got, want), 3e-4);  // bf16 weights are nearer
}

std::string refusal(const std::string& path, const CompileOptions& options) {
  auto backend = make_backend("cuda");
  auto source = compile_model(path, *backend, options);
  for (const Plan& plan : source->plans().plans)
    if (plan.function == "decode") {
      std::string why;
      return cuda::find_decoder(source->plans(), plan, why) ? std::string() : why;
    }
  return "no plan";
}

TEST(CudaStreamPlan, WhatTheKernelCannotRunIsNamed) {
  const std::string path = model_path("llama_bf16");
  if (path.empty()) GTEST_SKIP() << "no models in TOKAMAK_STREAM_MODELS";
  CompileOptions options;
  options.storage = kStorage;
  EXPECT_EQ(refusal(path, options), "");
  options.kv_dtype = DType::kF32;
  EXPECT_EQ(refusal(path, options), "a KV cache of f32");
  options.kv_dtype = DType::kF16;
  options.storage = "f32";
  EXPECT_EQ(refusal(path, options),
            "values stored as f32: the kernel stores bf16 (--storage bf16,residual=f32)");
}

TEST(CudaStreamPlan, NumbersOfTheModelAreThoseOfItsPlan) {
  const std::string path = model_path("qwen3_bf16");
  if (path.empty()) GTEST_SKIP() << "no models in TOKAMAK_STREAM_MODELS";
  auto backend = make_backend("cuda");
  CompileOptions options;
  options.storage = kStorage;
  auto source = compile_model(path, *backend, options);
  const auto& plans = source->plans().plans;
  auto plan = std::find_if(plans.begin(), plans.end(),
                           [](const Plan& p) { return p.function == "decode"; });
  ASSERT_NE(plan, plans.end());
  std::string why;
  auto found = cuda::find_decoder(source->plans(), *plan, why);
  ASSERT_TRUE(found) << why;
  EXPECT_EQ(found->layers.size(), 3u);
  EXPECT_EQ(found->shape.hidden, 256);
  EXPECT_EQ(found->shape.mlp, 512);
  EXPECT_EQ(found->shape.heads, 8);
  EXPECT_EQ(found->shape.kv_heads, 2);
  EXPECT_EQ(found->shape.head_dim, 128);
  EXPECT_TRUE(found->shape.cache_f16);
  EXPECT_NE(found->layers[0].query_norm, cuda::kNoWeight);
  EXPECT_NE(found->layers[0].q, found->layers[1].q);
}

}  // namespace
}  // namespace tokamak
