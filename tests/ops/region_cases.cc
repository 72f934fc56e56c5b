// Fused regions: loop programs (a residual with its norm, a gated activation, a row softmax),
// matrices with programs around them, rotations that end in a cache. `--perf` has loop programs and
// the ops that they fuse.
#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "ops/cases.h"

namespace tokamak::testing {
namespace {

// "@" stands for the number of columns, "#" for twice that.
std::string with_columns(std::string_view text, int64_t columns) {
  std::string out;
  for (char c : text) {
    if (c == '@') out += std::to_string(columns);
    if (c == '#') out += std::to_string(2 * columns);
    if (c != '@' && c != '#') out += c;
  }
  return out;
}

// The lines before the instructions of a program over the rows of a step.
std::string head(std::initializer_list<std::string_view> in,
                 std::initializer_list<std::string_view> out, std::string_view rows = "T") {
  std::string text = fmt::format("loop 1\nrows {}\ncolumns @\n", rows);
  int n = 0;
  for (std::string_view type : in) text += fmt::format("in{} : {}\n", n++, type);
  n = 0;
  for (std::string_view type : out) text += fmt::format("out{} : {}\n", n++, type);
  return text;
}

// rms_norm of value `x` by the weight in<weight>: values `n` to `n` + 8, the last is the result.
std::string norm_of(int x, int n, int weight) {
  return fmt::format(R"(%{1} = sum_squares %{0} : wide row
%{2} = columns : wide row
%{3} = div %{1}, %{2} : wide row
%{4} = const 1e-05 : wide row
%{5} = add %{3}, %{4} : wide row
%{6} = rsqrt %{5} : wide row
%{7} = mul %{0}, %{6} : wide tile
%{8} = load in{10}[c] : f32 tile
%{9} = mul %{7}, %{8} : f32 tile
)",
                     x, n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7, n + 8, weight);
}
// softmax of value `x`: values `n` to `n` + 6, the last is the result.
std::string softmax_of(int x, int n) {
  return fmt::format(R"(%{1} = max %{0} : wide row
%{2} = sub %{0}, %{1} : wide tile
%{3} = exp %{2} : wide tile
%{4} = sum %{3} : wide row
%{5} = const 1 : wide row
%{6} = div %{5}, %{4} : wide row
%{7} = mul %{3}, %{6} : f32 tile
)",
                     x, n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6);
}

constexpr std::string_view kRows = "f32[T, @]", kQuants = "q8a[T, @]", kRow = "f32[@]";
constexpr std::string_view kSum = R"(%0 = load in0[c + @*r0] : f32 tile
%1 = load in1[c + @*r0] : f32 tile
%2 = add %0, %1 : f32 tile
)";
constexpr std::string_view kFirst = "%0 = load in0[c + @*r0] : f32 tile\n";

const std::string kResidualNorm =
    fmt::format("{}{}{}store out0[c + @*r0] = %2\nstore out1[c + @*r0] = %11\n",
                head({kRows, kRows, kRow}, {kRows, kRows}), kSum, norm_of(2, 3, 2));

const std::string kSumNormQuantize =
    fmt::format("{}{}{}store out0[c + @*r0] = %11\nstore out1[c + @*r0] = %2\n",
                head({kRows, kRows, kRow}, {kQuants, kRows}), kSum, norm_of(2, 3, 2));

const std::string kScaledNorm = fmt::format(
    "{}{}{}%10 = load in2[c + @*r0] : f32 tile\n%11 = mul %9, %10 : f32 tile\n"
    "store out0[c + @*r0] = %11\n",
    head({kRows, kRow, kRows}, {kRows}), kFirst, norm_of(0, 1, 1));

const std::string kQuantizedNorm = fmt::format(
    "{}{}{}store out0[c + @*r0] = %9\n", head({kRows, kRow}, {kQuants}), kFirst, norm_of(0, 1, 1));

const std::string kHeadNorm =
    fmt::format("{}%0 = load in0[c + #*r0 + @*r1] : f32 tile\n{}store out0[c + #*r0 + @*r1] = %9\n",
                head({"f32[T, 2, @]", kRow}, {"f32[T, 2, @]"}, "T, 2"), norm_of(0, 1, 1));

const std::string kSoftmax = fmt::format("{}{}{}store out0[c + @*r0] = %7\n",
                                         head({kRows}, {kRows}), kFirst, softmax_of(0, 1));

