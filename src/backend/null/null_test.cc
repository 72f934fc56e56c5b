#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "backend/null/null_backend.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"

namespace tokamak {
namespace {

PlanSet plan_set() {
  PlanSet p;
  p.vocab = 50;
  p.groups = {{"full", 0, 4}, {"window", 4, 2}};
  p.states.push_back({"kv.0", 0, false, {{"k", DType::kF16, {2, 8}, 32}}});
  WeightEntry w;
  w.dtype = DType::kF32;
  w.dims = {100, 10};
  p.weights.push_back(w);
  return p;
}

std::shared_ptr<const SampleSpec> greedy() {
  SampleSpec spec;
  spec.temperature = 0;
  return std::make_shared<const SampleSpec>(spec);
}

// A sequence at row 0 with blocks 0, 1, 2 ... of both groups, tokens from `start` on.
StepInputs one_sequence(std::vector<int32_t> ids, int32_t start, int32_t block0 = 0) {
  StepInputs in;
  auto n = static_cast<int32_t>(ids.size());
  in.ids = std::move(ids);
  for (int32_t i = 0; i < n; ++i) {
    in.pos.push_back(start + i);
    in.slot.push_back(start + i);
    in.seq.push_back(0);
  }
  in.q_start = {0, n};
  in.kv_len = {start + n};
  in.row = {0};
  in.out_rows = {n - 1};
  in.samples.resize(1);
  in.samples[0].position = start + n;
  in.samples[0].spec = greedy();
  in.tables.resize(2);
  for (auto& t : in.tables) {
    t.stride = 5;
    for (int32_t k = 0; k < 5; ++k) t.blocks.push_back(block0 + k);
  }
  return in;
}

struct Device {
  explicit Device(NullOptions o = {}) : options(o) {
    options.shadow = true;
    LoadOptions load;
    load.blocks = {10, 10};
    load.max_rows = 4;
    exe = make_null_executable(plans, load, options);
  }
  StepResult run(const StepInputs& in) {
    StepResult r;
    exe->collect(exe->submit(in), r);
    return r;
  }
  PlanSet plans = plan_set();
  NullOptions options;
  std::unique_ptr<Executable> exe;
};

TEST(Null, TokensArePredictable) {
  Device d;
  NullModel model = null_model(d.plans, d.options);
  std::vector<int32_t> prompt = {3, 1, 4, 1, 5};
  auto expected = model.continuation(prompt, 4);
  EXPECT_EQ(d.run(one_sequence({3, 1}, 0)).path.size(), 1u);  // in two chunks
  EXPECT_EQ(d.run(one_sequence({4, 1, 5}, 2)).ids[0], expected[0]);
  EXPECT_EQ(d.run(one_sequence({-1}, 5)).ids[0], expected[1]);  // "the row's last token"
  EXPECT_EQ(d.run(one_sequence({expected[1]}, 6)).ids[0], expected[2]);
  EXPECT_EQ(d.run(one_sequence({-1}, 7)).ids[0], expected[3]);
  EXPECT_NE(model.continuation(std::vector<int32_t>{9, 1, 4, 1, 5}, 4), expected);
}

TEST(Null, DraftsAreAcceptedWhileTheyAgree) {
  Device d;
  std::vector<int32_t> prompt = {3, 1, 4};
  auto next = null_model(d.plans, d.options).continuation(prompt, 4);
  d.run(one_sequence({3, 1}, 0));
  StepInputs in = one_sequence({4, next[0], next[1], (next[2] + 1) % 50}, 2);
  in.out_rows = {0, 1, 2, 3};
  in.samples.resize(4, in.samples[0]);
  for (int i = 0; i < 4; ++i) {
    in.samples[static_cast<size_t>(i)].position = 3 + i;
    in.samples[static_cast<size_t>(i)].parent = i - 1;
  }
  StepResult r = d.run(in);
  EXPECT_EQ(r.path, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(r.ids[0], next[0]);
  EXPECT_EQ(r.ids[2], next[2]);
  EXPECT_EQ(d.run(one_sequence({-1}, 5)).ids[0], next[3]);  // slot 5 is written again
}

// Rows 0 .. 4 of a tree: 0 -> 1 (wrong), 0 -> 2 -> 3 (wrong), 2 -> 4. The kept slots move together.
TEST(Null, TreesAreAcceptedByPath) {
  Device d;
  auto next = null_model(d.plans, d.options).continuation(std::vector<int32_t>{3, 1, 4}, 4);
  auto wrong = [](int32_t id) { return (id + 1) % 50; };
  d.run(one_sequence({3, 1}, 0));
  StepInputs in = one_sequence({4, wrong(next[0]), next[0], wrong(next[1]), next[1]}, 2);
  in.pos = {2, 3, 3, 4, 4};
  in.mask_width = 5;
  in.mask = {1, 0, 0, 0, 0,  //
             1, 1, 0, 0, 0,  //
             1, 0, 1, 0, 0,  //
             1, 0, 1, 1, 0,  //
             1, 0, 1, 0, 1};
  in.out_rows = {0, 1, 2, 3, 4};
  in.samples.resize(5, in.samples[0]);
  const int32_t parents[] = {-1, 0, 0, 2, 2};
  for (size_t i = 0; i < 5; ++i) {
    in.samples[i].position = in.pos[i] + 1;
    in.samples[i].parent = parents[i];
  }
  StepResult r = d.run(in);
  EXPECT_EQ(r.path, (std::vector<int32_t>{0, 2, 4}));
  EXPECT_EQ(r.ids[4], next[2]);
  EXPECT_THROW(d.run(one_sequence({-1}, 5)), Error) << "slots 3 and 4 are not its own";
  StepInputs moved = one_sequence({next[2]}, 5);
  for (auto [from, to] : {std::pair{4, 3}, {6, 4}})
    for (uint32_t g : {0u, 1u}) moved.moves.push_back({g, from, to});
  EXPECT_EQ(d.run(moved).ids[0], next[3]);
}

TEST(Null, PhasesDraftAndVerify) {
  Device d;
  NullModel model = null_model(d.plans, d.options);
  std::vector<int32_t> text = {3, 1, 4};
  d.run(one_sequence({3, 1}, 0));
  int agreed = 0;
  while (text.size() < 9) {  // a draft of one token and its verification in one step
    auto at = static_cast<int32_t>(text.size()) - 1;
    StepInputs in = one_sequence({text.back(), text.back(), id_of_output(0)}, at);
    in.phases = {{"draft", 1, 1, 1}, {"verify1", 2, 1, 2}};
    in.pos = in.slot = {at, at, at + 1};
    in.seq = {0, 1, 1};
    in.q_start = {0, 1, 3};
    in.kv_len = {at + 1, at + 2};
    in.row = {0, 0};
    in.out_rows = {0, 1, 2};
    in.samples.resize(3, in.samples[0]);
    in.samples[0].mode = SampleRow::Mode::kDraft;
    in.samples[0].position = in.samples[1].position = at + 1;
    in.samples[2].position = at + 2;
    in.samples[2].parent = 1;
    for (auto& t : in.tables) t.blocks.insert(t.blocks.end(), t.blocks.begin(), t.blocks.end());
    StepResult r = d.run(in);
    EXPECT_TRUE(r.path_of(0).empty());
    for (int32_t output : r.path_of(1)) text.push_back(r.ids[static_cast<size_t>(output)]);
    EXPECT_EQ(r.path_of(1).size(), r.ids[0] == r.ids[1] ? 2u : 1u);
    agreed += r.ids[0] == r.ids[1];
  }
  auto expected = model.continuation(std::vector<int32_t>{3, 1, 4}, 20);
  EXPECT_TRUE(std::equal(text.begin() + 3, text.end(), expected.begin()));
  EXPECT_GT(agreed, 0);
}

// Two sequences, of which the first guides the second: its history decides too.
TEST(Null, AGuideIsAnEarlierOutputThatChoosesNothing) {
  auto guided = [](int32_t guide_id) {
    StepInputs in = one_sequence({guide_id, 7}, 0);
    in.pos = in.slot = {0, 0};
    in.seq = {0, 1};
    in.q_start = {0, 1, 2};
    in.kv_len = {1, 1};
    in.row = {0, 1};
    in.out_rows = {0, 1};
    in.samples.assign(2, in.samples[0]);
    in.samples[0].mode = SampleRow::Mode::kHidden;
    in.samples[1].guide = 0;
    in.samples[0].position = in.samples[1].position = 1;
    for (auto& t : in.tables) {
      t.blocks.insert(t.blocks.end(), t.blocks.begin(), t.blocks.end());
      for (size_t i = t.blocks.size() / 2; i < t.blocks.size(); ++i) t.blocks[i] += 5;
    }
    return in;
  };
  int differ = 0;
  for (int32_t id = 2; id < 12; ++id)
    differ += Device().run(guided(1)).ids[1] != Device().run(guided(id)).ids[1];
  EXPECT_GT(differ, 7);
  for (int32_t guide : {-2, 1, 5}) {
    StepInputs wrong = guided(1);
    wrong.samples[1].guide = guide;
    EXPECT_THROW(Device().run(wrong), Error) << guide;
  }
  StepInputs wrong = guided(1);
  wrong.samples[0].mode = SampleRow::Mode::kSample;  // it would choose for another row
  EXPECT_THROW(Device().run(wrong), Error);
}

// A mask may come after later steps were submitted: they wait for the token.
TEST(Null, MasksComeBeforeCollect) {
  NullOptions o;
  o.max_in_flight = 3;
  Device d(o);
  StepInputs in = one_sequence({3, 1}, 0);
  in.samples[0].masked = true;
  Ticket a = d.exe->submit(in), b = d.exe->submit(one_sequence({-1}, 2));
  std::vector<std::byte> bytes(d.exe->block_bytes(0));
  const int32_t block[] = {0};
  Ticket read = d.exe->read_blocks(0, block, bytes);
  EXPECT_THROW(d.exe->set_mask(b, 0, std::vector<uint32_t>(2, ~0u)), Error);
  std::vector<uint32_t> mask(2, 0);
  mask[0] = 1u << 17;
  d.exe->set_mask(a, 0, mask);
  StepResult r;
  d.exe->collect(a, r);
  EXPECT_EQ(r.ids[0], 17);
  d.exe->collect(b, r);
  EXPECT_EQ(r.ids[0],
            null_model(d.plans, d.options).continuation(std::vector<int32_t>{3, 1, 17}, 1)[0]);
  d.exe->wait(read);
  EXPECT_NE(bytes, std::vector<std::byte>(bytes.size())) << "it was read after the steps";
  Ticket c = d.exe->submit(in);  // no mask comes
  d.exe->collect(c, r);
  EXPECT_EQ(r.failed[0], StepFailure::kNothingAllowed);
}

TEST(Null, BlocksCanBeTakenAwayAndBroughtBack) {
  Device d;
  auto expected = null_model(d.plans, d.options).continuation(std::vector<int32_t>{3, 1, 4}, 2);
  EXPECT_EQ(d.run(one_sequence({3, 1, 4}, 0)).ids[0], expected[0]);
  std::vector<std::byte> saved[2];
  const int32_t from[] = {0, 1}, to[] = {5, 6};
  for (uint32_t g : {0u, 1u}) {
    saved[g].resize(2 * d.exe->block_bytes(g));
    d.exe->wait(d.exe->read_blocks(g, from, saved[g]));
  }
  d.run(one_sequence({9, 9, 9, 9}, 0));  // another sequence overwrites them
  EXPECT_THROW(d.run(one_sequence({expected[0]}, 3, 5)), Error);
  for (uint32_t g : {0u, 1u}) d.exe->wait(d.exe->write_blocks(g, to, saved[g]));
  EXPECT_EQ(d.run(one_sequence({expected[0]}, 3, 5)).ids[0], expected[1]);
  EXPECT_THROW(d.exe->read_blocks(0, from, std::span(saved[0]).first(5)), Error);
  const int32_t wrong[] = {10};
  EXPECT_THROW(d.exe->read_blocks(0, wrong, std::span(saved[0])), Error);
}

TEST(Null, ScoresAndNan) {
  NullOptions o;
  o.nan_token = 7;
  Device d(o);
  StepInputs in = one_sequence({3, 1, 4}, 0);
  in.samples[0].mode = SampleRow::Mode::kScore;
  in.samples[0].target = 9;
  StepResult r = d.run(in);
  std::vector<int32_t> ids = {3, 1, 4, 9};
  EXPECT_EQ(r.logprobs[0], null_model(d.plans, d.options).score(ids, 3));
  EXPECT_TRUE(r.path.empty());
  EXPECT_EQ(r.failed[0], StepFailure::kNone);
  EXPECT_EQ(d.run(one_sequence({3, 7}, 0)).failed[0], StepFailure::kNotFinite);
}

TEST(Null, WrongStepsAreFound) {
  auto refused = [](auto&& change) {
    Device d;
    d.run(one_sequence({3, 1, 4, 1, 5, 9}, 0));
    StepInputs in = one_sequence({2}, 6);
    change(in);
    EXPECT_THROW(d.run(in), Error);
  };
  Device d;
  d.run(one_sequence({3, 1, 4, 1, 5, 9}, 0));
  d.run(one_sequence({2}, 6));                      // fine as it is
  refused([](StepInputs& in) { in.ids[0] = 50; });  // not in the vocabulary
  refused([](StepInputs& in) { in.ids[0] = -2; });  // another row's token
  refused([](StepInputs& in) { in.kv_len[0] = 6; });
  refused([](StepInputs& in) { in.row[0] = 4; });
  refused([](StepInputs& in) { in.tables[0].blocks[1] = -1; });  // writes there
  refused([](StepInputs& in) { in.tables[0].blocks[0] = 5; });   // is empty
  refused([](StepInputs& in) { in.tables[0].blocks[0] = 10; });
  refused([](StepInputs& in) { in.tables[1].blocks[2] = -1; });  // inside the window
  refused([](StepInputs& in) { in.pos[0] = 2; });
  refused([](StepInputs& in) { in.slot[0] = in.pos[0] = 7, in.kv_len[0] = 8; });  // a hole
  refused([](StepInputs& in) { in.samples.clear(), in.out_rows.clear(); });
  refused([](StepInputs& in) { in.samples[0].position = 6; });
}

TEST(Null, WindowBlocksMayBeGone) {
  Device d;
  d.run(one_sequence({3, 1, 4, 1, 5, 9}, 0));
  StepInputs in = one_sequence({2}, 6);  // sees slots 3 .. 6: blocks 1, 2, 3
  in.tables[1].blocks[0] = -1;
  d.run(in);
}

TEST(Null, TwoWritersOfABlockAreFound) {
  Device d;
  StepInputs in = one_sequence({3}, 0);
  in.ids = {3, 4};
  in.pos = in.slot = {0, 0};
  in.seq = {0, 1};
  in.q_start = {0, 1, 2};
  in.kv_len = {1, 1};
  in.row = {0, 1};
  for (auto& t : in.tables) {
    t.stride = 1;
    t.blocks = {0, 1};
  }
  d.run(in);
  in.tables[1].blocks = {2, 2};
  EXPECT_THROW(d.run(in), Error);
}

TEST(Null, StepsAfterAFailedOneComputeGarbage) {
  NullOptions o;
  o.fail_every = 5;
  o.max_in_flight = 4;
  Device d(o);
  auto expected = null_model(d.plans, d.options).continuation(std::vector<int32_t>{3, 1}, 4);
  StepResult r;
  for (int i = 0; i < 3; ++i) d.run(one_sequence({9}, 0));
  Ticket a = d.exe->submit(one_sequence({3, 1}, 0));
  Ticket b = d.exe->submit(one_sequence({-1}, 2));  // fails
  Ticket c = d.exe->submit(one_sequence({-1}, 3));
  d.exe->collect(a, r);
  EXPECT_EQ(r.ids[0], expected[0]);
  EXPECT_THROW(d.exe->collect(b, r), Error);
  d.exe->collect(c, r);                                      // garbage, but no complaint
  EXPECT_THROW(d.exe->submit(one_sequence({4}, 4)), Error);  // builds on the garbage
  EXPECT_EQ(d.run(one_sequence({expected[0]}, 2)).ids[0], expected[1]);
}

TEST(Null, TimeIsARoofline) {
  Machine m;
  m.i8_ops = 1e6;
  m.levels.back().bandwidth = 1e6;
  m.launch_seconds = 1;
  Roofline line(plan_set(), m);
  // One token: 4000 bytes of weights and 32 of KV; 2 * 1000 + 2 * 16 operations.
  EXPECT_NEAR(line.seconds(one_sequence({1}, 0)), 1 + 4032e-6, 1e-12);
  // Eight: arithmetic dominates.
  EXPECT_NEAR(line.seconds(one_sequence({1, 2, 3, 4, 5, 6, 7, 8}, 0)),
              1 + (8 * 2000 + 2 * 8 * 8 * 16) * 1e-6, 1e-12);
}

TEST(Null, AMachineInRealTimeTakesItsTime) {
  NullOptions o;
  o.machine.launch_seconds = 0.01;
  o.machine.real_time = true;
  Device d(o);
  SteadyClock clock;
  Nanos start = clock.now();
  Ticket a = d.exe->submit(one_sequence({3, 1}, 0));
  Ticket b = d.exe->submit(one_sequence({-1}, 2));
  StepResult r;
  d.exe->collect(a, r);
  EXPECT_GE(clock.now() - start, Nanos{10'000'000});
  d.exe->collect(b, r);
  EXPECT_GE(clock.now() - start, Nanos{20'000'000});
}

}  // namespace
}  // namespace tokamak
