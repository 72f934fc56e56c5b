// Decode steps by the persistent kernel: from the plan to tokens, against the reference. Without a
// GPU a program of the kernel is interpreted on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "backend/common/sampler.h"
#include "backend/cuda/decode_plan.h"
#include "backend/cuda/executable.h"
#include "tests/cuda_backend/stream_fixture.h"

namespace tokamak {
namespace {

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
    EXPECT_GT(emulated_launches("op_rotate_append"), layers_before);  // the longest prompt
  }
  const double error = nmse(got, want);
  std::printf("nmse %s: %.2e\n", GetParam(), error);
  EXPECT_LE(error, 5e-4);
}

// Decode steps of more than eight sequences are padded to a few sizes, whose graphs are there
// before the first step.
TEST_P(CudaStream, PaddedBatchesAreGraphsFromTheFirstStepOn) {
  RunnerOptions wide = options("ref");
  wide.sequences = 24;
  ModelRunner ref(path_, wide);
  wide.backend = "cuda";
  ModelRunner cuda(path_, wide);
  SampleSpec spec;
  spec.temperature = 0;
  cuda.edit = ref.edit = [&](StepInputs& step) { sample_all(step, spec); };
  std::vector<float> got;
  std::vector<double> want;
  const int64_t before = cuda::fake_driver().graph_launches;
  int64_t steps = 0;
  for (int batch : {9, 11, 17, 16}) {
    spec.repetition_penalty = steps % 2 ? 1.1f : 1.0f;  // tokens are chosen after the graph
    std::vector<ModelRunner::Part> parts;
    for (int s = 0; s < batch; ++s)
      parts.push_back({s, {static_cast<int32_t>((steps * 31 + s) % 251)}});
    for (const auto& row : cuda.decode(parts)) got.insert(got.end(), row.begin(), row.end());
    for (const auto& row : ref.decode(parts)) want.insert(want.end(), row.begin(), row.end());
    ++steps;
  }
  if (GetParam() == std::string("llama_bf16")) {  // fused layers, also without Hopper
    EXPECT_EQ(cuda.dispatch().captures, 0);
    EXPECT_EQ(cuda.dispatch().graphs, steps);
    cuda.decode({{0, {1}}});  // not padded
    EXPECT_EQ(cuda.dispatch().fallbacks, 0);
    EXPECT_EQ(cuda::fake_driver().graph_launches - before, on_gpu() ? 0 : steps);
  }
  std::printf("nmse %s, padded: %.2e\n", GetParam(), nmse(got, want));
  EXPECT_LE(nmse(got, want), 5e-4);
}

// Graphs that are replayed give the bits of launches one by one, and the logits of plans that run
// op by op, while batches change from step to step and sequences end and begin.
TEST_P(CudaStream, ManyStepsOfChangingBatchesAreThoseOfSingleLaunches) {
  auto without = [&](const std::vector<const char*>& switches) {
    for (const char* s : switches) setenv(s, "0", 1);
    auto made = std::make_unique<ModelRunner>(path_, options("cuda"));
    for (const char* s : switches) unsetenv(s);
    return made;
  };
  const auto replayed = without({}), launched = without({"TOKAMAK_CUDA_GRAPHS"});
  const auto by_op = without({"TOKAMAK_CUDA_GRAPHS", "TOKAMAK_CUDA_STREAM", "TOKAMAK_CUDA_LAYERS"});
  SampleSpec greedy;
  greedy.temperature = 0;
  for (ModelRunner* r : {replayed.get(), launched.get(), by_op.get()})
    r->edit = [&](StepInputs& step) { sample_all(step, greedy); };
  const int sequences = on_gpu() ? 8 : 3, steps = on_gpu() ? 1000 : 5;
  constexpr int kLongest = 100;
  std::vector<int> lengths(static_cast<size_t>(sequences));
  double worst = 0;
  for (int step = 0; step < steps; ++step) {
    const int batch = 1 + step * step / 3 % sequences;
    std::vector<ModelRunner::Part> parts;
    for (int b = 0; b < batch; ++b) {
      const int s = (step / 5 + b) % sequences;
      if (int& length = lengths[static_cast<size_t>(s)]; ++length > kLongest - 9 * s) {
        length = 1;
        for (ModelRunner* r : {replayed.get(), launched.get(), by_op.get()}) r->restart(s);
      }
      parts.push_back({s, {(step * 31 + s * 7) % 251}});
    }
    const auto got = replayed->decode(parts);
    ASSERT_EQ(got, launched->decode(parts)) << "step " << step << ", batch " << batch;
    const auto want = by_op->decode(parts);
    for (size_t b = 0; b < got.size(); ++b)
      worst = std::max(worst, nmse(got[b], {want[b].begin(), want[b].end()}));
  }
  std::printf("worst nmse of a row in %d steps, %s: %.2e\n", steps, GetParam(), worst);
  EXPECT_GT(worst, 0) << "the same kernels ran";
  EXPECT_LE(worst, 2e-3);
}

