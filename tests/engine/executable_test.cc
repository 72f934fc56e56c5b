// What every executable promises, without the engine: block transfers, phases, padding, functions
// with other inputs, masks.
#include <cstring>
#include <deque>

#include "tests/engine/backend_run.h"

namespace tokamak {
namespace {

using cpu::TestModel;
using cpu::TestSequence;

constexpr int32_t kStride = 6;  // blocks of a sequence

class Executables : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Executable> load(const PlanSet& plans, const WeightSource& weights) {
    BackendOptions threads;
    threads.threads = 2;
    backend_ = make_backend(GetParam(), threads);
    LoadOptions options;
    options.blocks.assign(plans.groups.size(), 4 * kStride);
    options.max_rows = 4;
    return backend_->load(cpu::plans_for(*backend_, plans), weights, options);
  }
  // The next `count` tokens of a sequence; the logits of every row.
  static StepResult run(Executable& exe, const TestModel& model, TestSequence& s, int32_t count) {
    StepInputs step = inputs(model, s, count);
    StepResult result;
    exe.collect(exe.submit(step), result);
    s.done += count;
    return result;
  }
  static StepInputs inputs(const TestModel& model, const TestSequence& s, int32_t count) {
    StepInputs step;
    add_to_step(step, s, count);
    cpu::set_tables(step, {&s}, model.plans.groups.size(), kStride);
    return step;
  }
  static TestSequence sequence(uint64_t seed, int32_t first_block, int32_t row = 0) {
    TestSequence s;
    Rng rng(seed);
    for (int i = 0; i < 90; ++i) s.tokens.push_back(static_cast<int32_t>(rng.below(300)));
    s.first_block = first_block;
    s.row = row;
    return s;
  }
  std::unique_ptr<Backend> backend_;
};

TEST_P(Executables, BlocksAreTakenAwayAndBroughtBack) {
  for (DType kv : {DType::kF16, DType::kF32, DType::kI8}) {
    cpu::TestModelOptions options = small_model();
    options.kv = kv;
    TestModel model(options);
    auto exe = load(model.plans, model.weights);
    TestSequence s = sequence(1, 0), other = sequence(2, 0);
    run(*exe, model, s, 50);
    TestSequence moved = s, fresh = sequence(1, 2 * kStride);
    run(*exe, model, fresh, 50);
    StepResult want = run(*exe, model, fresh, 3);

    std::vector<int32_t> blocks, target;
    for (int32_t i = 0; i < kStride; ++i) {
      blocks.push_back(i);
      target.push_back(kStride + i);
    }
    std::vector<std::vector<std::byte>> saved;
    for (uint32_t g = 0; g < model.plans.groups.size(); ++g) {
      saved.emplace_back(blocks.size() * exe->block_bytes(g));
      EXPECT_GT(saved.back().size(), 0u);
      exe->wait(exe->read_blocks(g, blocks, saved.back()));
    }
    run(*exe, model, other, 60);  // overwrites them
    EXPECT_NE(run(*exe, model, s, 3).logits, want.logits) << "what it reads is another sequence's";
    for (uint32_t g = 0; g < model.plans.groups.size(); ++g)
      exe->wait(exe->write_blocks(g, target, saved[g]));
    moved.first_block = kStride;
    EXPECT_EQ(run(*exe, model, moved, 3).logits, want.logits) << dtype_name(kv);
    EXPECT_THROW(exe->read_blocks(0, blocks, std::span(saved[0]).first(1)), Error);
    EXPECT_THROW(exe->write_blocks(9, blocks, saved[0]), Error);
  }
}

// Slots that are moved away and back have the same content.
TEST_P(Executables, MovedSlotsKeepTheirBits) {
  for (DType kv : {DType::kF16, DType::kI8}) {
    cpu::TestModelOptions options = small_model();
    options.kv = kv;
    TestModel model(options);
    auto exe = load(model.plans, model.weights);
    TestSequence s = sequence(1, 0), moved = sequence(1, kStride);
    run(*exe, model, s, 40);
    run(*exe, model, moved, 40);
    StepInputs step = inputs(model, moved, 2);
    // Swaps slots 3 and 35 by means of a free slot, and swaps them back by means of another one.
    auto physical = [&](int32_t slot) {
      return (moved.first_block + kStride - 1 - slot / 16) * 16 + slot % 16;
    };
    for (uint32_t g = 0; g < model.plans.groups.size(); ++g)
      for (auto [from, to] : {std::pair{3, 60}, {35, 3}, {60, 35}, {3, 61}, {35, 3}, {61, 35}})
        step.moves.push_back({g, physical(from), physical(to)});
    StepResult result;
    exe->collect(exe->submit(step), result);
    EXPECT_EQ(result.logits, run(*exe, model, s, 2).logits) << dtype_name(kv);
    // With the slots swapped, the logits are different.
    step.moves.resize(3);
    exe->collect(exe->submit(step), result);
    moved.done = 40;
    EXPECT_NE(result.logits, run(*exe, model, s, 2).logits);
  }
}

TEST_P(Executables, PhasesAreStepsInOneSubmit) {
  TestModel model(small_model());
  auto exe = load(model.plans, model.weights);
  TestSequence a = sequence(1, 0), b = sequence(2, kStride, 1);
  run(*exe, model, a, 20);
  run(*exe, model, b, 30);
  SampleSpec greedy;
  greedy.temperature = 0;
  auto spec = std::make_shared<const SampleSpec>(greedy);
  // Phase 1 drafts the token after a's 21st; phase 2 verifies it, beside two tokens of b.
  StepInputs step;
  add_to_step(step, a, 1);
  add_to_step(step, a, 2);
  add_to_step(step, b, 2);
  step.phases = {{"step", 1, 1, 1}, {"step", 4, 2, 4}};
  step.ids[2] = id_of_output(0);
  cpu::set_tables(step, {&a, &a, &b}, model.plans.groups.size(), kStride);
  for (size_t r : {0u, 1u, 2u})
    step.samples[r] = {SampleRow::Mode::kSample, -1, 0, r == 2 ? 22 : 21, 0, spec};
  step.samples[0].mode = SampleRow::Mode::kDraft;
  step.samples[2].parent = 1;
  StepResult result;
  exe->collect(exe->submit(step), result);
  EXPECT_EQ(result.ids[0], result.ids[1]) << "draft and target are the same model here";
  EXPECT_TRUE(result.path_of(0).empty());
  EXPECT_EQ(std::vector<int32_t>(result.path_of(1).begin(), result.path_of(1).end()),
            (std::vector<int32_t>{1, 2}));
  // One by one.
  TestSequence c = sequence(1, 2 * kStride, 2);
  c.tokens[21] = result.ids[0];
  run(*exe, model, c, 20);
  std::vector<float> want = run(*exe, model, c, 1).logits;
  std::vector<float> first = want;
  c.done = 20;
  for (float x : run(*exe, model, c, 2).logits) want.push_back(x);
  TestSequence d = sequence(2, 3 * kStride, 3);
  run(*exe, model, d, 30);
  for (float x : run(*exe, model, d, 2).logits) want.push_back(x);
  EXPECT_EQ(result.logits, want);
}

// Every symbol padded to a fixed value: the same bits.
TEST_P(Executables, PaddingDoesNotChangeABit) {
  for (bool tree : {false, true}) {
    cpu::TestModelOptions options = small_model();
    options.tree_mask = tree;
    TestModel model(options), fixed(options);
    for (GuardRange& g : fixed.plans.plans[0].guard) g.pad = g.hi;
    auto a = load(model.plans, model.weights);
    auto keep = std::move(backend_);
    auto b = load(fixed.plans, fixed.weights);
    TestSequence s = sequence(1, 0), t = sequence(2, kStride, 1), u = sequence(3, 2 * kStride, 2);
    for (auto counts : {std::array{20, 7, 1}, std::array{1, 1, 1}, std::array{3, 1, 20}}) {
      StepInputs step;
      int32_t width = 0;
      for (auto [q, n] : {std::pair{&s, counts[0]}, {&t, counts[1]}, {&u, counts[2]}}) {
        add_to_step(step, *q, n);
        q->done += n;
        width = std::max(width, n);
      }
      cpu::set_tables(step, {&s, &t, &u}, model.plans.groups.size(), kStride);
      if (tree) {
        step.mask_width = width;
        for (size_t i = 0; i < step.ids.size(); ++i)
          for (int32_t m = 0; m < width; ++m)
            step.mask.push_back(m <= static_cast<int32_t>(i) -
                                         step.q_start[static_cast<size_t>(step.seq[i])]);
      }
      StepResult plain, padded;
      a->collect(a->submit(step), plain);
      b->collect(b->submit(step), padded);
      EXPECT_EQ(plain.logits, padded.logits);
    }
    EXPECT_GT(b->dispatch().padded_rows, 0);
  }
}

// A function with its own input and symbol, which has nothing to do with tokens.
TEST_P(Executables, AnEncoderReadsAndReturnsNamedTensors) {
  TestModel model(small_model());
  PlanSet plans = model.plans;
  SymExpr p = SymExpr::symbol("P");
  plans.symbols.push_back({"P", 1, 16, 1});
  plans.inputs.push_back({"patches", DType::kF32, {p, SymExpr(4)}});
  auto input = static_cast<uint32_t>(plans.inputs.size() - 1);
  Plan encode;
  encode.function = "encode";
  encode.guard = {{"P", 1, 16, 8, 16}};  // padded to a multiple of 8
  CallArg in{CallArg::Kind::kInput, input, 0, DType::kF32, {p, SymExpr(4)}};
  CallArg out{CallArg::Kind::kArena, 0, 0, DType::kF32, {p, SymExpr(4)}};
  encode.calls.push_back({.op = "add", .in = {in, in}, .out = {out}, .label = "twice"});
  encode.outputs = {{"encoded", out}};
  encode.arena_bytes = 16 * 4 * 4;
  plans.plans.push_back(encode);
  auto exe = load(plans, model.weights);

  StepInputs step;
  step.function = "encode";
  std::vector<float> values(5 * 4);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) + 0.25f;
  StepTensor& patches = step.inputs.emplace_back();
  patches = {"patches", DType::kF32, {5, 4}, std::vector<std::byte>(values.size() * 4)};
  std::memcpy(patches.bytes.data(), values.data(), values.size() * 4);
  StepResult result;
  exe->collect(exe->submit(step), result);
  ASSERT_EQ(result.outputs.size(), 1u);
  EXPECT_EQ(result.outputs[0].name, "encoded");
  EXPECT_EQ(result.outputs[0].dims, (std::vector<int64_t>{5, 4}));
  std::vector<float> got(values.size());
  ASSERT_EQ(result.outputs[0].bytes.size(), got.size() * 4);
  std::memcpy(got.data(), result.outputs[0].bytes.data(), got.size() * 4);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], 2 * values[i]);
  EXPECT_EQ(exe->dispatch().steps[1], 1);

  TestSequence s = sequence(1, 0);
  EXPECT_FALSE(run(*exe, model, s, 5).logits.empty()) << "tokens run as before";
  step.inputs.clear();
  EXPECT_THROW(exe->collect(exe->submit(step), result), Error);
}

