// Trees of drafts in fused layers: against the same steps op by op and against the reference, with
// as many launches as a chain of the same size.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "backend/common/sampler.h"
#include "backend/cuda/emulator/fake_driver.h"
#include "backend/cuda/executable.h"
#include "compile/compiler.h"
#include "tests/numerics/model_runner.h"

namespace tokamak {
namespace {

bool tree_on_gpu() { return std::getenv("TOKAMAK_TEST_GPU") != nullptr; }

// What the rows of each sequence continue: the row before, or a random one (-1: the older tokens).
void make_rows_continue(StepInputs& step, bool tree, uint64_t seed) {
  Rng rng(seed);
  step.mask_width = 0;
  for (size_t b = 0; b + 1 < step.q_start.size(); ++b)
    step.mask_width = std::max(step.mask_width, step.q_start[b + 1] - step.q_start[b]);
  const auto width = static_cast<size_t>(step.mask_width);
  step.mask.assign(step.ids.size() * width, 0);
  for (size_t b = 0; b + 1 < step.q_start.size(); ++b) {
    const auto first = static_cast<size_t>(step.q_start[b]),
               end = static_cast<size_t>(step.q_start[b + 1]);
    const int32_t start = step.pos[first];
    for (size_t i = first; i < end; ++i) {
      const auto own = static_cast<int64_t>(i - first);
      const int64_t parent =
          tree ? static_cast<int64_t>(rng.below(static_cast<uint64_t>(own) + 1)) - 1 : own - 1;
      auto row = step.mask.begin() + static_cast<ptrdiff_t>(i * width);
      if (parent >= 0)
        std::copy_n(step.mask.begin() +
                        static_cast<ptrdiff_t>((first + static_cast<size_t>(parent)) * width),
                    width, row);
      row[own] = 1;
      step.pos[i] = parent < 0 ? start : step.pos[first + static_cast<size_t>(parent)] + 1;
    }
  }
}

class CudaTree : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("TOKAMAK_STREAM_MODELS");
    path_ = std::filesystem::path(folder ? folder : ".") / (std::string(GetParam()) + ".gguf");
    if (!folder || !std::filesystem::exists(path_)) GTEST_SKIP() << "no " << path_;
  }
  std::unique_ptr<ModelRunner> runner(const char* backend,
                                      const std::vector<const char*>& off = {}) {
    for (const char* variable : off) setenv(variable, "0", 1);
    RunnerOptions options{
        .backend = backend, .storage = "bf16,residual=f32", .kv_dtype = DType::kF16, .length = 256};
    auto made = make_backend(backend);
    CompileOptions compile;
    compile.storage = options.storage;
    compile.kv_dtype = options.kv_dtype;
    compile.max_sequences = options.sequences;
    compile.max_tokens = options.max_tokens;
    compile.tree_mask = true;
    auto source = compile_model(path_, *made, compile);
    auto out = std::make_unique<ModelRunner>(std::move(source), std::move(made), options);
    for (const char* variable : off) unsetenv(variable);
    return out;
  }
  static std::vector<ModelRunner::Part> parts(int round) {
    std::vector<ModelRunner::Part> out(2);
    for (int s = 0; s < 2; ++s) {
      out[static_cast<size_t>(s)].sequence = s;
      for (int i = 0; i < 12 - 7 * s; ++i)
        out[static_cast<size_t>(s)].ids.push_back((round * 31 + i * 7 + s) % 251);
    }
    return out;
  }
  std::filesystem::path path_;
};

void edit_steps(ModelRunner& runner, bool tree, uint64_t seed) {
  SampleSpec greedy;
  greedy.temperature = 0;
  auto spec = std::make_shared<const SampleSpec>(greedy);
  runner.edit = [=](StepInputs& step) {
    make_rows_continue(step, tree, seed);
    for (size_t r = 0; r < step.samples.size(); ++r) {
      step.samples[r].mode = SampleRow::Mode::kSample;
      step.samples[r].spec = spec;
      step.samples[r].position = step.pos[static_cast<size_t>(step.out_rows[r])] + 1;
    }
  };
}

