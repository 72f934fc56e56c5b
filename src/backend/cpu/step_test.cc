// Whole steps: against backend/ref, bit-equal for any batching, chunking, thread count and level,
// and no allocation.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/test_model.h"
#include "backend/ref/ref_backend.h"
#include "base/error.h"

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace
void* operator new(size_t n) {
  ++allocations;
  if (void* p = std::malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace tokamak::cpu {
namespace {

std::unique_ptr<Backend> backend_with(int threads) {
  BackendOptions options;
  options.threads = threads;
  return make_cpu_backend(options);
}

constexpr int32_t kStride = 20;

std::vector<int32_t> random_tokens(uint64_t seed, size_t n) {
  Rng rng(seed);
  std::vector<int32_t> out(n);
  for (int32_t& t : out) t = static_cast<int32_t>(rng.below(300));
  return out;
}

std::unique_ptr<Executable> load(Backend& backend, const TestModel& model,
                                 int64_t blocks = 4 * kStride) {
  LoadOptions options;
  options.blocks.assign(model.plans.groups.size(), blocks);
  options.max_rows = 8;
  return backend.load(plans_for(backend, model.plans), model.weights, options);
}

// Feeds the given counts of tokens of each sequence in one step and keeps the logits.
void run_step(Executable& exe, const TestModel& model, std::vector<TestSequence*> sequences,
              const std::vector<int32_t>& counts, int32_t stride = kStride) {
  StepInputs step;
  std::vector<const TestSequence*> used;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (counts[i] == 0) continue;
    add_to_step(step, *sequences[i], counts[i]);
    used.push_back(sequences[i]);
  }
  set_tables(step, used, model.plans.groups.size(), stride);
  StepResult result;
  exe.collect(exe.submit(step), result);
  auto vocab = static_cast<size_t>(model.plans.vocab);
  ASSERT_EQ(result.logits.size(), step.ids.size() * vocab);
  const float* at = result.logits.data();
  for (size_t i = 0; i < sequences.size(); ++i) {
    for (int32_t c = 0; c < counts[i]; ++c, at += vocab)
      sequences[i]->logits.emplace_back(at, at + vocab);
    sequences[i]->done += counts[i];
  }
}

std::vector<TestSequence> three_sequences() {
  std::vector<TestSequence> out(3);
  int32_t lengths[] = {150, 37, 101};
  for (int32_t i = 0; i < 3; ++i) {
    auto& s = out[static_cast<size_t>(i)];
    s.tokens = random_tokens(static_cast<uint64_t>(i + 1), static_cast<size_t>(lengths[i]));
    s.first_block = i * kStride;
    s.row = i;
  }
  return out;
}

double normalised_error(const std::vector<std::vector<float>>& a,
                        const std::vector<std::vector<float>>& b) {
  double error = 0, power = 0;
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[i].size(); ++j) {
      error += std::pow(double(a[i][j]) - double(b[i][j]), 2);
      power += std::pow(double(b[i][j]), 2);
    }
  return error / power;
}

void expect_near_ref(const TestModelOptions& options, double bound) {
  TestModel model(options);
  auto cpu = backend_with(2), ref = make_ref_backend({});
  auto a = load(*cpu, model), b = load(*ref, model);
  std::vector<TestSequence> on_cpu = three_sequences(), on_ref = three_sequences();
  for (auto [exe, s] : {std::pair{a.get(), &on_cpu}, {b.get(), &on_ref}}) {
    run_step(*exe, model, {&(*s)[1], &(*s)[2]}, {20, 40});
    run_step(*exe, model, {&(*s)[1], &(*s)[2]}, {1, 1});
  }
  for (size_t i = 1; i < 3; ++i)
    EXPECT_LT(normalised_error(on_cpu[i].logits, on_ref[i].logits), bound);
}

std::string load_error(const TestModel& model, void (*change)(PlanSet&)) {
  PlanSet plans = model.plans;
  change(plans);
  LoadOptions options;
  options.blocks.assign(plans.groups.size(), 8);
  options.max_rows = 8;
  try {
    backend_with(1)->load(plans, model.weights, options);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
    return e.what();
  }
  return "loaded";
}

TEST(Step, RunsThePlannedKernelsOrFails) {
  TestModel model({.layers = 1});
  EXPECT_EQ(load_error(model, [](PlanSet&) {}), "loaded");
  auto expect = [&](void (*change)(PlanSet&), std::string_view text) {
    EXPECT_NE(load_error(model, change).find(text), std::string::npos) << load_error(model, change);
  };
  auto rename = [](PlanSet& s) { s.kernels[0].name = "cpu.foo"; };
  expect(rename, "the plan asks for cpu.foo (version 1)");
  auto version = [](PlanSet& s) { s.kernels[0].abi = 2; };
  expect(version,
         "the plan asks for cpu.embed.quantized (version 2); this program has cpu.embed.quantized "
         "(version 1)");
  auto plain = [](PlanSet& s) {
    for (WeightEntry& w : s.weights)
      if (w.name == "l0.q") w.layout = "";
  };
  expect(plain, "reads weight l0.q in layout qpanel16, the plan has it row-major");
  auto strange = [](PlanSet& s) { s.weights[0].layout = "swizzle"; };
  expect(strange, "the plan asks for layout swizzle, which the cpu backend does not have for q4_0");
  // The loader does not choose: a layout that cannot hold the type is an error, and so is one that
  // the kernel does not read.
  auto floats = [](PlanSet& s) {
    for (WeightEntry& w : s.weights)
      if (w.name == "l0.q") w.layout = "fpanel16";
  };
  expect(floats, "l0.q: the plan asks for layout fpanel16, which the cpu backend does not have");
  auto rows = [](PlanSet& s) {
    for (WeightEntry& w : s.weights)
      if (w.name == "l0.q") w.layout = "file_rows";
  };
  expect(rows, "reads weight l0.q in layout qpanel16, the plan has it in file_rows");
  auto region = [](PlanSet& s) {
    for (KernelEntry& k : s.kernels)
      if (k.name == "cpu.silu") k.name = "cpu.region.linears";
  };
  expect(region, "cpu.region.linears takes regions, the plan gives it silu");
}

// The kernel decides, not the name of the op.
TEST(Step, AnotherKernelOfThePlanIsAnotherResult) {
  TestModel model({.layers = 1}), other({.layers = 1});
  for (KernelEntry& k : other.plans.kernels)
    if (k.name == "cpu.rms_norm") k.name = "cpu.softmax";
  auto cpu = backend_with(1);
  LoadOptions options;
  options.blocks.assign(model.plans.groups.size(), 4 * kStride);
  options.max_rows = 8;
  std::vector<TestSequence> a = three_sequences(), b = three_sequences();
  run_step(*cpu->load(model.plans, model.weights, options), model, {&a[1]}, {5});
  run_step(*cpu->load(other.plans, other.weights, options), other, {&b[1]}, {5});
  EXPECT_NE(a[1].logits, b[1].logits);
}

TEST(Step, NearRefWithFloatWeights) {
  expect_near_ref({.weights = {DType::kF32}, .kv = DType::kF32}, 1e-10);
  expect_near_ref(
      {.weights = {DType::kF16, DType::kBF16}, .kv = DType::kF16, .window = 24, .softcap = 5},
      1e-7);
  // A last-bit difference may turn a stored value by one step of 1/127 of its row's largest.
  expect_near_ref({.weights = {DType::kF32}, .kv = DType::kI8}, 1e-5);
}
TEST(Step, NearRefWithQuantisedWeights) {
  // Activations stay float here: rounding to int8 would turn last-bit differences into whole steps.
  expect_near_ref({.weights = {DType::kQ4_0, DType::kQ4_1, DType::kQ8_0, DType::kQ4_K, DType::kQ6_K,
                               DType::kQ5_0},
                   .kv = DType::kF32,
                   .quantize = false},
                  1e-10);
  expect_near_ref({.weights = {DType::kQ4_0, DType::kQ4_1, DType::kQ8_0, DType::kQ4_K, DType::kQ6_K,
                               DType::kQ5_1}},
                  1e-4);
}

// Logits of three sequences under some schedule.
std::vector<TestSequence> run_schedule(Executable& exe, const TestModel& model, int schedule) {
  std::vector<TestSequence> s = three_sequences();
  std::vector<TestSequence*> all = {&s[0], &s[1], &s[2]};
  Rng rng(static_cast<uint64_t>(schedule));
  if (schedule == 0) {  // each alone, in one piece
    for (TestSequence& one : s)
      run_step(exe, model, {&one}, {static_cast<int32_t>(one.tokens.size())});
  } else {  // chunks and single tokens, mixed
    while (s[0].done + s[1].done + s[2].done < 150 + 37 + 101) {
      std::vector<int32_t> counts;
      for (const TestSequence& one : s) {
        auto left = static_cast<int32_t>(one.tokens.size()) - one.done;
        int32_t want = rng.below(2) ? 1 : static_cast<int32_t>(rng.below(60));
        counts.push_back(std::min(left, want));
      }
      if (counts[0] + counts[1] + counts[2] == 0) continue;
      run_step(exe, model, all, counts);
    }
  }
  return s;
}

void expect_same_logits(const std::vector<TestSequence>& a, const std::vector<TestSequence>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].logits.size(), b[i].logits.size());
    for (size_t p = 0; p < a[i].logits.size(); ++p)
      ASSERT_EQ(
          0, std::memcmp(a[i].logits[p].data(), b[i].logits[p].data(), a[i].logits[p].size() * 4))
          << "sequence " << i << " position " << p;
  }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

