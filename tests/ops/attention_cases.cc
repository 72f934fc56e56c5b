// Attention over a KV cache (causal, windows, chunks, trees of drafts, latent planes) and over the
// rows of a step.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "base/value.h"
#include "ops/case_args.h"
#include "ops/cases.h"
#include "tensor/dtype.h"

namespace tokamak::testing {
namespace {

OpCase attend_case(std::string name, int64_t heads, int64_t kv_heads, int64_t d, DType kv,
                   BatchSpec batch, std::initializer_list<Value::Member> extra = {}) {
  OpCase c;
  c.name = fmt::format("attend/{}/{}", name, dtype_name(kv));
  c.op = "attend";
  c.attrs = object(extra);
  c.attrs.set("scale", 1.0 / std::sqrt(static_cast<double>(d)));
  c.in = {activation({heads, d}), {.kind = Arg::Kind::kState}, {.kind = Arg::Kind::kView}};
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
    for (auto [name, batch] :
         {std::pair{"slopes", BatchSpec{.own = {1, 9, 1}, .older = {300, 5, 0}}},
          {"slopes and mask", tree_batch(4)}}) {
      OpCase c = attend_case(name, 4, 2, 32, kv, batch, {{"slopes", 1}});
      c.in.push_back(weight(DType::kF32, {4}));
      cases.push_back(std::move(c));
    }
    OpCase all = attend_case("sinks and slopes", 6, 2, 32, kv, {.own = {3, 1}, .older = {70, 9}},
                             {{"sinks", 1}, {"slopes", 1}, {"window", 40}});
    for (int i = 0; i < 2; ++i) all.in.push_back(weight(DType::kF32, {6}));
    cases.push_back(std::move(all));
  }
}

// Queries and softmax weights may be rounded to bf16: tiles of matrix units.
void add_rounded_attention(std::vector<OpCase>& cases) {
  for (DType kv : {DType::kF32, DType::kF16, DType::kBF16})
    for (auto [heads, kv_heads, d] :
         {std::array<int64_t, 3>{8, 2, 64}, {9, 3, 64}, {4, 4, 40}, {2, 1, 128}})
      for (const BatchSpec& batch : {BatchSpec{.own = {70}, .older = {0}},
                                     BatchSpec{.own = {16, 1, 40}, .older = {300, 7, 241}},
                                     BatchSpec{.own = {290, 5}, .older = {20, 500}}}) {
        OpCase c =
            attend_case(fmt::format("rounded {}/{}x{} {} rows", heads, kv_heads, d, batch.tokens()),
                        heads, kv_heads, d, kv, batch, {{"products", "bf16"}});
        c.bound = 3e-5;
        cases.push_back(std::move(c));
      }
  OpCase sinks = attend_case("rounded sinks", 4, 2, 32, DType::kF16, {.own = {33}, .older = {31}},
                             {{"products", "bf16"}, {"sinks", 1}});
  sinks.in.push_back(weight(DType::kF32, {4}));
  sinks.bound = 3e-5;
  cases.push_back(std::move(sinks));
}

void add_cached(std::vector<OpCase>& cases) {
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
  add_rounded_attention(cases);
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
      c.in.push_back(
          {.kind = Arg::Kind::kWeight, .dims = {3, 64, 32}, .dtype = matrix, .name = "k_up"});
      c.in.push_back(
          {.kind = Arg::Kind::kWeight, .dims = {3, 40, 64}, .dtype = matrix, .name = "v_up"});
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

void add_speed(std::vector<OpCase>& cases) {
  for (DType kv : {DType::kF16, DType::kI8}) {
    cases.push_back(attend_case("decode 1x4096", 32, 8, 64, kv, {.own = {1}, .older = {4095}}));
    cases.push_back(attend_case("prefill 512", 32, 8, 64, kv, {.own = {512}, .older = {0}}));
  }
  cases.push_back(
      rows_case("4x128", 12, 12, 32, {.own = {128, 128, 128, 128}, .older = {0, 0, 0, 0}}));
}

}  // namespace

void add_attention(std::vector<OpCase>& cases, bool perf) {
  if (perf) return add_speed(cases);
  add_cached(cases);
  add_encoders(cases);
}

}  // namespace tokamak::testing
