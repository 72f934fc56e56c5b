// Fused regions as Loop IR programs, as the compiler lowers them: a residual with its norm, a gated
// activation and a row softmax. `--perf` also runs the same ops one by one.
#include <fmt/format.h>

#include "ops/cases.h"

namespace tokamak::testing {
namespace {

// "@" stands for the number of columns.
std::string with_columns(std::string_view text, int64_t columns) {
  std::string out;
  for (char c : text) out += c == '@' ? std::to_string(columns) : std::string(1, c);
  return out;
}

constexpr std::string_view kResidualNorm = R"(loop 1
rows T
columns @
in0 : f32[T, @]
in1 : f32[T, @]
in2 : f32[@]
out0 : f32[T, @]
out1 : f32[T, @]
%0 = load in0[c + @*r0] : f32 tile
%1 = load in1[c + @*r0] : f32 tile
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
store out0[c + @*r0] = %2
store out1[c + @*r0] = %11
)";

constexpr std::string_view kGated = R"(loop 1
rows T
columns @
in0 : f32[T, @]
in1 : f32[T, @]
out0 : f32[T, @]
%0 = load in0[c + @*r0] : f32 tile
%1 = silu %0 : f32 tile
%2 = load in1[c + @*r0] : f32 tile
%3 = mul %1, %2 : f32 tile
store out0[c + @*r0] = %3
)";

constexpr std::string_view kMaskedSoftmax = R"(loop 1
rows T
columns @
in0 : f32[T, @]
in1 : i32[T]
out0 : f32[T, @]
%0 = load in0[c + @*r0] : f32 tile
%1 = index [c] : i32 tile
%2 = load in1[r0] : i32 row
%3 = le %1, %2 : i32 tile
%4 = const -10000 : f32 row
%5 = select %3, %0, %4 : f32 tile
%6 = max %5 : wide row
%7 = sub %5, %6 : wide tile
%8 = exp %7 : wide tile
%9 = sum %8 : wide row
%10 = const 1 : wide row
%11 = div %10, %9 : wide row
%12 = mul %8, %11 : f32 tile
store out0[c + @*r0] = %12
)";

OpCase region(std::string name, std::string_view text, int64_t t, int64_t d, std::vector<Arg> in) {
  OpCase c;
  c.name = fmt::format("region/{} {}x{}", name, t, d);
  c.op = "region";
  c.attrs = Value(Value::Object{{"kind", "loop"}, {"program", with_columns(text, d)}});
  c.in = std::move(in);
  c.out = {d};
  c.bound = 1e-10;
  c.batch = {.own = {static_cast<int32_t>(t)}, .older = {0}};
  return c;
}

}  // namespace

void add_regions(std::vector<OpCase>& cases, bool perf) {
  struct Shape {
    int64_t t, d;
  };
  auto add = [&](Shape norm, Shape gated) {
    Arg x{.kind = Arg::Kind::kActivation, .dims = {norm.d}};
    Arg w{.kind = Arg::Kind::kWeight, .dims = {norm.d}};
    cases.push_back(region("add+rms_norm", kResidualNorm, norm.t, norm.d, {x, x, w}));
    cases.back().outputs = 2;
    if (!perf) {
      Arg pos{.kind = Arg::Kind::kInput, .name = "pos"};
      cases.push_back(region("masked softmax", kMaskedSoftmax, norm.t, norm.d, {x, pos}));
    }
    Arg gate{.kind = Arg::Kind::kActivation, .dims = {gated.d}};
    cases.push_back(region("silu*up", kGated, gated.t, gated.d, {gate, gate}));
  };
  if (perf) {
    add({512, 2048}, {512, 8192});
    add({1, 2048}, {1, 8192});
    return;
  }
  for (Shape s : {Shape{1, 8}, {3, 77}, {9, 576}, {70, 33}, {2, 2061}}) add(s, s);
}

}  // namespace tokamak::testing