// What rows may ask for, and whether the device does it.
struct Asked {
  SampleSpec spec;
  bool on_device = true, masked = false;
};
std::vector<Asked> all_asked() {
  std::vector<Asked> out;
  auto add = [&](auto&& change) -> Asked& {
    Asked& a = out.emplace_back();
    a.spec.seed = 11 + out.size();
    change(a.spec);
    return a;
  };
  add([](SampleSpec& s) { s.temperature = 0; });
  add([](SampleSpec& s) { s.temperature = 0.8f; });
  add([](SampleSpec& s) { s.top_k = 5; });
  add([](SampleSpec& s) { s.top_p = 0.7f; });
  add([](SampleSpec& s) { s.min_p = 0.05f; });
  add([](SampleSpec& s) { s.top_logprobs = 0; });
  add([](SampleSpec& s) { s.top_logprobs = 7, s.temperature = 0; });
  add([](SampleSpec& s) { s.repetition_penalty = 1.3f, s.temperature = 0; });
  add([](SampleSpec& s) { s.presence_penalty = 0.7f, s.frequency_penalty = 0.3f; });
  add([](SampleSpec& s) { s.frequency_penalty = -0.4f, s.top_k = 40, s.top_p = 0.9f; });
  add([](SampleSpec& s) { s.logit_bias = {{3, 5.f}, {300, 40.f}, {3, -2.5f}, {9, -100.f}}; });
  add([](SampleSpec& s) { s.min_tokens = 9, s.banned_until_min = {1, 2, 3, 300}; });
  add([](SampleSpec& s) { s.repetition_penalty = 1.1f, s.min_p = 0.02f, s.top_logprobs = 3; });
  add([](SampleSpec& s) { s.temperature = 0; }).masked = true;
  add([](SampleSpec& s) { s.top_k = 50; }).masked = true;
  add([](SampleSpec& s) { s.top_p = 0.5f, s.top_logprobs = 2; }).masked = true;
  add([](SampleSpec& s) { s.presence_penalty = 0.5f; }).masked = true;
  add([](SampleSpec& s) { s.typical_p = 0.6f; }).on_device = false;
  add([](SampleSpec& s) { s.dry_multiplier = 0.8f, s.temperature = 0; });
  add([](SampleSpec& s) {
    s.dry_multiplier = 3, s.dry_breakers = {44}, s.repetition_penalty = 1.2f;
    s.logit_bias = {{55, 2.f}, {77, 2.f}};
  });
  add([](SampleSpec& s) { s.order = {SampleStage::kTopK}, s.top_k = 3; }).on_device = false;
  add([](SampleSpec& s) { s.xtc_probability = 0.9f; }).on_device = false;
  add([](SampleSpec& s) { s.top_n_sigma = 1; }).on_device = false;
  add([](SampleSpec& s) { s.dynatemp_range = 0.5f; }).on_device = false;
  return out;
}

class DeviceChoice {
 public:
  static constexpr int kSequences = 3;
  explicit DeviceChoice(const std::string& path, const char* storage = kStorage,
                        Shapes shapes = Shapes::kAuto)
      : backend_(make_backend("cuda")) {
    CompileOptions compile;
    compile.storage = storage;
    compile.shapes = shapes;
    compile.max_sequences = 4;
    source_ = compile_model(path, *backend_, compile);
    LoadOptions load;
    load.max_rows = 4;
    load.blocks = {16};
    executable_ = backend_->load(source_->plans(), source_->weights(), load);
  }
  int64_t vocab() const { return source_->plans().vocab; }
  const cuda::CudaExecutable& loaded() const {
    return dynamic_cast<const cuda::CudaExecutable&>(*executable_);
  }
  static StepInputs step_of(const Asked& asked, int position) {
    StepInputs step;
    step.function = "decode";
    step.return_logits = true;
    for (int b = 0; b < kSequences; ++b) {
      step.ids.push_back(17 * b + position);
      step.pos.push_back(position);
      step.slot.push_back(position);
      step.seq.push_back(b);
      step.kv_len.push_back(position + 1);
      step.row.push_back(b);
      step.out_rows.push_back(b);
      step.q_start.push_back(b);
      std::vector<int32_t> history;
      for (int i = 0; i < 40; ++i) history.push_back((i * (7 + b)) % 23 * 11);
      step.resets.push_back({b, 25, history});
    }
    step.q_start.push_back(kSequences);
    step.tables.resize(1);
    step.tables[0] = {{3, 5, 7}, 1};
    step.samples.resize(kSequences);
    sample_all(step, asked.spec);
    for (SampleRow& s : step.samples) s.masked = asked.masked;
    return step;
  }
  // The last sequence is allowed nothing.
  std::vector<uint32_t> mask(int sequence) const {
    std::vector<uint32_t> words(mask_words(vocab()), 0);
    for (int i = 0; sequence < kSequences - 1 && i < vocab(); i += 3 + sequence)
      words[static_cast<size_t>(i / 32)] |= 1u << (i % 32);
    return words;
  }
  StepResult device(const StepInputs& step) {
    Ticket ticket = executable_->submit(step);
    for (int b = 0; step.samples[0].masked && b < kSequences; ++b)
      executable_->set_mask(ticket, b, mask(b));
    StepResult result;
    executable_->collect(ticket, result);
    return result;
  }
  StepResult host(const StepInputs& step, const std::vector<float>& logits) const {
    Sampler sampler(vocab(), 4);
    StepResult result;
    sampler.begin(step);
    sampler.finish(step, logits.data(), result);
    for (int b = 0; step.samples[0].masked && b < kSequences; ++b) sampler.set_mask(b, mask(b));
    sampler.complete(result);
    return result;
  }

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ModelSource> source_;
  std::unique_ptr<Executable> executable_;
};

