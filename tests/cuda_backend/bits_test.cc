// The same row has the same bits in every batch, whichever kernels the batch sizes select.
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cpu/test_model.h"
#include "backend/cuda/executable.h"

namespace tokamak {
namespace {

using cpu::TestModel;
using cpu::TestSequence;

class CudaBits : public testing::TestWithParam<DType> {
 protected:
  // Logits of tokens 0 to 39 in steps of `chunk`, beside `others` more sequences.
  std::vector<float> run(TestModel& model, int32_t chunk, int32_t others) {
    auto backend = make_backend("cuda");
    LoadOptions load;
    load.blocks.assign(model.plans.groups.size(), 64);
    load.max_rows = 8;
    auto exe = backend->load(cpu::plans_for(*backend, model.plans), model.weights, load);
    std::vector<TestSequence> all(static_cast<size_t>(1 + others));
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].first_block = static_cast<int32_t>(8 * i);
      all[i].row = static_cast<int32_t>(i);
      for (int t = 0; t < 64; ++t)
        all[i].tokens.push_back((t * 31 + static_cast<int>(i) * 17) % 300);
    }
    std::vector<float> out;
    auto vocab = static_cast<size_t>(model.plans.vocab);
    while (all[0].done < 40) {
      StepInputs step;
      std::vector<const TestSequence*> used;
      for (TestSequence& s : all) {
        add_to_step(step, s, std::min(chunk, 40 - s.done));
        used.push_back(&s);
      }
      cpu::set_tables(step, used, model.plans.groups.size(), 8);
      StepResult result;
      exe->collect(exe->submit(step), result);
      auto rows = static_cast<size_t>(std::min(chunk, 40 - all[0].done));
      out.insert(out.end(), result.logits.begin(),
                 result.logits.begin() + static_cast<ptrdiff_t>(rows * vocab));
      for (TestSequence& s : all) s.done += std::min(chunk, 40 - s.done);
    }
    return out;
  }
};

TEST_P(CudaBits, DoNotDependOnTheBatch) {
  cpu::TestModelOptions options;
  options.weights = {GetParam()};
  options.quantize = false;
  options.hidden = 64;
  options.ffn = 128;
  options.layers = 1;
  options.max_tokens = 256;
  TestModel model(options);
  std::vector<float> want = run(model, 40, 0);
  EXPECT_EQ(run(model, 1, 0), want) << "one by one";
  EXPECT_EQ(run(model, 7, 1), want) << "7 rows beside 7 others";
  EXPECT_EQ(run(model, 40, 3), want) << "beside 120 others";
}

// Greedy steps are queued while another one runs; those that the host samples are not.
TEST(CudaSteps, AreQueuedWhereTheDeviceChooses) {
  cpu::TestModelOptions options;
  options.layers = 1;
  TestModel model(options);
  auto backend = make_backend("cuda");
  LoadOptions load;
  load.blocks.assign(model.plans.groups.size(), 8);
  load.max_rows = 1;
  for (bool on_device : {true, false}) {
    auto exe = backend->load(cpu::plans_for(*backend, model.plans), model.weights, load);
    SampleSpec spec;
    spec.temperature = 0;
    spec.repetition_penalty = on_device ? 1.0f : 1.5f;
    auto shared = std::make_shared<const SampleSpec>(spec);
    TestSequence s;
    s.tokens = {5, 6, last_id_of_row(0)};
    std::vector<Ticket> tickets;
    for (int32_t count : {2, 1}) {
      StepInputs step;
      add_to_step(step, s, count);
      s.done += count;
      cpu::set_tables(step, {&s}, model.plans.groups.size(), 8);
      step.return_logits = false;
      step.out_rows = {count - 1};
      step.samples = {{.position = s.done, .spec = shared}};
      if (count == 2) step.resets = {{0, 2, {5, 6}}};
      tickets.push_back(exe->submit(step));
    }
    StepResult result;
    for (Ticket ticket : tickets) exe->collect(ticket, result);
    EXPECT_EQ(dynamic_cast<cuda::CudaExecutable&>(*exe).followed_steps(), on_device ? 1 : 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, CudaBits,
                         testing::Values(DType::kBF16, DType::kF16, DType::kQ4_0),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

}  // namespace
}  // namespace tokamak
