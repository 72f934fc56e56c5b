#include "backend/common/step_binding.h"

#include <gtest/gtest.h>

#include <deque>
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

// Two sequences: one decodes its 10th token, one prefills 5 tokens after 3.
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
  StepInputs step = good_step();  // the binder refers to it
  EXPECT_EQ(binder.bind(step), 0);
  EXPECT_EQ(std::vector<int64_t>(binder.symbols().begin(), binder.symbols().end()),
            (std::vector<int64_t>{6, 2, 2, 0}));
}

// A binder refers to the step that it has bound.
const StepInputs& kept(StepInputs step) {
  static std::deque<StepInputs> steps;
  return steps.emplace_back(std::move(step));
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
  EXPECT_EQ(binder.bind(kept(good_step())), 2);  // 6 rows of 2 sequences: two rows of a third
  EXPECT_EQ(binder.symbols()[0], 8);
  EXPECT_EQ(binder.symbols()[1], 3);
  EXPECT_EQ(binder.inputs().q_start, (std::vector<int32_t>{0, 1, 6, 8}));
  EXPECT_EQ(binder.bind(kept(decode_step())), 3);
  EXPECT_EQ(binder.symbols()[0], 4);
  EXPECT_EQ(binder.stats().padded_rows, 2 + 2);
  EXPECT_EQ(binder.stats().fallbacks, 0);
  EXPECT_EQ((*binder.stats().names)[2], "step T<=64 padded to multiples of 8 B<=9");
}

TEST(StepBinding, PadsSequencesAndOutputs) {
  PlanSet set = plan_set();
  set.plans[0].guard = {{"T", 1, 8, 1, 8}, {"B", 1, 4, 1, 4}, {"R", 1, 5, 1, 5}};
  StepBinder binder(set, {10, 6}, 4);
  StepInputs step = good_step();  // the binder refers to it
  EXPECT_EQ(binder.bind(step), 0);
  EXPECT_EQ(std::vector<int64_t>(binder.symbols().begin(), binder.symbols().end()),
            (std::vector<int64_t>{8, 4, 5, 0}));
  const StepInputs& in = binder.inputs();
  EXPECT_EQ(in.q_start, (std::vector<int32_t>{0, 1, 6, 8, 8}));
  EXPECT_EQ(in.kv_len, (std::vector<int32_t>{10, 8, 0, 0}));
  EXPECT_EQ(in.seq, (std::vector<int32_t>{0, 1, 1, 1, 1, 1, 2, 2}));
  EXPECT_EQ(in.slot, (std::vector<int32_t>{9, 3, 4, 5, 6, 7, -1, -1}));
  EXPECT_EQ(in.out_rows, (std::vector<int32_t>{0, 5, 0, 0, 0}));
  EXPECT_EQ(binder.ids(), (std::vector<int32_t>{7, 1, 2, 3, 4, 5, 0, 0}));
  EXPECT_EQ(binder.phase().tokens(), 6);
  // Rows of padding need a sequence of their own.
  set.plans[0].guard[1] = {"B", 1, 2, 1, 2};
  StepBinder full(set, {10, 6}, 4);
  EXPECT_THROW(full.bind(kept(good_step())), Error);
}

// A module whose encoder reads patches of an image; its symbol P is an axis of that input.
PlanSet encoder_set() {
  PlanSet set = plan_set();
  set.symbols.push_back({"P", 1, 32, 1});
  set.inputs = {{"pos", DType::kI32, {SymExpr::symbol("T")}},
                {"patches", DType::kF32, {SymExpr::symbol("P") * SymExpr(2), SymExpr(3)}},
                {"grid", DType::kI32, {SymExpr(2)}}};
  Plan encode;
  encode.function = "encode";
  encode.guard = {{"P", 1, 32, 1}};
  set.plans.push_back(encode);
  return set;
}

StepTensor patches(int64_t rows) {
  return {
      "patches", DType::kF32, {rows, 3}, std::vector<std::byte>(static_cast<size_t>(rows * 12))};
}

TEST(StepBinding, OtherFunctionsHaveOtherSymbols) {
  PlanSet set = encoder_set();
  StepBinder binder(set, {10, 6}, 4);
  StepInputs step;
  step.function = "encode";
  step.inputs = {patches(10)};
  const int32_t grid[] = {4, 5};
  step.set_input("grid", grid);
  EXPECT_EQ(binder.bind(step), 2);
  EXPECT_EQ(binder.symbols()[4], 5);
  EXPECT_EQ(binder.symbols()[0], 0);
  InputView view = binder.input(1);
  EXPECT_EQ(view.dtype, DType::kF32);
  EXPECT_EQ(view.elements, 30);
  EXPECT_EQ(static_cast<const int32_t*>(binder.input(2).data)[1], 5);
  EXPECT_EQ(binder.bind(kept(good_step())), 0);
  EXPECT_EQ(binder.symbols()[4], 0);
  EXPECT_EQ(binder.input(0).data, binder.inputs().pos.data());
  EXPECT_THROW(binder.input(1), Error) << "the step does not have it";
}

