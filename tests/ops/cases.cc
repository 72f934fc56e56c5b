#include "ops/cases.h"

#include <fmt/format.h>

#include <set>

#include "ops/case_args.h"
#include "ops/op.h"
#include "tensor/block_formats.h"

namespace tokamak::testing {

// Types a model file may store weights in; only `quantize` creates q8a.
std::vector<DType> weight_types() {
  std::vector<DType> types = {DType::kF32, DType::kF16, DType::kBF16};
  for (int i = static_cast<int>(DType::kQ4_0); i < static_cast<int>(DType::kInt2G32); ++i)
    types.push_back(static_cast<DType>(i));
  // Groups: those with kernels of their own, and one of each other kind.
  for (DType type : {DType::kInt4G32, DType::kInt4G64, DType::kInt4G128, DType::kInt8G128,
                     DType::kInt2G64, DType::kInt3G32F, DType::kF8G128, DType::kNF4G64})
    types.push_back(type);
  return types;
}

namespace {

OpCase linear_case(DType dtype, bool q8a, int64_t m, int64_t n, int64_t k, bool bias) {
  OpCase c;
  c.name = fmt::format("linear/{}/{}/m={} n={} k={}{}", dtype_name(dtype), q8a ? "q8a" : "f32", m,
                       n, k, bias ? " bias" : "");
  c.op = "linear";
  c.in = {q8a ? quantized(k) : activation({k}), weight(dtype, {n, k})};
  if (dtype == DType::kBF16) c.bound = 1e-10;  // a backend may split activations into bf16 terms
  if (bias) c.in.push_back(weight(DType::kF32, {n}));
  c.out = {n};
  c.batch = tokens(m);
  return c;
}

void add_linear(std::vector<OpCase>& cases) {
  for (DType dtype : weight_types())
    for (bool q8a : {false, true})
      for (int64_t m : {1, 2, 3, 5, 16, 33, 64})
        cases.push_back(linear_case(dtype, q8a, m,
                                    m == 5    ? 1
                                    : m == 16 ? 64
                                              : 37,
                                    is_block_type(dtype) ? 512
                                    : q8a                ? 96
                                                         : 77,
                                    m == 3));
  // Whole vectors and tiles of k, and more rows than any tile has.
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16})
    for (int64_t m : {1, 8, 9, 40, 130})
      cases.push_back(linear_case(dtype, false, m, 70, 352, m == 9));
}

// A backend may round activations to int16, as the weights are.
void add_int16_linear(std::vector<OpCase>& cases) {
  for (int64_t m : {1, 2, 3, 5, 8, 15, 33, 67, 530})
    for (int64_t k : {128, 384, 768}) {
      int64_t n = m == 5 ? 1 : m == 15 ? 64 : m == 33 ? 150 : 37;
      cases.push_back(linear_case(DType::kInt16G128, false, m, n, k, m % 2 == 1));
      cases.back().bound = 1e-7;
    }
}

// Activations rounded to bf16. A backend may round the weights to bf16 too.
void add_rounded_linear(std::vector<OpCase>& cases) {
  for (DType dtype : weight_types())
    for (int64_t m : {1, 2, 5, 16, 17, 33, 67, 530}) {
      int64_t n = m == 5 ? 1 : m == 16 ? 64 : 213, k = is_block_type(dtype) ? 768 : 77;
      OpCase c = linear_case(dtype, false, m, n, k, m == 33);
      c.name = fmt::format("linear/{}/bf16/m={} n={} k={}", dtype_name(dtype), m, n, k);
      c.in[0] = rounded(k);
      c.bound = is_block_type(dtype) ? 1e-5 : 1e-10;
      cases.push_back(std::move(c));
    }
}

// Each sequence selects an adapter; the sizes fill no panel.
void add_lora(std::vector<OpCase>& cases) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16})
    for (int64_t rank : {3, 16, 40}) {
      OpCase c;
      c.name = fmt::format("lora/{}/r={}", dtype_name(dtype), rank);
      c.op = "lora";
      c.in = {activation({77}), weight(dtype, {4, rank, 77}), weight(dtype, {4, 70, rank}),
              input("seq")};
      c.out = {70};
      c.batch = {.own = {1, 3, 2, 300}, .older = {0, 0, 0, 0}};
      cases.push_back(std::move(c));
    }
}

