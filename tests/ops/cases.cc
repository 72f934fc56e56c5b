#include "ops/cases.h"

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "ops/op.h"
#include "tensor/block_formats.h"

namespace tokamak::testing {
namespace {

using Kind = Arg::Kind;

Arg activation(std::vector<int64_t> dims) {
  return {.kind = Kind::kActivation, .dims = std::move(dims)};
}
Arg quantized(int64_t k) { return {.kind = Kind::kQuantized, .dims = {k}}; }
Arg weight(DType dtype, std::vector<int64_t> dims) {
  return {.kind = Kind::kWeight, .dims = std::move(dims), .dtype = dtype};
}
Arg input(std::string name) { return {.kind = Kind::kInput, .name = std::move(name)}; }
Arg frequencies(int64_t half) {
  Arg arg{.kind = Kind::kConstant, .dims = {half}};
  for (int64_t j = 0; j < half; ++j)
    arg.values.push_back(std::pow(10000.0, -static_cast<double>(j) / static_cast<double>(half)));
  return arg;
}
BatchSpec tokens(int64_t t) { return {.own = {static_cast<int32_t>(t)}, .older = {0}}; }
Value object(std::initializer_list<Value::Member> members) { return Value(Value::Object(members)); }

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

// Experts with one row, none and several; the last rows belong to none.
void add_experts(std::vector<OpCase>& cases) {
  Arg offsets{.kind = Kind::kConstant, .dims = {5}, .dtype = DType::kI32};
  offsets.values = {0, 1, 1, 7, 9};
  for (DType dtype : weight_types())
    for (bool q8a : {false, true}) {
      int64_t k = is_block_type(dtype) ? 512 : q8a ? 96 : 77, n = q8a ? 21 : 37;
      OpCase c;
      c.name = fmt::format("grouped_linear/{}/{}", dtype_name(dtype), q8a ? "q8a" : "f32");
      c.op = "grouped_linear";
      c.in = {q8a ? quantized(k) : activation({k}), weight(dtype, {4, n, k}), offsets};
      c.out = {n};
      c.batch = tokens(11);
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
      c.in = {activation({77}), weight(dtype, {4, rank, 77}), weight(dtype, {4, 37, rank}),
              input("seq")};
      c.out = {37};
      c.batch = {.own = {1, 3, 2, 140}, .older = {0, 0, 0, 0}};
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
  cases.push_back(
      {.name = "quantize/identity",
       .op = "linear",
       .in = {quantized(64),
              {.kind = Kind::kWeight, .dims = {64, 64}, .dtype = DType::kQ8_0, .name = "identity"}},
       .out = {64},
       .bound = 1e-12,
       .batch = tokens(9)});
}

OpCase attend_case(std::string name, int64_t heads, int64_t kv_heads, int64_t d, DType kv,
                   BatchSpec batch, std::initializer_list<Value::Member> extra = {}) {
  OpCase c;
  c.name = fmt::format("attend/{}/{}", name, dtype_name(kv));
  c.op = "attend";
  c.attrs = object(extra);
  c.attrs.set("scale", 1.0 / std::sqrt(static_cast<double>(d)));
  c.in = {activation({heads, d}), {.kind = Kind::kState}, {.kind = Kind::kView}};
  for (const char* s : {"pos", "seq", "slot", "q_start", "kv_len"}) c.in.push_back(input(s));
  if (batch.mask_width > 0) c.in.push_back(input("mask"));
  c.out = {heads, d};
  c.batch = std::move(batch);
  c.planes = {{"k", kv, {kv_heads, d}}, {"v", kv, {kv_heads, d}}};
  c.bound = 1e-10;
  return c;
}

// Chunks that begin among older keys, among the step's own, and inside a tile of 64 slots.
void add_chunks(std::vector<OpCase>& cases, DType kv) {
  for (int64_t chunk : {7, 24, 64, 100}) {
    OpCase c = attend_case(fmt::format("{}", chunk), 4, 2, 32, kv,
                           {.own = {1, 30, 5, 70}, .older = {90, 0, 47, 200}, .window = chunk},
                           {{"chunk", chunk}});
    c.name.replace(0, 6, "attend_chunk");
    c.op = "attend_chunk";
    cases.push_back(c);
  }
}

// A tree of n drafts of the first sequence; those of the others see what precedes them.
BatchSpec tree_batch(int32_t n) {
  BatchSpec batch{.own = {n, 3}, .older = {150, 40}, .mask_width = n};
  batch.mask.assign(static_cast<size_t>((n + 3) * n), 0);
  for (int32_t i = 0; i < n + 3; ++i) {
    const int32_t own = i < n ? i : i - n;
    for (int32_t at = own; at >= 0; at = i < n ? (at - 1) / 2 - (at == 0 ? 1 : 0) : at - 1)
      batch.mask[static_cast<size_t>(i * n + at)] = 1;
  }
  return batch;
}

// Values of 16 bits, widths that models have: kernels for tensor cores take these.
void add_wide_attention(std::vector<OpCase>& cases) {
  auto add = [&](OpCase c, DType kv) {
    c.in[0].dtype = kv;
    c.bound = kv == DType::kF16 ? 1e-6 : 5e-5;
    cases.push_back(std::move(c));
  };
  for (DType kv : {DType::kF16, DType::kBF16}) {
    for (int64_t d : {64, 128})
      add(attend_case(fmt::format("wide tree d={}", d), 4, 2, d, kv, tree_batch(70)), kv);
    for (auto [name, batch] : {std::pair{"decode", BatchSpec{.own = {1, 1}, .older = {300, 5}}},
                               {"prefill", BatchSpec{.own = {40, 2}, .older = {0, 60}}},
                               {"tree", tree_batch(5)}}) {
      OpCase c = attend_case(fmt::format("wide latent {}", name), 20, 1, 576, kv, batch,
                             {{"key", Value::Array{"c", "kr"}}, {"value", "c"}});
      c.planes = {{"c", kv, {512}}, {"kr", kv, {64}}};
      c.out = {20, 512};
      add(std::move(c), kv);
    }
    OpCase sinks = attend_case("sinks", 4, 2, 32, kv, {.own = {1, 9}, .older = {200, 5}},
                               {{"sinks", 1}, {"window", 20}});
    sinks.in.push_back(weight(DType::kF32, {4}));
    cases.push_back(std::move(sinks));
    BatchSpec masked = tree_batch(4);
    OpCase both = attend_case("sinks and mask", 4, 2, 32, kv, masked, {{"sinks", 1}});
    both.in.push_back(weight(DType::kF32, {4}));
    cases.push_back(std::move(both));
  }
}

void add_attention(std::vector<OpCase>& cases) {
  for (DType kv : {DType::kF32, DType::kF16, DType::kI8}) {
    // A window of one returns exactly what append stored.
    cases.push_back(attend_case("append only", 2, 2, 32, kv, {.own = {5, 1}, .older = {3, 20}},
                                {{"window", 1}}));
    cases.push_back(attend_case("decode", 9, 3, 64, kv, {.own = {1, 1, 1}, .older = {0, 17, 200}}));
    cases.push_back(attend_case("prefill", 4, 4, 32, kv, {.own = {33}, .older = {0}}));
    cases.push_back(
        attend_case("mixed", 6, 2, 64, kv, {.own = {1, 20, 3, 1}, .older = {40, 0, 31, 100}}));
    cases.push_back(attend_case("one kv head", 8, 1, 128, kv, {.own = {2, 7}, .older = {65, 9}}));
    cases.push_back(attend_case("odd width", 2, 1, 20, kv, {.own = {3, 1}, .older = {10, 70}}));
    cases.push_back(attend_case("window", 4, 2, 32, kv,
                                {.own = {1, 30, 5}, .older = {90, 0, 47}, .window = 24},
                                {{"window", 24}}));
    add_chunks(cases, kv);
    cases.push_back(attend_case("softcap", 4, 2, 32, kv, {.own = {1, 9}, .older = {30, 5}},
                                {{"softcap", 2.5}}));
    cases.push_back(attend_case("long", 2, 1, 64, kv, {.own = {1, 3}, .older = {2100, 1023}}));
    BatchSpec tree{.own = {5, 1}, .older = {20, 3}, .mask_width = 5};
    tree.mask = {1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 0, 1, 0, 0,
                 1, 1, 0, 1, 0, 1, 0, 1, 0, 1, 1, 0, 0, 0, 0};
    cases.push_back(attend_case("tree", 4, 2, 32, kv, tree));
  }
  add_wide_attention(cases);
  OpCase latent = attend_case("latent", 4, 1, 48, DType::kF32, {.own = {4, 1}, .older = {0, 9}},
                              {{"key", Value::Array{"c", "kr"}}, {"value", "c"}});
  latent.planes = {{"c", DType::kF32, {32}}, {"kr", DType::kF32, {16}}};
  latent.out = {4, 32};
  cases.push_back(latent);
  for (auto [matrix, kv] : {std::pair(DType::kF32, DType::kF32),
                            {DType::kF16, DType::kF16},
                            {DType::kQ8_0, DType::kI8},
                            {DType::kF8G32, DType::kF32}}) {
    // Rows of several items, older tokens, widths that are not multiples of a panel.
    for (const BatchSpec& batch : {BatchSpec{.own = {4, 1}, .older = {0, 9}},
                                   BatchSpec{.own = {70, 1, 3}, .older = {30, 200, 0}}}) {
      OpCase c = attend_case(fmt::format("{}/{} rows", dtype_name(matrix), batch.tokens()), 3, 1,
                             32 + 20, kv, batch);
      c.name.replace(0, 6, "attend_latent");
      c.op = "attend_latent";
      c.in.push_back({.kind = Kind::kWeight, .dims = {3, 64, 32}, .dtype = matrix, .name = "k_up"});
      c.in.push_back({.kind = Kind::kWeight, .dims = {3, 40, 64}, .dtype = matrix, .name = "v_up"});
      c.planes = {{"c", kv, {64}}, {"kr", kv, {20}}};
      c.out = {3, 40};
      cases.push_back(c);
    }
  }
  // Keys in two planes, one of them with scales.
  OpCase parts = attend_case("two key planes", 4, 2, 48, DType::kI8,
                             {.own = {4, 1}, .older = {0, 9}}, {{"key", Value::Array{"k", "kr"}}});
  parts.planes = {
      {"k", DType::kI8, {2, 32}}, {"kr", DType::kF32, {2, 16}}, {"v", DType::kI8, {2, 48}}};
  cases.push_back(parts);
}

OpCase rows_case(std::string name, int64_t heads, int64_t kv_heads, int64_t d, BatchSpec batch,
                 std::initializer_list<Value::Member> extra = {}) {
  OpCase c;
  c.name = "attend_rows/" + std::move(name);
  c.op = "attend_rows";
  c.attrs = object(extra);
  c.attrs.set("scale", 1.0 / std::sqrt(static_cast<double>(d)));
  c.in = {activation({heads, d}), activation({kv_heads, d}), activation({kv_heads, d}),
          input("q_start")};
  c.out = {heads, d};
  c.batch = std::move(batch);
  c.bound = 1e-10;
  return c;
}

// Every sequence is whole: there are no older tokens.
void add_encoders(std::vector<OpCase>& cases) {
  auto lengths = [](std::vector<int32_t> own) {
    std::vector<int32_t> older(own.size(), 0);
    return BatchSpec{.own = std::move(own), .older = std::move(older)};
  };
  cases.push_back(rows_case("one row", 2, 2, 32, lengths({1})));
  cases.push_back(rows_case("ragged", 12, 12, 32, lengths({7, 16, 1, 33, 70})));
  cases.push_back(rows_case("odd heads", 3, 3, 20, lengths({17, 5})));
  cases.push_back(rows_case("shared kv heads", 6, 2, 64, lengths({19, 4})));
  cases.push_back(rows_case("long", 2, 1, 64, lengths({300, 2})));
  cases.push_back(rows_case("window", 4, 4, 32, lengths({90, 3, 40}), {{"window", 8}}));
  cases.push_back({.name = "mean_rows/ragged",
                   .op = "mean_rows",
                   .in = {activation({77}), input("seq"), input("q_start"), input("out_rows")},
                   .out = {77},
                   .batch = lengths({5, 1, 40})});
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
          if (arg.kind == Kind::kActivation) arg.dtype = in;
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
  add_experts(cases);
  add_lora(cases);
  add_elementwise(cases);
  add_rows(cases);
  add_attention(cases);
  add_encoders(cases);
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
  for (DType kv : {DType::kF16, DType::kI8}) {
    cases.push_back(attend_case("decode 1x4096", 32, 8, 64, kv, {.own = {1}, .older = {4095}}));
    cases.push_back(attend_case("prefill 512", 32, 8, 64, kv, {.own = {512}, .older = {0}}));
  }
  cases.push_back(
      rows_case("4x128", 12, 12, 32, {.own = {128, 128, 128, 128}, .older = {0, 0, 0, 0}}));
  add_regions(cases, true);
  for (OpCase& c : cases) c.perf = true;
  return cases;
}

}  // namespace tokamak::testing