TEST(StepBinding, NamedInputsAreCheckedAndPadded) {
  PlanSet set = encoder_set();
  set.plans[2].guard = {{"P", 1, 32, 8, 32}};
  StepBinder binder(set, {10, 6}, 4);
  StepInputs step;
  step.function = "encode";
  step.inputs = {patches(10)};
  step.inputs[0].bytes[0] = std::byte{7};
  EXPECT_EQ(binder.bind(step), 2);
  EXPECT_EQ(binder.symbols()[4], 8);
  EXPECT_EQ(binder.input(1).elements, 16 * 3);
  EXPECT_EQ(static_cast<const std::byte*>(binder.input(1).data)[0], std::byte{7});
  for (auto spoil : {+[](StepTensor& t) { t = patches(9); },  // not a multiple of two
                     +[](StepTensor& t) { t.dtype = DType::kI32; },
                     +[](StepTensor& t) {
                       t.dims = {5, 6};
                     }}) {
    StepInputs wrong = step;
    spoil(wrong.inputs[0]);
    EXPECT_THROW(binder.bind(wrong), Error);
  }
}

// The two sequences of good_step() as two phases.
TEST(StepBinding, PhasesAreBoundOneByOne) {
  PlanSet set = plan_set();
  StepBinder binder(set, {10, 6}, 4);
  StepInputs step = good_step();
  step.phases = {{"decode", 1, 1, 1}, {"step", 5, 1, 1}};
  step.ids[3] = id_of_output(0);
  ASSERT_EQ(phase_count(step), 2u);
  EXPECT_EQ(binder.bind(step, 0), 1);
  EXPECT_EQ(binder.symbols()[0], 1);
  EXPECT_EQ(binder.phase().tables[0].blocks, (std::vector<int32_t>{4, 2, 9}));
  EXPECT_EQ(binder.bind(step, 1), 0);
  EXPECT_EQ(binder.symbols()[0], 5);
  EXPECT_EQ(binder.first_output(), 1);
  EXPECT_EQ(binder.first_sequence(), 1);
  const StepInputs& phase = binder.phase();
  EXPECT_EQ(phase.q_start, (std::vector<int32_t>{0, 5}));
  EXPECT_EQ(phase.seq, (std::vector<int32_t>(5, 0)));
  EXPECT_EQ(phase.out_rows, (std::vector<int32_t>{4}));
  EXPECT_EQ(phase.tables[0].blocks, (std::vector<int32_t>{0, 1, -1}));
  EXPECT_EQ(binder.ids()[2], id_of_output(0));
  step.ids[3] = id_of_output(1);  // its own output
  binder.bind(step, 0);
  EXPECT_THROW(binder.bind(step, 1), Error);
}

TEST(StepBinding, CountsPlansMadeSinceItWasLoaded) {
  PlanSet set = plan_set();
  count_compile();
  StepBinder binder(set, {10, 6}, 4);
  binder.bind(kept(good_step()));
  EXPECT_EQ(binder.stats().compiles, 0);
  count_compile();
  binder.bind(kept(good_step()));
  EXPECT_EQ(binder.stats().compiles, 1);
}

struct WrongStep {
  const char* message;  // a part of it
  std::function<void(StepInputs&)> spoil;
};
const WrongStep kWrongSteps[] = {
    {"no tokens", [](auto& s) { s.ids.clear(); }},
    {"pos has", [](auto& s) { s.pos.pop_back(); }},
    {"slot has", [](auto& s) { s.slot.push_back(0); }},
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
    {"move of slot",
     [](auto& s) {
       s.moves = {{0, 3, 40}};
     }},
    {"move of slot",
     [](auto& s) {
       s.moves = {{2, 0, 1}};
     }},
    {"cannot continue output 1", [](auto& s) { s.samples[0].parent = 1; }},
    {"cannot continue output 0", [](auto& s) { s.samples[1].parent = 0; }},
    {"has id -2147483648", [](auto& s) { s.ids[2] = id_of_output(0); }},
    {"masked and does not sample", [](auto& s) { s.samples[1].masked = true; }},
    {"its phases need 6 entries of ids",
     [](auto& s) {
       s.phases = {{"step", 6, 2, 2}};
       s.ids.pop_back();
     }},
    {"its phases need 3 entries of kv_len",
     [](auto& s) {
       s.phases = {{"step", 6, 3, 2}};
       s.q_start.push_back(6);
     }},
    {"input image has 3 bytes",
     [](auto& s) {
       s.inputs = {{"image", DType::kF32, {1}, std::vector<std::byte>(3)}};
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

TEST(StepBinding, EveryWrongStepIsRefused) {
  PlanSet set = plan_set();
  StepBinder binder(set, {10, 6}, 4);
  for (const auto& [message, spoil] : kWrongSteps) {
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
  EXPECT_EQ(binder.bind(kept(good_step())), 0);
}

TEST(StepBinding, NoPlanAndUnknownSymbols) {
  PlanSet set = plan_set();
  set.plans[0].guard[0].hi = 5;
  StepBinder binder(set, {10, 6}, 4);
  try {
    binder.bind(kept(good_step()));
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