void add_elementwise(std::vector<OpCase>& cases) {
  for (const char* op :
       {"neg", "abs", "exp", "square", "sin", "cos", "tanh", "erf", "sigmoid", "relu", "silu"})
    cases.push_back({.name = fmt::format("{}/5x101", op),
                     .op = op,
                     .in = {activation({101})},
                     .out = {101},
                     .bound = 1e-10,
                     .batch = tokens(5)});
  for (const char* kind : {"tanh", "none"})
    cases.push_back({.name = fmt::format("gelu/{}", kind),
                     .op = "gelu",
                     .attrs = object({{"approximate", kind}}),
                     .in = {activation({130})},
                     .out = {130},
                     .bound = 1e-10,
                     .batch = tokens(3)});
  cases.push_back({.name = "softcap/30",
                   .op = "softcap",
                   .attrs = object({{"cap", 30.0}}),
                   .in = {activation({67})},
                   .out = {67},
                   .bound = 1e-10,
                   .batch = tokens(4)});
  cases.push_back({.name = "scale",
                   .op = "scale",
                   .attrs = object({{"value", 0.37}}),
                   .in = {activation({67})},
                   .out = {67},
                   .batch = tokens(4)});
  for (const char* op : {"add", "sub", "mul", "div", "maximum", "minimum"}) {
    cases.push_back({.name = fmt::format("{}/same", op),
                     .op = op,
                     .in = {activation({101}), activation({101})},
                     .out = {101},
                     .batch = tokens(5)});
    cases.push_back({.name = fmt::format("{}/row", op),
                     .op = op,
                     .in = {activation({101}), weight(DType::kF32, {101})},
                     .out = {101},
                     .batch = tokens(5)});
    cases.push_back({.name = fmt::format("{}/column", op),
                     .op = op,
                     .in = {activation({33}), activation({1})},
                     .out = {33},
                     .batch = tokens(5)});
  }
  cases.push_back({.name = "mul/f16 row",
                   .op = "mul",
                   .in = {activation({101}), weight(DType::kF16, {101})},
                   .out = {101},
                   .batch = tokens(5)});
  cases.push_back({.name = "add/heads",
                   .op = "add",
                   .in = {activation({3, 16}), weight(DType::kF32, {3, 1})},
                   .out = {3, 16},
                   .batch = tokens(5)});
}

Arg identity(int64_t n) {
  Arg arg = weight(DType::kQ8_0, {n, n});
  arg.name = "identity";
  return arg;
}

void add_rows(std::vector<OpCase>& cases) {
  for (int64_t d : {8, 77, 576, 2048})
    for (int64_t t : {1, 9}) {
      std::string shape = fmt::format("{}x{}", t, d);
      cases.push_back({.name = "rms_norm/" + shape,
                       .op = "rms_norm",
                       .attrs = object({{"eps", 1e-5}}),
                       .in = {activation({d}), weight(DType::kF32, {d})},
                       .out = {d},
                       .batch = tokens(t)});
      cases.push_back({.name = "layer_norm/" + shape,
                       .op = "layer_norm",
                       .attrs = object({{"eps", 1e-5}}),
                       .in = {activation({d}), weight(DType::kF32, {d}), weight(DType::kF32, {d})},
                       .out = {d},
                       .batch = tokens(t)});
      cases.push_back({.name = "softmax/" + shape,
                       .op = "softmax",
                       .in = {activation({d})},
                       .out = {d},
                       .bound = 1e-10,
                       .batch = tokens(t)});
    }
  cases.push_back({.name = "rms_norm/heads",
                   .op = "rms_norm",
                   .attrs = object({{"eps", 1e-6}}),
                   .in = {activation({3, 64}), weight(DType::kF32, {64})},
                   .out = {3, 64},
                   .batch = tokens(4)});
  for (auto [d, half] : {std::pair<int64_t, int64_t>{64, 32}, {80, 20}, {6, 3}})
    cases.push_back({.name = fmt::format("rope/{} of {}", 2 * half, d),
                     .op = "rope",
                     .attrs = d == 80 ? object({{"scale", 1.19}}) : Value::object(),
                     .in = {activation({3, d}), input("pos"), frequencies(half)},
                     .out = {3, d},
                     .batch = {.own = {7, 2}, .older = {0, 300}}});
  for (DType dtype : weight_types())
    cases.push_back({.name = fmt::format("embed/{}", dtype_name(dtype)),
                     .op = "embed",
                     .in = {input("ids"), weight(dtype, {50, 512})},
                     .out = {512},
                     .bound = 0,
                     .batch = tokens(11)});
  cases.push_back({.name = "gather/rows",
                   .op = "gather",
                   .in = {activation({65}), input("out_rows")},
                   .out = {65},
                   .bound = 0,
                   .batch = tokens(6)});
  // A product with the identity matrix reads back the result of `quantize`.
  cases.push_back({.name = "quantize/identity",
                   .op = "linear",
                   .in = {quantized(64), identity(64)},
                   .out = {64},
                   .bound = 1e-12,
                   .batch = tokens(9)});
}