const std::string kMaskedSoftmax =
    fmt::format(R"({}{}%1 = index [c] : i32 tile
%2 = load in1[r0] : i32 row
%3 = le %1, %2 : i32 tile
%4 = const -10000 : f32 row
%5 = select %3, %0, %4 : f32 tile
{}store out0[c + @*r0] = %12
)",
                head({kRows, "i32[T]"}, {kRows}), kFirst, softmax_of(5, 6));

const std::string kGated = fmt::format(R"({}{}%1 = silu %0 : f32 tile
%2 = load in1[c + @*r0] : f32 tile
%3 = mul %1, %2 : f32 tile
store out0[c + @*r0] = %3
)",
                                       head({kRows, kRows}, {kRows}), kFirst);

const std::string kResidual = fmt::format(R"({}{}%1 = const 0.5 : wide row
%2 = mul %0, %1 : f32 tile
%3 = load in1[c + @*r0] : f32 tile
%4 = add %2, %3 : f32 tile
%5 = load in2[c] : f32 tile
%6 = maximum %4, %5 : f32 tile
store out0[c + @*r0] = %6
)",
                                          head({kRows, kRows, kRow}, {kRows}), kFirst);

Type tensor(DType dtype, std::vector<int64_t> dims, bool rows) {
  TensorType t{dtype, {}};
  if (rows) t.dims.push_back({"t", SymExpr::symbol("T"), false});
  for (int64_t d : dims) t.dims.push_back({"x", d, false});
  return Type::of(t);
}

RegionPiece program_piece(std::string_view text, int64_t columns, std::vector<uint32_t> in,
                          std::vector<uint32_t> out) {
  RegionPiece piece;
  piece.program = std::make_shared<loop::Program>(loop::parse_program(with_columns(text, columns)));
  piece.in = std::move(in);
  piece.out = std::move(out);
  return piece;
}
RegionPiece anchor_piece(std::string op, std::vector<uint32_t> in, std::vector<uint32_t> out,
                         Value attrs = Value::object()) {
  RegionPiece piece;
  piece.op = std::move(op);
  piece.attrs = std::move(attrs);
  piece.in = std::move(in);
  piece.out = std::move(out);
  return piece;
}

OpCase region_case(std::string name, Region region, int64_t t, std::vector<Arg> in,
                   std::vector<int64_t> out) {
  check_region(region, in.size(), region.results.size());
  OpCase c;
  c.name = fmt::format("region/{} T={}", name, t);
  c.op = "region";
  c.region = std::make_shared<Region>(std::move(region));
  c.in = std::move(in);
  c.out = std::move(out);
  c.bound = 1e-10;
  c.batch = {.own = {static_cast<int32_t>(t)}, .older = {0}};
  return c;
}

// A region that is one program.
OpCase loop_case(std::string name, std::string_view text, int64_t t, int64_t d,
                 std::vector<Arg> in) {
  Region region;
  RegionPiece piece = program_piece(text, d, {}, {});
  for (const TensorType& type : piece.program->in) {
    piece.in.push_back(region.inputs++);
    region.values.push_back(Type::of(type));
  }
  for (const TensorType& type : piece.program->out) {
    piece.out.push_back(static_cast<uint32_t>(region.values.size()));
    region.values.push_back(Type::of(type));
  }
  region.results = piece.out;
  region.pieces = {std::move(piece)};
  return region_case(fmt::format("{} d={}", name, d), std::move(region), t, std::move(in), {d});
}

// rms_norm, quantize, two matrices, silu(gate) * up.
OpCase gated_case(int64_t t, int64_t k, int64_t n, DType dtype) {
  Region r;
  r.inputs = 4;
  r.values = {tensor(DType::kF32, {k}, true), tensor(DType::kF32, {k}, false),
              tensor(dtype, {n, k}, false),   tensor(dtype, {n, k}, false),
              tensor(DType::kQ8A, {k}, true), tensor(DType::kF32, {n}, true),
              tensor(DType::kF32, {n}, true), tensor(DType::kF32, {n}, true)};
  r.pieces = {program_piece(kQuantizedNorm, k, {0, 1}, {4}), anchor_piece("linear", {4, 2}, {5}),
              anchor_piece("linear", {4, 3}, {6}), program_piece(kGated, n, {5, 6}, {7})};
  r.results = {7};
  Arg matrix{.kind = Arg::Kind::kWeight, .dims = {n, k}, .dtype = dtype};
  OpCase c =
      region_case(fmt::format("norm+gate+up+silu*mul/{}", dtype_name(dtype)), std::move(r), t,
                  {{.dims = {k}}, {.kind = Arg::Kind::kWeight, .dims = {k}}, matrix, matrix}, {n});
  c.bound = 1e-4;  // a last bit of the norm can be a step of q8a
  return c;
}