class Invariance : public testing::TestWithParam<int> {};

TEST_P(Invariance, LogitBitsDoNotDependOnBatchChunksThreadsOrLevel) {
  TestModelOptions options;
  options.weights = {DType::kQ4_0, DType::kQ8_0, DType::kQ4_1, DType::kF16,
                     DType::kQ6_K, DType::kQ4_K, DType::kF32};
  if (GetParam() == 1) options.window = 40, options.softcap = 8, options.kv = DType::kF32;
  if (GetParam() == 2)
    options.quantize = false, options.heads = 4, options.kv_heads = 4, options.kv = DType::kI8;
  options.bf16 = GetParam() == 3;
  TestModel model(options);
  std::vector<TestSequence> expected;
  for (const KernelTable* table : available_tables()) {
    if (options.bf16 && !table->tile_unit.multiply) continue;
    setenv("TOKAMAK_ISA", table->name, 1);
    for (int threads : {1, 3}) {
      SCOPED_TRACE(fmt::format("{} with {} threads", table->name, threads));
      auto backend = backend_with(threads);
      auto exe = load(*backend, model);
      for (int schedule : {0, 1, 2}) {
        // Scalar code is slow, above all under a sanitizer and where fma is a call; what is left
        // out the other levels and the release build show.
        bool scalar = table == scalar_table();
        if (schedule > 0 && threads == 3 && (kSanitized || scalar)) continue;
        if (kSanitized && scalar && (schedule > 0 || threads > 1 || GetParam() > 0)) continue;
        std::vector<TestSequence> got = run_schedule(*exe, model, schedule);
        if (expected.empty()) expected = got;
        expect_same_logits(got, expected);
      }
    }
  }
  unsetenv("TOKAMAK_ISA");
  if (expected.empty()) GTEST_SKIP() << "this machine multiplies no tiles of bf16 numbers";
}
INSTANTIATE_TEST_SUITE_P(Models, Invariance, testing::Values(0, 1, 2, 3));

