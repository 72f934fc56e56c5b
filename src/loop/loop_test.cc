#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/rng.h"
#include "loop/bounds.h"
#include "loop/evaluate.h"
#include "loop/phases.h"

namespace tokamak::loop {
namespace {

constexpr std::string_view kNorm = R"(loop 1
rows T, 2
columns 5
in0 : f32[T, 10]
in1 : f32[T, 10]
in2 : f32[5]
out0 : f32[T, 10]
out1 : f32[T, 2, 5]
%0 = load in0[c + 10*r0 + 5*r1] : f32 tile
%1 = load in1[c + 10*r0 + 5*r1] : f32 tile
%2 = add %0, %1 : f32 tile
%3 = sum_squares %2 : wide row
%4 = columns : wide row
%5 = div %3, %4 : wide row
%6 = const 1e-05 : wide row
%7 = add %5, %6 : wide row
%8 = rsqrt %7 : wide row
%9 = mul %2, %8 : wide tile
%10 = load in2[c] : f32 tile
%11 = mul %9, %10 : f32 tile
store out0[c + 10*r0 + 5*r1] = %2
store out1[c + 10*r0 + 5*r1] = %11
)";

constexpr std::string_view kRows = R"(loop 1
rows N
columns 4
in0 : f32[6, 4]
in1 : i32[N]
out0 : f32[N, 4]
out1 : f32[6, 4]
out2 : i32[N, 4]
%0 = load in1[r0] : i32 row
%1 = load in0[c + 4*g] by %0 below 6 : f32 tile
%2 = softcap %1, 30 : f32 tile
%3 = index [c + 4*r0] : i32 tile
%4 = const 3 : i32 row
%5 = lt %3, %4 : i32 tile
%6 = const -inf : f32 row
%7 = select %5, %2, %6 : f32 tile
store out0[c + 4*r0] = %7
store out1[c + 4*g] by %0 below 6 = %1
store out2[c + 4*r0] = %3
)";

std::vector<std::string> base_texts() {
  return {std::string(kNorm), std::string(kRows),
          "loop 1\nrows\ncolumns 32*T\nin0 : f16[T, 32]\nout0 : bf16[T, 32]\n"
          "%0 = load in0[c] : f32 tile\n%1 = round_bf16 %0 : f32 tile\nstore out0[c] = %1\n",
          "loop 1\nrows T\ncolumns 64\nin0 : f32[T, 64]\nout0 : q8a[T, 64]\n"
          "%0 = load in0[c + 64*r0] : f32 tile\n%1 = silu %0 : f32 tile\n"
          "store out0[c + 64*r0] = %1\n",
          "loop 1\nrows T\ncolumns S\nin0 : f32[S, T]\nout0 : f32[T]\n"
          "%0 = load in0[T*c + r0] : f32 tile\n%1 = max %0 : f32 row\nstore out0[r0] = %1\n"};
}

TEST(LoopText, RoundTrips) {
  for (const std::string& text : base_texts()) {
    Program p = parse_program(text);
    EXPECT_EQ(print_program(p), text);
    EXPECT_TRUE(parse_program(print_program(p)) == p);
  }
  Program p = parse_program(
      "loop 1 // a comment\n rows  2*T\n\ncolumns 8\nin0:f32[2*T,8]\nout0 : f32[16*T]\n"
      "%0=load in0[r0*8 + c]:f32 tile\n%1 = const nan : f32 row\nstore out0[c+8*r0]=%0");
  EXPECT_NE(print_program(p).find("%0 = load in0[c + 8*r0] : f32 tile\n%1 = const nan"),
            std::string::npos);
}

struct Refusal {
  const char *from, *to, *message;  // a text of base_texts() with one part replaced
};
class LoopRefusal : public ::testing::TestWithParam<Refusal> {};

TEST_P(LoopRefusal, SaysWhy) {
  const Refusal& r = GetParam();
  bool found = false;
  for (std::string text : base_texts()) {
    size_t at = text.find(r.from);
    if (at == std::string::npos) continue;
    found = true;
    text.replace(at, std::string_view(r.from).size(), r.to);
    try {
      parse_program(text);
      ADD_FAILURE() << "accepted:\n" << text;
    } catch (const Error& e) {
      EXPECT_NE(e.code(), ErrorCode::kInternal);
      EXPECT_NE(std::string(e.what()).find(r.message), std::string::npos) << e.what();
    }
    break;
  }
  EXPECT_TRUE(found) << r.from;
}

