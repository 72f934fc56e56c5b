#include "backend/common/step_binding.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"

namespace tokamak {
namespace {

PlanSet plan_set() {
  PlanSet set;
  set.vocab = 100;
  set.symbols = {{"T", 1, 64, 1}, {"B", 1, 8, 1}, {"R", 0, 64, 1}, {"M", 0, 64, 1}};
  set.groups = {{"full", 0, 4}, {"window", 4, 4}};
  for (uint32_t g : {0u, 1u}) {
    StateEntry state;
    state.name = set.groups[g].name;
    state.group = g;
    set.states.push_back(state);
  }
  Plan step, decode;
  step.function = "step";
  step.guard = {{"T", 1, 64, 1}, {"B", 1, 8, 1}};
  decode.function = "decode";
  decode.guard = {{"B", 1, 4, 1}};
  decode.bound_symbols = {{"T", "B"}, {"R", "B"}};
  set.plans = {step, decode};
  return set;
}

// Two sequences: one decodes its 10th token, one prefills 5 tokens behind 3.
StepInputs good_step() {
  StepInputs s;
  s.ids = {7, 1, 2, 3, 4, 5};
  s.pos = {9, 3, 4, 5, 6, 7};
  s.slot = s.pos;
  s.seq = {0, 1, 1, 1, 1, 1};
  s.q_start = {0, 1, 6};
  s.kv_len = {10, 8};
  s.row = {3, 0};
  s.out_rows = {0, 5};
  auto spec = std::make_shared<const SampleSpec>();
  s.samples = {{SampleRow::Mode::kSample, -1, 0, 10, 0, spec},
               {SampleRow::Mode::kScore, 3, 0, 8, 0, nullptr}};
  s.tables = {{{4, 2, 9, 0, 1, -1}, 3}, {{-1, 3, 5, 0, 1, -1}, 3}};
  return s;
}

TEST(StepBinding, SymbolsAndPlan) {
  PlanSet set = plan_set();
  StepBinder binder(set, {10, 6}, 4);
  EXPECT_EQ(binder.bind(good_step()), 0);
  EXPECT_EQ(std::vector<int64_t>(binder.symbols().begin(), binder.symbols().end()),
            (std::vector<int64_t>{6, 2, 2, 0}));
}

StepInputs decode_step() {
  StepInputs s = good_step();
  s.function = "decode";
  s.ids = {7, -1};
  s.pos = s.slot = {9, 7};
  s.seq = {0, 1};
  s.q_start = {0, 1, 2};
  s.out_rows = {0, 1};
  return s;
}

TEST(StepBinding, DecodeNeedsItsLayout) {
  PlanSet set = plan_set();
  StepBinder binder(set, {10, 6}, 4);
  StepInputs s = decode_step();
  EXPECT_EQ(binder.bind(s), 1);
  std::swap(s.out_rows[0], s.out_rows[1]);
  EXPECT_EQ(binder.bind(s), 0) << "falls back to the general function";
  s.out_rows.pop_back();
  s.samples.pop_back();
  EXPECT_EQ(binder.bind(s), 0);
}

TEST(StepBinding, PadsToMultiples) {
  PlanSet set = plan_set();
  Plan by_eight = set.plans[0], by_four = set.plans[1];
  by_eight.guard = {{"T", 1, 64, 8, 64}, {"B", 1, 9, 1}};
  by_four.guard = {{"B", 1, 4, 4, 4}};
  set.plans.push_back(by_eight);
  set.plans.push_back(by_four);
  StepBinder binder(set, {10, 6}, 4);
  EXPECT_EQ(binder.bind(good_step()), 2);  // 6 rows of 2 sequences: two rows of a third
  EXPECT_EQ(binder.symbols()[0], 8);
  EXPECT_EQ(binder.symbols()[1], 3);
  EXPECT_EQ(binder.inputs().q_start, (std::vector<int32_t>{0, 1, 6, 8}));
  EXPECT_EQ(binder.bind(decode_step()), 3);
  EXPECT_EQ(binder.symbols()[0], 4);
  EXPECT_EQ(binder.stats().padded_rows, 2 + 2);
  EXPECT_EQ(binder.stats().fallbacks, 0);
  EXPECT_EQ((*binder.stats().names)[2], "step T<=64 padded to multiples of 8 B<=9");
}

TEST(StepBinding, CountsPlansMadeSinceItWasLoaded) {
  PlanSet set = plan_set();
  count_compile();
  StepBinder binder(set, {10, 6}, 4);
  binder.bind(good_step());
  EXPECT_EQ(binder.stats().compiles, 0);
  count_compile();
  binder.bind(good_step());
  EXPECT_EQ(binder.stats().compiles, 1);
}

TEST(StepBinding, EveryWrongStepIsRefused) {
  using Break = std::function<void(StepInputs&)>;
  const std::pair<const char*, Break> cases[] = {
      {"no tokens", [](auto& s) { s.ids.clear(); }},
      {"pos has", [](auto& s) { s.pos.pop_back(); }},
      {"slot has", [](auto& s) { s.slot.push_back(0); }},
      {"adapter has", [](auto& s) { s.adapter = {1}; }},
      {"mask has", [](auto& s) { s.mask = {1}; }},
      {"the mask is", [](auto& s) { s.mask.assign(12, 1), s.mask_width = 2; }},
      {"has id 100", [](auto& s) { s.ids[2] = 100; }},
      {"has id -5", [](auto& s) { s.ids[2] = -5; }},
      {"has position", [](auto& s) { s.pos[0] = -1; }},
      {"q_start",
       [](auto& s) {
         s.q_start = {0, 1};
       }},
      {"q_start",
       [](auto& s) {
         s.q_start = {1, 1, 6};
       }},
      {"has the tokens",
       [](auto& s) {
         s.q_start = {0, 0, 6};
       }},
      {"has the tokens",
       [](auto& s) {
         s.q_start = {0, 9, 6};
       }},
      {"but length", [](auto& s) { s.kv_len[1] = 4; }},
      {"seq 0", [](auto& s) { s.seq[3] = 0; }},
      {"slot 8 of 8", [](auto& s) { s.slot[5] = 8; }},
      {"slot -1", [](auto& s) { s.slot[5] = -1; }},
      {"rows for", [](auto& s) { s.row.pop_back(); }},
      {"has row 4", [](auto& s) { s.row[0] = 4; }},
      {"used twice", [](auto& s) { s.row[1] = 3; }},
      {"samples for", [](auto& s) { s.samples.pop_back(); }},
      {"output row 6", [](auto& s) { s.out_rows[1] = 6; }},
      {"no sampling", [](auto& s) { s.samples[0].spec = nullptr; }},
      {"scores token", [](auto& s) { s.samples[1].target = 100; }},
      {"block tables", [](auto& s) { s.tables.pop_back(); }},
      {"the table of", [](auto& s) { s.tables[0].stride = 2; }},
      {"the table of", [](auto& s) { s.tables[0].stride = -1; }},
      {"block 10 of", [](auto& s) { s.tables[0].blocks[5] = 10; }},
      {"block -2 of", [](auto& s) { s.tables[0].blocks[5] = -2; }},
      {"needs block 0 of group full", [](auto& s) { s.tables[0].blocks[0] = -1; }},
      {"needs block 1 of group window", [](auto& s) { s.tables[1].blocks[1] = -1; }},
      {"does not fit", [](auto& s) { s.kv_len[0] = 13; }},
      {"copy of",
       [](auto& s) {
         s.copies = {{0, 1, 10}};
       }},
      {"copy of",
       [](auto& s) {
         s.copies = {{2, 1, 1}};
       }},
      {"reset of row",
       [](auto& s) {
         s.resets.push_back({4, 0, {}});
       }},
      {"is reset with token",
       [](auto& s) {
         s.resets.push_back({0, 0, {100}});
       }},
  };
  PlanSet set = plan_set();
  StepBinder binder(set, {10, 6}, 4);
  for (const auto& [message, spoil] : cases) {
    StepInputs s = good_step();
    spoil(s);
    try {
      binder.bind(s);
      ADD_FAILURE() << "accepted: " << message;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInternal);
      EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
    }
  }
  EXPECT_EQ(binder.bind(good_step()), 0);
}

TEST(StepBinding, NoPlanAndUnknownSymbols) {
  PlanSet set = plan_set();
  set.plans[0].guard[0].hi = 5;
  StepBinder binder(set, {10, 6}, 4);
  try {
    binder.bind(good_step());
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kOutOfRange);
  }
  EXPECT_THROW(StepBinder(set, {10}, 4), Error);
  set.symbols.push_back({"N", 1, 2, 1});
  EXPECT_THROW(StepBinder(set, {10, 6}, 4), Error);
}

}  // namespace
}  // namespace tokamak