TEST_P(Executables, MasksComeAfterSubmit) {
  TestModel model(small_model());
  auto exe = load(model.plans, model.weights);
  TestSequence s = sequence(1, 0);
  SampleSpec greedy;
  greedy.temperature = 0;
  for (int32_t allowed : {17, 200, -1}) {
    s.done = 0;
    StepInputs step = inputs(model, s, 8);
    step.samples.back() = {
        SampleRow::Mode::kSample, -1, 0, 8, 0, std::make_shared<const SampleSpec>(greedy)};
    step.samples.back().masked = true;
    Ticket ticket = exe->submit(step);
    std::vector<uint32_t> mask(mask_words(model.plans.vocab), 0);
    if (allowed >= 0) mask[static_cast<size_t>(allowed) / 32] |= 1u << (allowed % 32);
    exe->set_mask(ticket, 7, mask);
    EXPECT_THROW(exe->set_mask(ticket, 0, mask), Error) << "not masked";
    StepResult result;
    exe->collect(ticket, result);
    EXPECT_EQ(result.ids.back(), allowed);
    EXPECT_EQ(result.path.size(), allowed < 0 ? 0u : 1u);
    EXPECT_EQ(result.failed[0], allowed < 0 ? StepFailure::kNothingAllowed : StepFailure::kNone);
  }
}