INSTANTIATE_TEST_SUITE_P(
    All, LoopRefusal,
    ::testing::Values(
        Refusal{"loop 1", "loop 2", "only format 1"},
        Refusal{"loop 1", "lop 1", "expected \"loop\""},
        Refusal{"columns 5", "columns c", "a loop variable"},
        Refusal{"columns 5", "columns -5", "negative extent"},
        Refusal{"rows T, 2", "rows 1,1,1,1,1,1,1,1,1", "at most 8 row axes"},
        Refusal{"in0 : f32[T, 10]", "in0 : q4_0[T, 32]", "an input of type q4_0"},
        Refusal{"in0 : f32[T, 10]", "in0 : f32[t=T, 10]", "names or bounds"},
        Refusal{"in1 : f32[T, 10]", "in2 : f32[T, 10]", "expected in1"},
        Refusal{"%2 = add %0, %1", "%2 = add %0, %2", "%2 is not defined before it"},
        Refusal{"%2 = add %0, %1", "%3 = add %0, %1", "expected the instruction %2"},
        Refusal{"%2 = add %0, %1", "%2 = plus %0, %1", "expected an instruction"},
        Refusal{"%2 = add %0, %1", "%2 = add %0", "expected \",\""},
        Refusal{"add %0, %1 : f32 tile", "add %0, %1 : f32 row", "it gives a tile"},
        Refusal{"add %0, %1 : f32 tile", "add %0, %1 : i32 tile", "must be f32 or wide"},
        Refusal{"add %0, %1 : f32 tile", "add %0, %1 : f64 tile", "a type such as"},
        Refusal{"sum_squares %2 : wide row", "sum_squares %2 : wide tile", "it gives a row"},
        Refusal{"rsqrt %7 : wide row", "sum %7 : wide row", "is not a tile"},
        Refusal{"load in2[c]", "load in3[c]", "there is no in3"},
        Refusal{"load in2[c]", "load in2[c + 1]", "reaches element 5 of 5"},
        Refusal{"load in2[c]", "load in2[c*c]", "not linear"},
        Refusal{"load in2[c]", "load in2[r2 + c]", "uses r2"},
        Refusal{"load in2[c]", "load in2[r5*c]", "uses r5"},
        Refusal{"load in2[c]", "load in2[-c + 4]", "counts backwards"},
        Refusal{"load in2[c]", "load in2[c + g]", "uses g"},
        Refusal{"load in2[c] : f32 tile", "load in2[c] : wide tile", "a load is not wide"},
        Refusal{"load in2[c] : f32 tile", "load in2[0] : f32 tile", "it gives a row"},
        Refusal{"store out1[c + 10*r0 + 5*r1] = %11", "store out1[c + 10*r0 + 5*r1] = %9",
                "is wide"},
        Refusal{"store out1[c + 10*r0 + 5*r1] = %11", "store out1[c + 10*r0] = %11",
                "does not write each element once"},
        Refusal{"store out1[c + 10*r0 + 5*r1] = %11", "store out1[c + 5*r0 + 5*r1] = %11",
                "does not write each element once"},
        Refusal{"store out1[c + 10*r0 + 5*r1] = %11", "", "1 stores for 2 outputs"},
        Refusal{"store out0", "store out1", "it must write out0"},
        Refusal{"out1 : f32[T, 2, 5]", "out1 : f32[T, 2, 6]", "writes 10*T elements of 12*T"},
        Refusal{"out1 : f32[T, 2, 5]", "out1 : i32[T, 2, 5]", "does not fit i32"},
        Refusal{"by %0 below 6 : f32", "by %0 below 7 : f32", "reaches element"},
        Refusal{"by %0 below 6 : f32", "by %3 below 6 : f32", "not defined before"},
        Refusal{"[c + 4*g] by %0 below 6 : f32", "[c + 4*r0] by %0 below 6 : f32",
                "does not use g"},
        Refusal{"const 3 : i32", "const 3.5 : i32", "not an integer"},
        Refusal{"softcap %1, 30", "softcap %1, 0", "is not positive"},
        Refusal{"lt %3, %4", "lt %3, %2", "an integer and a float"},
        Refusal{"select %5", "select %2", "not i32"}, Refusal{"columns 64", "columns 63", ""},
        Refusal{"out0 : q8a[T, 64]", "out0 : q4_0[T, 64]", "an output of type q4_0"}));