TEST_P(CudaTree, FusedLayersGiveTheLogitsOfSingleCalls) {
  auto layers = runner("cuda"), by_op = runner("cuda", {"TOKAMAK_CUDA_LAYERS"}),
       ref = runner("ref");
  double worst = 0, between = 0;
  const size_t fused = cuda::fake_driver().launches.size();
  for (int round = 0; round < 4; ++round) {
    for (ModelRunner* r : {layers.get(), by_op.get(), ref.get()})
      edit_steps(*r, round > 0, static_cast<uint64_t>(round));
    const auto got = layers->step(parts(round)), single = by_op->step(parts(round)),
               want = ref->step(parts(round));
    for (size_t i = 0; i < want.size(); ++i) {
      worst = std::max(worst, nmse(got[i], {want[i].begin(), want[i].end()}));
      between = std::max(between, nmse(got[i], {single[i].begin(), single[i].end()}));
    }
  }
  std::printf("worst nmse of a row, %s: %.2e of ref, %.2e of single calls\n", GetParam(), worst,
              between);
  EXPECT_LE(worst, 2e-3);
  EXPECT_LE(between, 2e-3);
  if (tree_on_gpu()) return;
  const auto& launches = cuda::fake_driver().launches;
  auto count = [&](std::string_view kernel) {
    return std::count_if(launches.begin() + static_cast<ptrdiff_t>(fused), launches.end(),
                         [&](const auto& l) { return l.kernel.starts_with(kernel); });
  };
  EXPECT_GT(count("op_rotate_append"), 0);
  EXPECT_GT(count("op_flash_masked"), 0);
}

TEST_P(CudaTree, KeysOfALongContextAreDividedAmongBlocks) {
  auto layers = runner("cuda"), ref = runner("ref");
  const size_t before = cuda::fake_driver().launches.size();
  double worst = 0;
  for (int round = 0; round < 4; ++round) {  // three prompts of 48 tokens, then a tree of 12
    std::vector<ModelRunner::Part> rows = {{0, {}}};
    for (int i = 0; i < (round < 3 ? 48 : 12); ++i) rows[0].ids.push_back((round * 31 + i) % 251);
    for (ModelRunner* r : {layers.get(), ref.get()}) edit_steps(*r, round == 3, 7);
    const auto got = layers->step(rows), want = ref->step(rows);
    for (size_t i = 0; i < want.size(); ++i)
      worst = std::max(worst, nmse(got[i], {want[i].begin(), want[i].end()}));
  }
  EXPECT_LE(worst, 2e-3);
  if (tree_on_gpu()) return;
  const auto& launches = cuda::fake_driver().launches;
  EXPECT_TRUE(std::any_of(launches.begin() + static_cast<ptrdiff_t>(before), launches.end(),
                          [](const auto& l) { return l.kernel.starts_with("op_attend_join"); }));
}

// A tree whose mask were ignored would give other logits.
TEST_P(CudaTree, TheMaskIsRead) {
  auto tree = runner("cuda"), chain = runner("cuda");
  edit_steps(*tree, true, 5);
  edit_steps(*chain, false, 5);
  EXPECT_NE(tree->step(parts(0)).back(), chain->step(parts(0)).back());
}

TEST_P(CudaTree, ATreeTakesAsManyLaunchesAsAChain) {
  if (tree_on_gpu()) GTEST_SKIP() << "counts the launches of the emulator";
  auto steps = runner("cuda", {"TOKAMAK_CUDA_GRAPHS"});
  auto launches_of = [&](bool tree, int round) {
    edit_steps(*steps, tree, 3);
    const size_t before = cuda::fake_driver().launches.size();
    steps->step(parts(round));
    return cuda::fake_driver().launches.size() - before;
  };
  const size_t chain = launches_of(false, 0);
  EXPECT_GT(chain, 10u);
  EXPECT_EQ(launches_of(true, 1), chain);
  // Trees of one size have one graph.
  auto replayed = runner("cuda");
  const int64_t before = cuda::fake_driver().graph_launches;
  for (int round = 0; round < 4; ++round) {
    edit_steps(*replayed, true, static_cast<uint64_t>(round));
    replayed->step(parts(round));
  }
  EXPECT_EQ(cuda::fake_driver().graph_launches - before, 3);  // captured when seen again
}

INSTANTIATE_TEST_SUITE_P(Types, CudaTree, testing::Values("llama_bf16", "qwen3_bf16"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tokamak