// Steps that continue tokens of steps in flight choose the tokens that they choose one by one. In
// the middle a row is given to another sequence.
TEST_P(Executables, StepsInFlightDoNotChangeAToken) {
  constexpr int32_t kSteps = 9, kNewAt = 5;
  TestModel model(small_model());
  auto tokens = [&](const SampleSpec& spec, int in_flight) {
    auto exe = load(model.plans, model.weights);
    auto shared = std::make_shared<const SampleSpec>(spec);
    TestSequence sequences[] = {sequence(1, 0, 2), sequence(2, kStride, 1)};
    std::vector<int32_t> chosen;
    std::deque<Ticket> tickets;
    auto collect = [&] {
      StepResult result;
      exe->collect(tickets.front(), result);
      tickets.pop_front();
      chosen.insert(chosen.end(), result.ids.begin(), result.ids.end());
    };
    for (int32_t i = 0; i < kSteps; ++i) {
      StepInputs step;
      if (i == kNewAt) sequences[0] = sequence(3, 2 * kStride, 2);
      for (TestSequence& s : sequences) {
        const bool first = s.done == 0;
        if (first) step.resets.push_back({s.row, 12, {s.tokens.begin(), s.tokens.begin() + 12}});
        if (!first) s.tokens[static_cast<size_t>(s.done)] = last_id_of_row(s.row);
        add_to_step(step, s, first ? 12 : 1);
        s.done += first ? 12 : 1;
      }
      cpu::set_tables(step, {&sequences[0], &sequences[1]}, model.plans.groups.size(), kStride);
      step.return_logits = false;
      step.samples.clear();
      step.out_rows.clear();
      for (size_t b = 0; b < 2; ++b) {
        step.out_rows.push_back(step.q_start[b + 1] - 1);
        step.samples.push_back({.position = step.kv_len[b], .spec = shared});
      }
      tickets.push_back(exe->submit(step));
      if (std::ssize(tickets) == in_flight) collect();
    }
    while (!tickets.empty()) collect();
    return chosen;
  };
  SampleSpec greedy, any, best;
  greedy.temperature = 0;
  any.temperature = 1.3f;
  any.top_p = 0.9f;
  best.top_k = 7;  // may be left to the host
  SampleSpec penalised = greedy;
  penalised.repetition_penalty = 1.5f;
  const int most = load(model.plans, model.weights)->max_in_flight();
  if (most == 1) GTEST_SKIP() << "one step at a time";
  for (const SampleSpec& spec : {greedy, any, best, penalised}) {
    const std::vector<int32_t> one = tokens(spec, 1);
    EXPECT_EQ(one.size(), 2 * kSteps);
    for (int in_flight = 2; in_flight <= most; ++in_flight)
      EXPECT_EQ(tokens(spec, in_flight), one) << spec.temperature << spec.top_k;
  }
}

INSTANTIATE_TEST_SUITE_P(Each, Executables, testing::Values(TK_TEST_BACKENDS));

}  // namespace
}  // namespace tokamak