// Whatever the text is: an error or a program that prints and reads back the same.
TEST(LoopText, MutationsNeverCrash) {
  Rng rng(20261115);
  std::vector<std::string> texts = base_texts();
  constexpr std::string_view kBytes = "0123456789%,:[]()*+-. \nrcgTinoutloadsumf32tilerow";
  size_t accepted = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string text = texts[rng.below(texts.size())];
    for (size_t k = 1 + rng.below(3); k > 0; --k) {
      size_t at = rng.below(text.size());
      switch (rng.below(4)) {
        case 0:
          text[at] = kBytes[rng.below(kBytes.size())];
          break;
        case 1:
          text.erase(at, 1 + rng.below(8));
          break;
        case 2:
          text.insert(at, 1, kBytes[rng.below(kBytes.size())]);
          break;
        default: {
          const std::string& other = texts[rng.below(texts.size())];
          size_t from = rng.below(other.size());
          text.insert(at, other.substr(from, rng.below(40)));
        }
      }
      if (text.empty()) text = " ";
    }
    try {
      Program p = parse_program(text);
      ++accepted;
      std::string printed = print_program(p);
      ASSERT_EQ(print_program(parse_program(printed)), printed) << text;
      make_phases(p);
      verify_program(p);
      merge_rows(p);
    } catch (const Error& e) {
      ASSERT_NE(e.code(), ErrorCode::kInternal) << e.what() << "\n" << text;
    }
  }
  EXPECT_GT(accepted, 60u);  // some mutations change a number only
}

TEST(LoopEvaluate, NormByHand) {
  Program p = parse_program(kNorm);
  std::vector<float> x(20), y(20), w(5), sum(20), out(20);
  Rng rng(1);
  for (auto* v : {&x, &y, &w})
    for (float& f : *v) f = static_cast<float>(rng.normal());
  const int64_t whole[] = {20}, row[] = {5};
  TensorRef<float> in[] = {{whole, x.data()}, {whole, y.data()}, {row, w.data()}};
  TensorRef<float> to[] = {{whole, sum.data()}, {whole, out.data()}};
  evaluate_program<float>(p, {{"T", 2}}, in, to);
  for (size_t r = 0; r < 4; ++r) {
    double squares = 0;
    for (size_t j = 0; j < 5; ++j) {
      float s = x[r * 5 + j] + y[r * 5 + j];
      EXPECT_EQ(sum[r * 5 + j], s);
      squares += double(s) * double(s);
    }
    for (size_t j = 0; j < 5; ++j)
      EXPECT_FLOAT_EQ(out[r * 5 + j],
                      static_cast<float>(double(sum[r * 5 + j]) / std::sqrt(squares / 5 + 1e-5) *
                                         double(w[j])));
  }
  EXPECT_THROW(evaluate_program<float>(p, {{"T", 3}}, in, to), Error);  // tensors are too small
  EXPECT_THROW(evaluate_program<float>(p, {}, in, to), Error);
}

TEST(LoopEvaluate, RowsByIndex) {
  Program p = parse_program(kRows);
  std::vector<float> x(24), out(16, 7), back(24, 7);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  std::vector<int32_t> rows = {5, -1, 0, 5}, index(16);
  const int64_t table[] = {24}, some[] = {16}, four[] = {4};
  TensorRef<float> in[] = {{table, x.data()}, {four, nullptr, rows.data()}};
  TensorRef<float> to[] = {{some, out.data()}, {table, back.data()}, {some, nullptr, index.data()}};
  evaluate_program<float>(p, {{"N", 4}}, in, to);
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_FLOAT_EQ(out[1], static_cast<float>(30 * std::tanh(21.0 / 30)));
  EXPECT_EQ(out[3], -inf);  // columns 0..2 of row 0 only
  EXPECT_EQ(out[4], -inf);
  for (size_t i = 0; i < 24; ++i) EXPECT_EQ(back[i], i < 4 || i >= 20 ? x[i] : 0.0f) << i;
  EXPECT_EQ(index[15], 15);
  rows[1] = 6;
  EXPECT_THROW(evaluate_program<float>(p, {{"N", 4}}, in, to), Error);
}