// A matrix with bias, scaled, added to a residual and bounded column by column; floats throughout.
OpCase residual_case(int64_t t, int64_t k, int64_t n) {
  Region r;
  r.inputs = 5;
  r.values = {tensor(DType::kF32, {k}, true),  tensor(DType::kF32, {n, k}, false),
              tensor(DType::kF32, {n}, false), tensor(DType::kF32, {n}, true),
              tensor(DType::kF32, {n}, false), tensor(DType::kF32, {n}, true),
              tensor(DType::kF32, {n}, true)};
  r.pieces = {anchor_piece("linear", {0, 1, 2}, {5}), program_piece(kResidual, n, {5, 3, 4}, {6})};
  r.results = {5, 6};
  Arg row{.kind = Arg::Kind::kWeight, .dims = {n}};
  return region_case(
      "linear+residual", std::move(r), t,
      {{.dims = {k}}, {.kind = Arg::Kind::kWeight, .dims = {n, k}}, row, {.dims = {n}}, row}, {n});
}

// Queries are rotated, keys normalised, rotated and written with the values.
OpCase rope_case(int64_t t, int64_t d) {
  Region r;
  r.inputs = 10;
  Type index = tensor(DType::kI32, {}, true), q = tensor(DType::kF32, {4, d}, true),
       k = tensor(DType::kF32, {2, d}, true);
  r.values = {Type::state(""),
              Type::view(""),
              index,
              index,
              q,
              k,
              k,
              index,
              tensor(DType::kF32, {d}, false),
              tensor(DType::kF32, {d / 2}, false),
              k,
              k,
              q,
              Type::state("")};
  r.pieces = {program_piece(kHeadNorm, d, {5, 8}, {10}), anchor_piece("rope", {10, 7, 9}, {11}),
              anchor_piece("rope", {4, 7, 9}, {12}),
              anchor_piece("append", {0, 1, 2, 3, 11, 6}, {13})};
  r.results = {13, 12};
  auto input = [](const char* name) { return Arg{.kind = Arg::Kind::kInput, .name = name}; };
  OpCase c = region_case("norm+rope+append", std::move(r), t,
                         {{.kind = Arg::Kind::kState},
                          {.kind = Arg::Kind::kView},
                          input("seq"),
                          input("slot"),
                          {.dims = {4, d}},
                          {.dims = {2, d}},
                          {.dims = {2, d}},
                          input("pos"),
                          {.kind = Arg::Kind::kWeight, .dims = {d}},
                          {.kind = Arg::Kind::kWeight, .dims = {d / 2}}},
                         {4, d});
  c.planes = {{"k", DType::kF32, {2, d}}, {"v", DType::kF32, {2, d}}};
  return c;
}

}  // namespace

void add_regions(std::vector<OpCase>& cases, bool perf) {
  struct Shape {
    int64_t t, d;
  };
  auto add = [&](Shape s) {
    Arg x{.dims = {s.d}}, w{.kind = Arg::Kind::kWeight, .dims = {s.d}};
    cases.push_back(loop_case("add+rms_norm", kResidualNorm, s.t, s.d, {x, x, w}));
    cases.push_back(loop_case("rms_norm*x", kScaledNorm, s.t, s.d, {x, w, x}));
    cases.push_back(loop_case("silu*mul", kGated, s.t, s.d, {x, x}));
    cases.push_back(loop_case("softmax", kSoftmax, s.t, s.d, {x}));
    if (s.d % 32 == 0)
      cases.push_back(loop_case("add+rms_norm+quantize", kSumNormQuantize, s.t, s.d, {x, x, w}));
    Arg pos{.kind = Arg::Kind::kInput, .name = "pos"};
    if (!perf) cases.push_back(loop_case("masked softmax", kMaskedSoftmax, s.t, s.d, {x, pos}));
  };
  if (perf) {
    for (int64_t t : {1, 8, 128})
      for (int64_t d : {64, 576, 2048, 8192}) add({t, d});
    return;
  }
  for (Shape s : {Shape{1, 8}, {3, 77}, {9, 576}, {70, 33}, {2, 2061}, {3, 8256}}) add(s);
  for (int64_t t : {1, 3, 4, 70}) {
    cases.push_back(gated_case(t, 64, 96, DType::kQ4_0));
    cases.push_back(gated_case(t, 256, 40, DType::kQ6_K));
    cases.push_back(residual_case(t, 40, 56));
    cases.push_back(rope_case(t, 16));
  }
  cases.push_back(gated_case(300, 576, 1536, DType::kQ8_0));
}

}  // namespace tokamak::testing
