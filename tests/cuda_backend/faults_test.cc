// What the cuda backend does when the driver is missing, old, out of memory or lost.
#include <gtest/gtest.h>

#include "backend/cpu/test_model.h"
#include "backend/cuda/calibrate.h"
#include "backend/cuda/cost.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/driver.h"
#include "backend/cuda/emulator/fake_driver.h"
#include "backend/cuda/executable.h"
#include "backend/cuda/memory_needs.h"

namespace tokamak::cuda {
namespace {

using cpu::TestModel;
using cpu::TestModelOptions;
using cpu::TestSequence;

std::string message_of(const std::function<void()>& action, ErrorCode code) {
  try {
    action();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

class CudaFaults : public testing::Test {
 protected:
  void SetUp() override {
    install_fake_driver();
    TestModelOptions options;
    options.hidden = 64;
    options.ffn = 64;
    options.vocab = 40;
    options.heads = 2;
    options.kv_heads = 1;
    options.layers = 1;
    options.max_tokens = 32;
    model_ = std::make_unique<TestModel>(options);
    sequence_.tokens.assign(60, 7);
  }
  void TearDown() override {
    model_.reset();
    expect_nothing_left();
  }
  static void expect_nothing_left() {
    const FakeDriver& f = fake_driver();
    EXPECT_EQ(f.in_use, 0u);
    EXPECT_EQ(f.pinned, 0u);
    EXPECT_EQ(f.live_modules + f.live_streams + f.live_events + f.live_graphs + f.contexts, 0);
  }
  std::unique_ptr<Executable> load() {
    backend_ = make_cuda_backend({});
    LoadOptions options;
    options.blocks.assign(model_->plans.groups.size(), 8);
    options.max_rows = 2;
    return backend_->load(cpu::plans_for(*backend_, model_->plans), model_->weights, options);
  }
  StepResult run(Executable& executable, int32_t count) {
    StepInputs step;
    add_to_step(step, sequence_, count);
    cpu::set_tables(step, {&sequence_}, model_->plans.groups.size(), 4);
    StepResult result;
    executable.collect(executable.submit(step), result);
    sequence_.done += count;
    return result;
  }
  std::unique_ptr<TestModel> model_;
  std::unique_ptr<Backend> backend_;
  TestSequence sequence_;
};

TEST_F(CudaFaults, AnOldDriverSaysSo) {
  fake_driver().version = 11040;
  std::string text = message_of([] { reinstall_fake_driver(); }, ErrorCode::kUnavailable);
  EXPECT_EQ(text, "the CUDA driver is version 11.4; 12.0 or newer is needed");
  install_fake_driver();
}

TEST_F(CudaFaults, ADriverThatDoesNotStartSaysSo) {
  fake_driver().init_fails = true;
  std::string text = message_of([] { reinstall_fake_driver(); }, ErrorCode::kUnavailable);
  EXPECT_EQ(text, "the CUDA driver does not start: is there a GPU?");
  install_fake_driver();
}

TEST_F(CudaFaults, AMachineWithoutAGpuSaysSo) {
  fake_driver().devices = 0;
  EXPECT_TRUE(list_devices().empty());
  std::string text = message_of([&] { load(); }, ErrorCode::kNotFound);
  EXPECT_EQ(text, "GPU 0 does not exist: the driver sees 0");
}

TEST_F(CudaFaults, DevicesAreListed) {
  auto devices = list_devices();
  ASSERT_EQ(devices.size(), 1u);
  EXPECT_EQ(devices[0].name, "Fake GPU");
  EXPECT_EQ(devices[0].capability, 90);
  EXPECT_EQ(devices[0].memory, fake_driver().memory);
  EXPECT_EQ(driver_text(), "CUDA driver 13.0");
}

TEST_F(CudaFaults, AFullGpuIsAnErrorWithNumbers) {
  fake_driver().memory = size_t{1} << 16;
  std::string text = message_of([&] { load(); }, ErrorCode::kResourceExhausted);
  EXPECT_NE(text.find("MB are free"), std::string::npos) << text;
}

TEST_F(CudaFaults, AModelThatIsTooLargeIsRefusedBeforeItsWeightsAreRead) {
  auto plans = cpu::plans_for(*make_cuda_backend({}), model_->plans);
  fake_driver().memory = size_t{64} << 20;
  const Device device(0);
  check_memory(device, plans, {8});
  std::string text = message_of([&] { check_memory(device, plans, {int64_t{1} << 30}); },
                                ErrorCode::kResourceExhausted);
  EXPECT_NE(text.find("of 64 MB are free"), std::string::npos) << text;
  EXPECT_NE(text.find("--kv-cache-memory"), std::string::npos) << text;
}

TEST_F(CudaFaults, TheCacheGetsWhatTheModelLeavesOfItsShare) {
  auto backend = make_cuda_backend({});
  auto plans = cpu::plans_for(*backend, model_->plans);
  fake_driver().memory = size_t{4} << 30;
  const uint64_t all = backend->kv_bytes_within(plans, 1),
                 half = backend->kv_bytes_within(plans, 0.5);
  EXPECT_EQ(all - half, uint64_t{2} << 30);
  const uint64_t without = (uint64_t{4} << 30) - all;
  EXPECT_EQ(without, MemoryNeeds::of(plans).total() + (uint64_t{512} << 20));
  const Buffer other(size_t{1} << 30);
  EXPECT_EQ(backend->kv_bytes_within(plans, 1), all - other.bytes());
  std::string text =
      message_of([&] { backend->kv_bytes_within(plans, 0.3); }, ErrorCode::kResourceExhausted);
  EXPECT_NE(text.find("0.3 of 4096 MB are 1228 MB, other programs use 1024 MB"), std::string::npos)
      << text;
}

TEST_F(CudaFaults, AMeasuredGpuIsWhatTheCostModelUses) {
  fake_driver().run_kernels = false;
  Machine m = measure_gpu(0.001, "");
  EXPECT_EQ(m.name, "cuda Fake GPU");
  EXPECT_EQ(m.cores, 8);
  ASSERT_EQ(m.levels.size(), 2u);
  EXPECT_GT(m.memory().bandwidth, 0);
  const KernelDesc kernel;
  KernelWork work;
  work.in.push_back({});
  work.in[0].bytes = 1e6;
  work.in[0].weight = true;
  m.call_seconds = 1;
  m.levels.back().bandwidth = 1e6;
  EXPECT_EQ(rows_cost(kernel, work, m), 2);
  m.name = "something else";
  EXPECT_LT(rows_cost(kernel, work, m), 1e-3);
}

// Kernels for one kind of GPU are left out on others, older and newer, and steps run without them.
TEST_F(CudaFaults, OtherGpusRunThePlainKernels) {
  std::vector<float> want = run(*load(), 3).logits;
  for (int capability : {80, 100}) {
    sequence_.done = 0;
    fake_driver().capability = capability;
    auto executable = load();
    EXPECT_EQ(run(*executable, 3).logits, want);
    EXPECT_EQ(dynamic_cast<CudaExecutable*>(executable.get())->streamed_steps(), 0);
    const Device device(0);
    EXPECT_EQ(device.capability(), capability);
    EXPECT_FALSE(KernelLibrary(device).overlaps());
  }
}

// Whichever call fails, once or from then on: an error, no leak, and the next load works.
TEST_F(CudaFaults, EveryCallMayFail) {
  fake_driver().run_kernels = false;
  auto work = [&] {
    sequence_.done = 0;
    auto executable = load();
    for (int32_t count : {3, 1, 1, 1}) run(*executable, count);
  };
  work();
  int64_t calls = fake_driver().calls - 1;  // the destructor's wait may fail
  EXPECT_GT(calls, 200);
  expect_nothing_left();
  for (bool lost : {false, true})
    for (int64_t n = 0; n < calls; n += n < 100 ? 1 : 7) {
      install_fake_driver();
      FakeDriver& f = fake_driver();
      f.run_kernels = false;
      f.fail_at = n;
      f.lost = lost;
      f.failure = n % 2 == 0 ? kFakeLaunchFailed : kFakeOutOfMemory;
      EXPECT_THROW(work(), Error) << "call " << n;
      expect_nothing_left();
    }
  install_fake_driver();
  fake_driver().run_kernels = false;
  work();
}

// A failed step leaves the executable usable, with the same results.
TEST_F(CudaFaults, AStepAfterAFailedOneIsRight) {
  auto executable = load();
  std::vector<float> want = run(*executable, 3).logits;
  sequence_.done = 0;
  FakeDriver& f = fake_driver();
  f.fail_at = f.calls + 8;
  EXPECT_THROW(run(*executable, 3), Error);
  f.fail_at = -1;
  EXPECT_EQ(run(*executable, 3).logits, want);
}

TEST_F(CudaFaults, RepeatedShapesAreGraphsAndAllocateNothing) {
  auto executable = load();
  auto* cuda = dynamic_cast<CudaExecutable*>(executable.get());
  ASSERT_NE(cuda, nullptr);
  run(*executable, 3);
  EXPECT_EQ(cuda->graph_launches(), 0);
  run(*executable, 1);
  int64_t allocations = fake_driver().allocations;
  for (int i = 0; i < 5; ++i) run(*executable, 1);
  EXPECT_EQ(cuda->graph_launches(), 5);
  EXPECT_EQ(fake_driver().graph_launches, 5);
  EXPECT_EQ(fake_driver().allocations, allocations);

  // The same tokens without graphs.
  std::vector<float> captured = run(*executable, 1).logits;
  setenv("TOKAMAK_CUDA_GRAPHS", "0", 1);
  sequence_.done = 0;
  auto plain = load();
  unsetenv("TOKAMAK_CUDA_GRAPHS");
  run(*plain, 3);
  for (int i = 0; i < 6; ++i) run(*plain, 1);
  EXPECT_EQ(run(*plain, 1).logits, captured);
  EXPECT_EQ(dynamic_cast<CudaExecutable*>(plain.get())->graph_launches(), 0);
}

}  // namespace
}  // namespace tokamak::cuda