TEST(LoopSchedule, PhasesAndKeptTiles) {
  Program p = parse_program(kNorm);
  Phases s = make_phases(p);
  ASSERT_EQ(s.phases.size(), 2u);
  EXPECT_EQ(s.phases[0].tile, (std::vector<uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(s.phases[1].tile, (std::vector<uint32_t>{9, 10, 11}));
  for (uint32_t i = 0; i < s.kept.size(); ++i) EXPECT_EQ(s.kept[i], i == 2) << i;
  EXPECT_TRUE(merge_rows(p) == p);
}

TEST(LoopSchedule, WorkForALaterPhaseIsDoneThere) {
  Program p = parse_program(
      "loop 1\nrows T\ncolumns 8\nin0 : f32[T, 8]\nin1 : f32[T, 8]\nout0 : f32[T, 8]\n"
      "%0 = load in0[c + 8*r0] : f32 tile\n%1 = silu %0 : f32 tile\n%2 = neg %1 : f32 tile\n"
      "%3 = load in1[c + 8*r0] : f32 tile\n%4 = max %3 : f32 row\n%5 = mul %2, %4 : f32 tile\n"
      "store out0[c + 8*r0] = %5\n");
  Phases s = make_phases(p);
  EXPECT_EQ(s.phases[1].tile, (std::vector<uint32_t>{0, 1, 2, 5}));
  EXPECT_EQ(std::count(s.kept.begin(), s.kept.end(), true), 0);
}

TEST(LoopSchedule, MergesRows) {
  Program p = parse_program(
      "loop 1\nrows T, 3\ncolumns 8\nin0 : f32[T, 24]\nin1 : f32[]\nout0 : f32[T, 24]\n"
      "%0 = load in0[c + 24*r0 + 8*r1] : f32 tile\n%1 = load in1[0] : f32 row\n"
      "%2 = mul %0, %1 : f32 tile\nstore out0[c + 24*r0 + 8*r1] = %2\n");
  Program merged = merge_rows(p);
  EXPECT_TRUE(merged.rows.empty());
  EXPECT_EQ(merged.columns.text(), "24*T");
  verify_program(merged);
}

TEST(LoopBounds, ChecksWhatSymbolsDecide) {
  Program p = parse_program(base_texts()[4]);
  std::vector<std::string> order = {"S", "T"};
  Bounds b(p, order);
  const int64_t values[] = {3, 4}, in[] = {12}, small[] = {11}, out[] = {4};
  b.bind(values, in, out);
  EXPECT_EQ(b.row_count(), 4);
  EXPECT_EQ(b.columns(), 3);
  EXPECT_THROW(b.bind(values, small, out), Error);
  EXPECT_THROW(b.bind(values, small, out), Error);  // also the second time
  b.bind(values, in, out);
  const int64_t fewer[] = {3, 2};
  b.bind(fewer, in, out);
  EXPECT_EQ(b.row_count(), 2);
  EXPECT_THROW(Bounds(p, std::vector<std::string>{"T"}), Error);
}

// A bf16 result is rounded once, from the wide value: rounding to f32 first would give the middle
// of two bf16 numbers, and then the even one.
TEST(Loop, NarrowStoresRoundOnce) {
  Program p = parse_program(
      "loop 1\nrows\ncolumns 2\nin0 : f32[2]\nin1 : bf16[2]\nout0 : bf16[2]\n"
      "%0 = load in0[c] : f32 tile\n%1 = load in1[c] : f32 tile\n%2 = add %0, %1 : wide tile\n"
      "%3 = round_bf16 %2 : f32 tile\nstore out0[c] = %3\n");
  std::vector<float> x = {1.00390625f, 1.01171875f}, y = {0x1p-40f, -0x1p-40f}, out(2);
  std::vector<int64_t> dims = {2};
  TensorRef<float> in[] = {{dims, x.data()}, {dims, y.data()}}, to[] = {{dims, out.data()}};
  evaluate_program<float>(p, {}, in, to);
  EXPECT_EQ(out, (std::vector<float>{1.0078125f, 1.0078125f}));
}

}  // namespace
}  // namespace tokamak::loop
