// Schedules: no race, no barrier too many; the race checker and the audit find planted faults.
#include "backend/cpu/schedule.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "backend/cpu/audit.h"
#include "backend/cpu/executable.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/test_model.h"
#include "base/error.h"

namespace tokamak::cpu {
namespace {

// Does and says what the test wants: per thread, bytes it reads and bytes it writes of one array.
struct FakeOp final : CpuOp {
  struct Range {
    int64_t begin, end;
    bool write;
    bool told = true;  // false: done but not said
  };
  std::vector<std::vector<Range>> ranges;  // by thread
  std::vector<uint8_t>* array = nullptr;

  FakeOp(std::vector<uint8_t>& a, std::vector<std::vector<Range>> r)
      : ranges(std::move(r)), array(&a) {}
  // What is written is the sum of what is read.
  void run(const Tensor*, const Tensor*, const StepContext& c) const override {
    uint8_t sum = 1;
    for (const Range& r : ranges[static_cast<size_t>(c.thread)])
      for (int64_t i = r.begin; i < r.end && !r.write; ++i)
        sum = static_cast<uint8_t>(sum + (*array)[static_cast<size_t>(i)]);
    for (const Range& r : ranges[static_cast<size_t>(c.thread)])
      for (int64_t i = r.begin; i < r.end && r.write; ++i) (*array)[static_cast<size_t>(i)] = sum;
  }
  void touch(const Tensor*, const Tensor*, const StepContext& c, AccessList& list) const override {
    for (const Range& r : ranges[static_cast<size_t>(c.thread)])
      if (r.told) list.memory(array->data() + r.begin, r.end - r.begin, r.write);
  }
};

std::vector<bool> barriers_of(const std::vector<FakeOp>& ops) {
  KvStore kv;
  StepContext context{*choose_table(), kv, 2};
  std::vector<ScheduledCall> calls;
  for (const FakeOp& op : ops) calls.push_back({&op, nullptr, nullptr, "fake"});
  ScheduleMaker scheduler(calls, 2, "test");
  int64_t shape[] = {1};
  std::vector<bool> out;
  for (const ScheduleItem& i : scheduler.get(shape, context).items) out.push_back(i.barrier);
  return out;
}

TEST(ThreadSchedule, BarriersWhereThreadsMeetAndNowhereElse) {
  std::vector<uint8_t> a(64);
  using Bools = std::vector<bool>;
  FakeOp halves(a, {{{0, 8, true}}, {{8, 16, true}}});
  FakeOp same(a, {{{0, 8, false}, {16, 24, true}}, {{8, 16, false}, {24, 32, true}}});
  FakeOp crossed(a, {{{8, 16, false}, {32, 40, true}}, {{0, 8, false}, {40, 48, true}}});
  FakeOp alone(a, {{{0, 16, false}, {48, 56, true}}, {}});
  EXPECT_EQ(barriers_of({halves, same, same}), (Bools{false, false, false}));
  EXPECT_EQ(barriers_of({halves, crossed}), (Bools{false, true}));  // read after write
  EXPECT_EQ(barriers_of({crossed, halves}), (Bools{false, true}));  // write after read
  FakeOp swapped(a, {{{8, 16, true}}, {{0, 8, true}}});
  EXPECT_EQ(barriers_of({halves, swapped}), (Bools{false, true}));  // write after write
  EXPECT_EQ(barriers_of({halves, crossed, same}), (Bools{false, true, false}));
  EXPECT_EQ(barriers_of({halves, alone, alone}), (Bools{false, true, false}));
  EXPECT_EQ(barriers_of({alone, alone, alone}), (Bools{false, false, false}));
}

TEST(ThreadSchedule, OverlapIsExactForOneStride) {
  Rng rng(3);
  int64_t met = 0;
  for (int i = 0; i < 20000; ++i) {
    MemoryAccess x[2];
    auto stride = static_cast<int64_t>(rng.below(12) + 4);
    for (MemoryAccess& a : x) {
      a.base = 1000 + rng.below(80);
      a.stride = stride;
      a.width = static_cast<int64_t>(rng.below(static_cast<uint64_t>(stride)) + 1);
      a.rows = static_cast<int64_t>(rng.below(5) + 1);
      if (a.rows == 1) a.width = a.stride = static_cast<int64_t>(rng.below(40) + 1);
    }
    std::set<uintptr_t> bytes;
    bool meet = false;
    for (int k = 0; k < 2; ++k)
      for (int64_t r = 0; r < x[k].rows; ++r)
        for (int64_t b = 0; b < x[k].width; ++b) {
          uintptr_t at = x[k].base + static_cast<uintptr_t>(r * x[k].stride + b);
          if (k == 0)
            bytes.insert(at);
          else
            meet = meet || bytes.contains(at);
        }
    met += meet;
    ASSERT_EQ(overlap(x[0], x[1]), meet);
    ASSERT_EQ(overlap(x[1], x[0]), meet);
  }
  EXPECT_GT(met, 2000);
  EXPECT_LT(met, 18000);
}

// A loaded test model with its own threads.
struct Loaded {
  Loaded(const TestModelOptions& options, int threads)
      : model(options), pool(std::make_shared<ThreadPool>(threads)) {
    LoadOptions load;
    load.blocks.assign(model.plans.groups.size(), 40);
    load.max_rows = 8;
    exe = std::make_unique<CpuExecutable>(model.plans, model.weights, load, *choose_table(), pool);
  }
  StepInputs inputs(TestSequence& s, int32_t count) {
    StepInputs step;
    add_to_step(step, s, count);
    set_tables(step, {&s}, model.plans.groups.size(), 20);
    return step;
  }
  std::vector<float> run(TestSequence& s, int32_t count) {
    StepInputs step = inputs(s, count);
    StepResult result;
    exe->collect(exe->submit(step), result);
    s.done += count;
    return result.logits;
  }
  TestModel model;
  std::shared_ptr<ThreadPool> pool;
  std::unique_ptr<CpuExecutable> exe;
};

TestSequence sequence_of(size_t n) {
  TestSequence s;
  for (size_t i = 0; i < n; ++i) s.tokens.push_back(static_cast<int32_t>(i * 7 % 300));
  return s;
}

// The barriers of a model's schedules: all needed, none missing.
TEST(ThreadSchedule, EveryBarrierIsNeededAndEveryRaceIsFound) {
  int barriers = 0;
  for (int threads : {2, 3, 4}) {
    Loaded m({.weights = {DType::kQ4_0, DType::kF16}, .window = 24}, threads);
    TestSequence s = sequence_of(200);
    for (int32_t count : {130, 1, 9}) {
      m.run(s, count);
      const ScheduleMaker& scheduler = m.exe->scheduler();
      ThreadSchedule schedule = scheduler.last();
      Conflict conflict;
      EXPECT_FALSE(find_race(scheduler.calls(), schedule, m.exe->context(), conflict));
      for (ScheduleItem& item : schedule.items) {
        if (!item.barrier) continue;
        ++barriers;
        item.barrier = false;
        EXPECT_TRUE(find_race(scheduler.calls(), schedule, m.exe->context(), conflict));
        item.barrier = true;
      }
    }
  }
  EXPECT_GT(barriers, 50);
}

TEST(ThreadSchedule, QueriesKeysAndValuesStayOnTheirThreadWhereHeadsDivide) {
  // Unfused: four matrices of equal cut, rotation by row of heads, append and attention by head.
  auto between = [](int threads) {
    Loaded m({.weights = {DType::kQ8_0}, .layers = 1, .heads = 8, .kv_heads = 2}, threads);
    TestSequence s = sequence_of(40);
    m.run(s, 1);
    const ScheduleMaker& scheduler = m.exe->scheduler();
    int count = 0;
    for (const ScheduleItem& i : scheduler.last().items)
      if (scheduler.calls()[i.call].label == "attend" && i.barrier) ++count;
    return count;
  };
  EXPECT_EQ(between(2), 0);
  EXPECT_EQ(between(3), 2);
}

// What ops say they touch is what they touch, with every thread count, and auditing changes no bit.
TEST(Audit, OpsTouchWhatTheySay) {
  for (int threads : {2, 3}) {
    TestModelOptions options{
        .weights = {DType::kQ4_0, DType::kF16, DType::kQ8_0}, .window = 24, .max_tokens = 80};
    if (threads == 2) options.kv = DType::kI8;
    setenv("TOKAMAK_AUDIT", "1", 1);
    Loaded audited(options, threads);
    unsetenv("TOKAMAK_AUDIT");
    Loaded plain(options, threads);
    TestSequence a = sequence_of(160), b = a;
    for (int32_t count : {70, 1, 6}) EXPECT_EQ(audited.run(a, count), plain.run(b, count));
  }
}

TEST(Audit, FindsPlantedLies) {
  std::vector<uint8_t> memory(64, 3);
  KvStore kv;
  StepContext context{*choose_table(), kv, 2};
  auto audit = [&](const FakeOp& op) {
    std::fill(memory.begin(), memory.end(), uint8_t{3});
    StageAudit(std::vector<std::span<uint8_t>>{memory}).run(op, nullptr, nullptr, context, "fake");
  };
  FakeOp honest(memory, {{{0, 8, false}, {16, 24, true}}, {{8, 16, false}, {24, 32, true}}});
  audit(honest);
  EXPECT_EQ(memory[16], 25);
  EXPECT_EQ(memory[31], 25);
  EXPECT_EQ(memory[32], 3);
  FakeOp secret_write(memory, {{{16, 24, true}, {40, 41, true, false}}, {}});
  EXPECT_THROW(audit(secret_write), Error);
  FakeOp secret_read(memory, {{}, {{0, 8, false}, {9, 10, false, false}, {24, 32, true}}});
  EXPECT_THROW(audit(secret_read), Error);
  FakeOp both_write(memory, {{{16, 24, true}}, {{23, 32, true}}});
  EXPECT_THROW(audit(both_write), Error);
}

TEST(ThreadSchedule, AnErrorOnAnyThreadEndsTheStepAndTheNextOneRuns) {
  Loaded m({}, 3), clean({}, 3);
  TestSequence a = sequence_of(210), b = a;
  for (size_t bad : {size_t{0}, size_t{199}}) {  // embed has the rows of thread 0, of thread 2
    StepInputs step = m.inputs(a, 200);
    step.ids[bad] = 1 << 20;
    StepResult result;
    Ticket t = m.exe->submit(step);
    EXPECT_THROW(m.exe->collect(t, result), Error);
  }
  EXPECT_EQ(m.run(a, 200), clean.run(b, 200));
}

}  // namespace
}  // namespace tokamak::cpu
