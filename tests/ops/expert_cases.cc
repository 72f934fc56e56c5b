// Ops with a stack of matrices: mixture of experts, and a matrix per head.
#include <fmt/format.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "base/value.h"
#include "ops/case_args.h"
#include "ops/cases.h"
#include "tensor/block_formats.h"
#include "tensor/dtype.h"

namespace tokamak::testing {
namespace {

constexpr int64_t kExperts = 12, kUsed = 3, kWidth = 40;

// Experts with one row, none and several; the last rows belong to none.
void add_grouped(std::vector<OpCase>& cases) {
  Arg offsets = constant({5}, {0, 1, 1, 7, 9});
  offsets.dtype = DType::kI32;
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

void add_heads(std::vector<OpCase>& cases) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0})
    for (int64_t t : {1, 6, 70})
      for (int64_t k : {32, 96}) {
        OpCase c;
        c.name = fmt::format("head_linear/{}/t={} k={}", dtype_name(dtype), t, k);
        c.op = "head_linear";
        c.in = {activation({3, k}), weight(dtype, {3, 21, k})};
        c.out = {3, 21};
        c.batch = tokens(t);
        cases.push_back(std::move(c));
      }
}

EarlierCall route_call(const Value& attrs, bool bias) {
  EarlierCall call{.op = "moe_route", .attrs = attrs, .in = {activation({kExperts})}};
  if (bias) call.in.push_back(weight(DType::kF32, {kExperts}));
  call.out = {{.dims = {rows(), kUsed}}, {.dtype = DType::kI32, .dims = {rows(), kUsed}}};
  return call;
}

EarlierCall dispatch_call() {
  return {.op = "moe_dispatch",
          .attrs = object({{"count", kExperts}}),
          .in = {activation({kWidth}), result(1)},
          .out = {{.dims = {rows(kUsed), kWidth}},
                  {.dtype = DType::kI32, .dims = {kExperts + 1}},
                  {.dtype = DType::kI32, .dims = {rows(kUsed)}}}};
}

// The call itself is the op under test.
OpCase last_call(EarlierCall call, std::vector<EarlierCall> earlier) {
  OpCase c;
  c.op = call.op;
  c.attrs = call.attrs;
  c.in = std::move(call.in);
  c.unlike = std::move(call.out);
  c.earlier = std::move(earlier);
  return c;
}

// Integers are compared as floats.
OpCase as_floats(size_t number, std::vector<EarlierCall> earlier) {
  OpCase c;
  c.op = "cast";
  c.attrs = object({{"dtype", "f32"}});
  c.in = {result(number)};
  c.unlike = {{.dims = earlier.back().out[number < 2 ? 1 : 2].dims}};
  c.out = {kUsed};
  c.bound = 0;
  c.earlier = std::move(earlier);
  return c;
}

void add_routed(std::vector<OpCase>& cases, const std::string& name, const Value& attrs, bool bias,
                int64_t t) {
  auto add = [&](const char* of, OpCase c, std::vector<int64_t> out) {
    c.name = fmt::format("{}/{} t={}", of, name, t);
    c.out = std::move(out);
    c.batch = tokens(t);
    cases.push_back(std::move(c));
  };
  const EarlierCall route = route_call(attrs, bias), dispatch = dispatch_call();
  add("moe_route", last_call(route, {}), {kUsed});
  add("moe_route experts", as_floats(1, {route}), {kUsed});
  add("moe_dispatch", last_call(dispatch, {route}), {kUsed * kWidth});
  add("moe_dispatch source", as_floats(4, {route, dispatch}), {kUsed});
  OpCase combine;
  combine.op = "moe_combine";
  combine.in = {result(2), result(4), result(3), result(0)};
  combine.earlier = {route, dispatch};
  add("moe_combine", std::move(combine), {kWidth});
}

}  // namespace

void add_experts(std::vector<OpCase>& cases) {
  add_grouped(cases);
  add_heads(cases);
  for (int64_t t : {1, 7, 300}) {
    add_routed(cases, "softmax", object({{"k", kUsed}}), false, t);
    add_routed(cases, "sigmoid of groups",
               object({{"k", kUsed},
                       {"gate", "sigmoid"},
                       {"normalize", 1},
                       {"scale", 2.5},
                       {"groups", 4},
                       {"used_groups", 2}}),
               true, t);
  }
}

}  // namespace tokamak::testing