// The first case of every op with a storage type, with f16 and bf16 inputs and outputs.
void add_storage(std::vector<OpCase>& cases) {
  std::set<std::string> seen;
  std::vector<OpCase> made;
  for (const OpCase& c : cases) {
    const OpDef* op = find_op(c.op);
    if (!op || !op->storage || !seen.insert(c.op).second) continue;
    for (DType in : {DType::kF32, DType::kF16, DType::kBF16})
      for (DType out : {DType::kF32, DType::kF16, DType::kBF16}) {
        if (in == DType::kF32 && out == DType::kF32) continue;
        OpCase narrow = c;
        narrow.name += fmt::format(" {} to {}", dtype_name(in), dtype_name(out));
        for (Arg& arg : narrow.in)
          if (arg.kind == Arg::Kind::kActivation) arg.dtype = in;
        for (EarlierCall& call : narrow.earlier)
          for (Result& r : call.out)
            if (r.dtype == DType::kF32) r.dtype = in;
        narrow.stored = out;
        made.push_back(std::move(narrow));
      }
  }
  // A residual in f32 plus a layer's output in bf16.
  made.push_back({.name = "add/f32 and bf16",
                  .op = "add",
                  .in = {activation({101}), activation({101})},
                  .out = {101},
                  .batch = tokens(5)});
  made.back().in[1].dtype = DType::kBF16;
  cases.insert(cases.end(), made.begin(), made.end());
}

}  // namespace

std::vector<OpCase> correctness_cases() {
  std::vector<OpCase> cases;
  add_linear(cases);
  add_int16_linear(cases);
  add_rounded_linear(cases);
  add_experts(cases);
  add_lora(cases);
  add_elementwise(cases);
  add_rows(cases);
  add_attention(cases, false);
  add_primitives(cases);
  add_recurrent(cases);
  add_storage(cases);
  add_regions(cases, false);
  return cases;
}

std::vector<OpCase> odd_cases() {
  std::vector<OpCase> cases;
  for (DType dtype :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ8_0,
        DType::kQ4_K, DType::kQ6_K, DType::kQ5_0, DType::kQ5_1, DType::kQ5_K})
    for (int64_t m = 1; m <= 67; ++m) {
      bool blocks = is_block_type(dtype);
      int64_t n = 1 + m * 29 % 67;  // every size once
      int64_t k = blocks ? 256 * (1 + m % 2) : 68 - m;
      cases.push_back(linear_case(dtype, blocks, m, n, k, m % 3 == 0));
    }
  for (int64_t d = 1; d <= 67; ++d) {
    std::string shape = fmt::format("{}x{}", 1 + d % 3, d);
    auto add = [&](const char* op, std::vector<Arg> in, Value attrs = Value::object()) {
      cases.push_back({.name = fmt::format("{}/{}", op, shape),
                       .op = op,
                       .attrs = std::move(attrs),
                       .in = std::move(in),
                       .out = {d},
                       .bound = 1e-10,
                       .batch = tokens(1 + d % 3)});
    };
    add("silu", {activation({d})});
    add("mul", {activation({d}), activation({d})});
    add("softmax", {activation({d})});
    add("rms_norm", {activation({d}), weight(DType::kF32, {d})}, object({{"eps", 1e-5}}));
  }
  return cases;
}

std::vector<OpCase> perf_cases() {
  std::vector<OpCase> cases;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1,
                      DType::kQ4_K, DType::kQ6_K})
    for (bool q8a : {false, true})
      if (!q8a || is_block_type(dtype))
        for (int64_t m : {1, 8, 128}) {
          cases.push_back(linear_case(dtype, q8a, m, 8192, 2048, false));
        }
  int64_t t = 512, d = 2048;
  cases.push_back({.name = "rms_norm/512x2048",
                   .op = "rms_norm",
                   .attrs = object({{"eps", 1e-5}}),
                   .in = {activation({d}), weight(DType::kF32, {d})},
                   .out = {d},
                   .batch = tokens(t)});
  cases.push_back({.name = "add/512x2048",
                   .op = "add",
                   .in = {activation({d}), activation({d})},
                   .out = {d},
                   .batch = tokens(t)});
  cases.push_back({.name = "silu/512x8192",
                   .op = "silu",
                   .in = {activation({8192})},
                   .out = {8192},
                   .batch = tokens(t)});
  cases.push_back({.name = "mul/512x8192",
                   .op = "mul",
                   .in = {activation({8192}), activation({8192})},
                   .out = {8192},
                   .batch = tokens(t)});
  cases.push_back({.name = "rope/512x32x64",
                   .op = "rope",
                   .in = {activation({32, 64}), input("pos"), frequencies(32)},
                   .out = {32, 64},
                   .batch = tokens(t)});
  add_attention(cases, true);
  add_regions(cases, true);
  for (OpCase& c : cases) c.perf = true;
  return cases;
}

}  // namespace tokamak::testing