TEST(Step, LongContextsKeepTheirBits) {
  TestModelOptions options{.weights = {DType::kQ8_0},
                           .max_tokens = 2300,
                           .layers = 1,
                           .hidden = 64,
                           .ffn = 64,
                           .heads = 4};
  TestModel model(options);
  std::vector<std::vector<float>> expected;
  for (int threads : {1, 4}) {
    auto backend = backend_with(threads);
    auto exe = load(*backend, model, 150);
    for (int pieces : {1, 3}) {
      TestSequence s;
      s.tokens = random_tokens(5, 2300);
      for (int i = 0; i < pieces; ++i) {
        int32_t end = i + 1 == pieces ? 2298 : 2298 * (i + 1) / pieces;
        run_step(*exe, model, {&s}, {end - s.done}, 150);
      }
      run_step(*exe, model, {&s}, {1}, 150);
      run_step(*exe, model, {&s}, {1}, 150);
      if (expected.empty()) expected = s.logits;
      for (size_t p = 0; p < expected.size(); ++p)
        ASSERT_EQ(0, std::memcmp(expected[p].data(), s.logits[p].data(), expected[p].size() * 4))
            << p;
    }
  }
}

TEST(Step, NoAllocationAfterWarmUp) {
  TestModel model({.weights = {DType::kQ4_0, DType::kF16}, .window = 24});
  auto backend = backend_with(2);
  auto exe = load(*backend, model);
  auto spec = std::make_shared<SampleSpec>();
  TestSequence s;
  s.tokens = random_tokens(3, 200);
  StepInputs step;
  StepResult result;
  int64_t counted = 0;
  for (int i = 0; i < 12; ++i) {
    step.clear();
    int32_t count = i % 4 == 0 ? 16 : 1;
    add_to_step(step, s, count);
    for (SampleRow& r : step.samples) r.mode = SampleRow::Mode::kSample, r.spec = spec;
    step.return_logits = false;
    set_tables(step, {&s}, model.plans.groups.size(), kStride);
    int64_t before = allocations;
    exe->collect(exe->submit(step), result);
    if (i >= 6) counted += allocations - before;
    s.done += count;
  }
  EXPECT_EQ(counted, 0);
  EXPECT_EQ(result.ids.size(), 1u);
}

