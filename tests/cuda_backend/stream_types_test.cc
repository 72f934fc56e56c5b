// Weights of other types than bf16: in fused layers and in the persistent kernel.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/cuda_backend/stream_fixture.h"

namespace tokamak {
namespace {

// Weights that are not bf16 are rounded to it for steps of many rows, which run in fused layers.
class CudaExpandedWeights : public CudaStream {};

TEST_P(CudaExpandedWeights, PromptsRunInFusedLayers) {
  RunnerOptions ref_options = options("ref"), cuda_options = options("cuda");
  ref_options.max_tokens = cuda_options.max_tokens = 128;
  ModelRunner ref(path_, ref_options), cuda(path_, cuda_options);
  SampleSpec greedy;
  greedy.temperature = 0;
  cuda.edit = [&](StepInputs& step) { sample_all(step, greedy); };
  std::vector<int32_t> prompt;
  for (int i = 0; i < 66; ++i) prompt.push_back(i * 37 % 251);
  const int64_t layers = emulated_launches("op_rotate_append"),
                expanded = emulated_launches("op_expand");
  std::vector<float> got;
  std::vector<double> want;
  for (const auto& row : cuda.all_logits(0, prompt, prompt.size()))
    got.insert(got.end(), row.begin(), row.end());
  for (const auto& row : ref.all_logits(0, prompt, prompt.size()))
    want.insert(want.end(), row.begin(), row.end());
  std::printf("nmse %s, expanded: %.2e\n", GetParam(), nmse(got, want));
  EXPECT_LE(nmse(got, want), 5e-4);
  if (on_gpu()) return;
  const int64_t run = emulated_launches("op_rotate_append") - layers;
  EXPECT_GT(run, 0);
  EXPECT_EQ(emulated_launches("op_expand") - expanded, 7 * run);  // products of a layer
}

INSTANTIATE_TEST_SUITE_P(Types, CudaExpandedWeights,
                         testing::Values("llama_q8_0", "llama_q4_0", "llama_q4_k", "llama_f16",
                                         "llama_mixed", "llama_q6_k_head"),
                         [](const auto& info) { return std::string(info.param); });

// Steps of few rows: on Hopper in fused layers, whose products read the weights as they are stored.
class CudaFewRows : public CudaStream {};

TEST_P(CudaFewRows, LogitsAreThoseOfRef) {
  if (std::string_view(GetParam()) == "llama_bf16" && !on_gpu())
    GTEST_SKIP() << "other tests emulate it";
  RunnerOptions ref_options = options("ref"), cuda_options = options("cuda");
  ref_options.max_tokens = cuda_options.max_tokens = 128;
  ref_options.sequences = cuda_options.sequences = 10;
  ModelRunner ref(path_, ref_options), cuda(path_, cuda_options);
  SampleSpec greedy;
  greedy.temperature = 0;
  cuda.edit = [&](StepInputs& step) { sample_all(step, greedy); };
  int sequence = 0;
  using Rows = std::vector<size_t>;
  for (size_t rows : on_gpu() ? Rows{1, 2, 5, 16, 23, 32, 41, 64, 100, 128} : Rows{2, 20}) {
    std::vector<int32_t> prompt;
    for (size_t i = 0; i < rows; ++i) prompt.push_back(static_cast<int32_t>((i * 37 + rows) % 251));
    std::vector<float> got;
    std::vector<double> want;
    for (const auto& row : cuda.all_logits(sequence, prompt, rows))
      got.insert(got.end(), row.begin(), row.end());
    for (const auto& row : ref.all_logits(sequence++, prompt, rows))
      want.insert(want.end(), row.begin(), row.end());
    std::printf("nmse %s, %zu rows: %.2e\n", GetParam(), rows, nmse(got, want));
    EXPECT_LE(nmse(got, want), 5e-4) << rows << " rows";
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaFewRows,
                         testing::Values("llama_bf16", "llama_q8_0", "llama_q4_0", "llama_q4_k",
                                         "llama_f16", "llama_mixed", "llama_q6_k_head"),
                         [](const auto& info) { return std::string(info.param); });

// Mixtures of block formats in the persistent kernel.
class CudaKQuants : public CudaStream {};

TEST_P(CudaKQuants, OneSequenceRunsInThePersistentKernel) {
  ModelRunner ref(path_, options("ref")), cuda(path_, options("cuda"));
  SampleSpec greedy;
  greedy.temperature = 0;
  cuda.edit = ref.edit = [&](StepInputs& step) { sample_all(step, greedy); };
  cuda.all_logits(0, {7, 8, 9}, 3);
  ref.all_logits(0, {7, 8, 9}, 3);
  const int64_t before = emulated_launches("decode_stream");
  std::vector<float> got;
  std::vector<double> want;
  constexpr int kSteps = 5;
  for (int32_t i = 0; i < kSteps; ++i) {
    const std::vector<ModelRunner::Part> parts = {{0, {i * 31 + 5}}};
    for (const auto& row : cuda.decode(parts)) got.insert(got.end(), row.begin(), row.end());
    for (const auto& row : ref.decode(parts)) want.insert(want.end(), row.begin(), row.end());
  }
  if (!on_gpu()) {
    EXPECT_EQ(emulated_launches("decode_stream") - before, kSteps);
  }
  std::printf("nmse %s, K-quants: %.2e\n", GetParam(), nmse(got, want));
  EXPECT_LE(nmse(got, want), 5e-4);
}

INSTANTIATE_TEST_SUITE_P(Types, CudaKQuants,
                         testing::Values("llama_q4_k_m", "llama_q5_k_m", "llama_q4_1"),
                         [](const auto& info) { return std::string(info.param); });

// Weights that are read as FP8: as far from the reference as FP8 is, and not farther.
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

}  // namespace
}  // namespace tokamak