// The tokens that the device chooses are those that the host chooses from the same logits, and so
// are log-probabilities and the best tokens.
TEST_P(CudaStream, TokensAreTheHostsOfTheSameLogits) {
  DeviceChoice choice(path_);
  int position = 0;
  int64_t on_host = 0;
  for (const Asked& asked : all_asked()) {
    const StepInputs step = DeviceChoice::step_of(asked, position % 12);
    const StepResult device = choice.device(step), host = choice.host(step, device.logits);
    EXPECT_EQ(device.ids, host.ids) << "spec " << position;
    EXPECT_EQ(device.path, host.path) << "spec " << position;
    EXPECT_EQ(device.failed, host.failed) << "spec " << position;
    ASSERT_EQ(device.top.size(), host.top.size()) << "spec " << position;
    for (size_t i = 0; i < host.top.size(); ++i) {
      EXPECT_EQ(device.top[i].first, host.top[i].first);
      EXPECT_EQ(device.top[i].second.id, host.top[i].second.id);
      EXPECT_NEAR(device.top[i].second.logprob, host.top[i].second.logprob, 1e-5);
    }
    for (size_t b = 0; b < host.logprobs.size(); ++b)
      EXPECT_NEAR(device.logprobs[b], host.logprobs[b], 1e-5);
    if (asked.spec.top_logprobs >= 0) {
      EXPECT_LT(host.logprobs[0], 0);
    }
    if (asked.masked) {
      EXPECT_EQ(host.failed.back(), StepFailure::kNothingAllowed);
    }
    on_host += asked.on_device ? 0 : DeviceChoice::kSequences;
    EXPECT_EQ(choice.loaded().rows_chosen_on_host(), on_host) << "spec " << position;
    ++position;
  }
  EXPECT_EQ(choice.loaded().streamed_steps(), position);  // all in the persistent kernel
}

// Steps that are padded to fixed shapes: B and R of the plan are larger than the step's.
TEST(CudaPadding, PaddedStepsChooseTheSameTokensFromTheSameLogits) {
  const std::string path = model_path("llama_bf16");
  if (path.empty()) GTEST_SKIP() << "no models in TOKAMAK_STREAM_MODELS";
  DeviceChoice plain(path, "f32"), padded(path, "f32", Shapes::kFixed);
  const std::vector<Asked> specs = all_asked();
  for (int i = 0; i < 3; ++i) {  // top-k, penalties, a mask
    const StepInputs step = DeviceChoice::step_of(specs[2 + 6 * static_cast<size_t>(i)], i);
    const StepResult one = plain.device(step), other = padded.device(step);
    EXPECT_EQ(one.ids, other.ids) << i;
    EXPECT_EQ(one.logits, other.logits) << i;
  }
  EXPECT_EQ(padded.loaded().rows_chosen_on_host(), 0);
  EXPECT_GT(padded.loaded().dispatch().padded_rows, 0);
}

// Too many equal logits to sort: the host chooses these rows, and no others.
TEST(CudaTableSampler, RowsWithTooManyTiesAreLeftToTheHost) {
  constexpr int64_t kVocab = 6000;
  cuda::Device device(0);
  cuda::KernelLibrary kernels(device);
  cuda::DeviceStream stream;
  cuda::TableSampler sampler(kernels, kVocab, 2);
  SampleTable table(kVocab);
  auto spec = std::make_shared<SampleSpec>();
  spec->top_k = 10;
  spec->logit_bias = {{5, 1.f}};
  SampleRow row;
  row.spec = spec;
  table.clear();
  table.add(row, {}, 0, {});
  table.add(row, {}, 0, {});
  table.finish(nullptr);
  std::vector<float> logits(2 * kVocab, 0.5f);
  for (int64_t i = 0; i < kVocab; ++i)
    logits[static_cast<size_t>(i)] = 1e-3f * static_cast<float>(i);
  cuda::Buffer at(logits.size() * sizeof(float));
  at.write(logits.data(), logits.size() * sizeof(float));
  SampleTokens tokens;
  std::vector<int64_t> left;
  TokenChooser host(kVocab);
  sampler.run(stream, at.address(), table, host, tokens, left);
  EXPECT_EQ(left, std::vector<int64_t>{1});
  EXPECT_GE(tokens.ids[0], kVocab - 10);
}

INSTANTIATE_TEST_SUITE_P(Types, CudaStream,
                         testing::Values("llama_bf16", "qwen3_bf16", "llama_f16", "llama_q8_0",
                                         "llama_q4_0", "llama_q6_k_head"),
                         [](const auto& info) { return std::string(info.param); });

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