TEST(Step, CopiesOfBlocksAreUsed) {
  TestModel model({.kv = DType::kI8});
  auto backend = backend_with(1);
  auto exe = load(*backend, model);
  TestSequence a, b;
  a.tokens = b.tokens = random_tokens(9, 40);
  run_step(*exe, model, {&a}, {33});
  b.first_block = kStride;
  b.row = 1;
  StepInputs step;
  b.done = 33;
  add_to_step(step, b, 1);
  set_tables(step, {&b}, model.plans.groups.size(), kStride);
  for (uint32_t g = 0; g < 2; ++g)
    for (int32_t i = 0; i < 3; ++i)
      step.copies.push_back({g, kStride - 1 - i, 2 * kStride - 1 - i});
  StepResult copied;
  exe->collect(exe->submit(step), copied);
  run_step(*exe, model, {&a}, {1});
  EXPECT_EQ(0, std::memcmp(copied.logits.data(), a.logits.back().data(), copied.logits.size() * 4));
}

TEST(Step, MemoryIsCounted) {
  TestModel model({.weights = {DType::kQ8_0}});
  auto backend = backend_with(1);
  auto exe = load(*backend, model);
  const MemoryLedger& m = exe->memory();
  uint64_t file = 0;
  for (const WeightEntry& w : model.plans.weights)
    if (w.dims.size() == 2) file += dtype_bytes(w.dtype, w.dims[0] * w.dims[1]);
  EXPECT_GE(m.weights, file);
  EXPECT_LT(m.weights, file * 5 / 4 + 400 * 1024);  // padding to panels and pages, norms as f32
  EXPECT_GE(m.kv, 2u * 4 * kStride * 16 * 2 * 64 * 2);
  EXPECT_GE(m.arena, model.plans.arena_bytes);
}

TEST(Step, BadStepsAreErrorsAndTheNextStepRuns) {
  TestModel model({});
  auto backend = backend_with(2);
  auto exe = load(*backend, model);
  TestSequence s;
  s.tokens = random_tokens(1, 20);
  StepInputs step;
  add_to_step(step, s, 4);
  set_tables(step, {&s}, model.plans.groups.size(), kStride);
  step.ids[2] = 1 << 20;
  StepResult result;
  Ticket t = exe->submit(step);
  EXPECT_THROW(exe->collect(t, result), Error);
  run_step(*exe, model, {&s}, {5});
}

// A traced step computes the same, and its spans are those of every thread's walk.
TEST(CpuTrace, SpansCoverTheStep) {
  TestModel model({});
  for (int threads : {1, 3}) {
    auto cpu = backend_with(threads);
    auto plain = load(*cpu, model), traced = load(*cpu, model);
    std::vector<TestSequence> a = three_sequences(), b = three_sequences();
    run_step(*plain, model, {&a[0], &a[1]}, {40, 1});
    StepTrace trace;
    ASSERT_TRUE(traced->trace_next(&trace));
    run_step(*traced, model, {&b[0], &b[1]}, {40, 1});
    EXPECT_EQ(a[0].logits, b[0].logits);
    ASSERT_EQ(trace.threads.size(), static_cast<size_t>(threads));
    std::vector<int> seen(trace.calls.size());
    for (const auto& spans : trace.threads) {
      int64_t end = 0;
      for (const StepTrace::Span& span : spans) {
        EXPECT_LE(end, span.begin);
        EXPECT_LE(span.begin, span.end);
        end = span.end;
        ++seen.at(span.call);
      }
      EXPECT_LE(end, trace.nanos);
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 0), 0);
    EXPECT_GE(seen.size(), model.plans.plans[0].calls.size() / 2);
    const size_t spans = trace.threads[0].size();
    run_step(*traced, model, {&b[0]}, {1});  // only one step is traced
    EXPECT_EQ(trace.threads[0].size(), spans);
  }
}

}  // namespace
}  // namespace tokamak::cpu
