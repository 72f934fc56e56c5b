// Ops without a case elsewhere: functions of positive numbers, comparisons, reductions, products of
// plain tensors, and data movement.
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/value.h"
#include "ops/case_args.h"
#include "ops/cases.h"
#include "tensor/dtype.h"

namespace tokamak::testing {
namespace {

OpCase plain_case(std::string name, std::vector<Arg> in, std::vector<int64_t> out,
                  Value attrs = Value::object()) {
  OpCase c;
  c.op = name.substr(0, name.find('/'));
  c.name = std::move(name);
  c.attrs = std::move(attrs);
  c.in = std::move(in);
  c.out = std::move(out);
  c.bound = 1e-10;
  c.batch = tokens(6);
  return c;
}

Value texts(std::vector<std::string> list) {
  Value::Array array;
  for (std::string& s : list) array.emplace_back(std::move(s));
  return Value(std::move(array));
}

void add_functions(std::vector<OpCase>& cases) {
  for (const char* op : {"log", "sqrt", "rsqrt"}) {
    OpCase c = plain_case(fmt::format("{}/101", op), {result(0)}, {101});
    c.bound = 1e-9;  // the logarithm of a number near one keeps few digits of it
    c.earlier = {{.op = "square", .in = {activation({101})}, .out = {{.dims = {rows(), 101}}}}};
    cases.push_back(std::move(c));
  }
  for (const char* op : {"reduce_sum", "reduce_max", "reduce_mean"})
    cases.push_back(plain_case(fmt::format("{}/last", op), {activation({3, 70})}, {3},
                               object({{"axis", 2}, {"keep", 0}})));
  OpCase select =
      plain_case("select/compared", {result(0), activation({33}), activation({33})}, {33});
  select.earlier = {{.op = "compare",
                     .attrs = object({{"kind", "lt"}}),
                     .in = {activation({33}), weight(DType::kF32, {33})},
                     .out = {{.dtype = DType::kI32, .dims = {rows(), 33}}}}};
  cases.push_back(select);
  OpCase cast = plain_case("cast/i32", {result(0)}, {33}, object({{"dtype", "f32"}}));
  cast.earlier = {{.op = "cast",
                   .attrs = object({{"dtype", "i32"}}),
                   .in = {activation({33})},
                   .out = {{.dtype = DType::kI32, .dims = {rows(), 33}}}}};
  cases.push_back(cast);
  cases.push_back(
      plain_case("matmul/weight", {activation({4, 33}), weight(DType::kF32, {33, 7})}, {4, 7}));
  cases.push_back(plain_case("matmul/batch", {activation({4, 33}), activation({33, 7})}, {4, 7}));
  for (int64_t causal : {0, 1})
    cases.push_back(plain_case(fmt::format("sdpa/causal={}", causal),
                               {activation({5, 16}), activation({9, 16}), activation({9, 8})},
                               {5, 8}, object({{"scale", 0.25}, {"causal", causal}})));
  OpCase top = plain_case("top_k/3 of 40", {activation({40})}, {3}, object({{"k", 3}}));
  top.unlike = {{.dims = {rows(), 3}}, {.dtype = DType::kI32, .dims = {rows(), 3}}};
  cases.push_back(top);
}

void add_movement(std::vector<OpCase>& cases) {
  auto add = [&](OpCase c) {
    c.bound = 0;
    cases.push_back(std::move(c));
  };
  add(plain_case("reshape/heads", {activation({3, 8})}, {24},
                 object({{"dims", texts({"T", "24"})}, {"axes", texts({"t", "d"})}})));
  Value swap = Value(Value::Array{0, 2, 1});
  add(plain_case("transpose/inner", {activation({3, 8})}, {8, 3}, object({{"perm", swap}})));
  add(plain_case("broadcast/heads", {activation({1, 8})}, {3, 8},
                 object({{"dims", texts({"T", "3", "8"})}, {"axes", texts({"t", "h", "d"})}})));
  add(plain_case("slice/columns", {activation({40})}, {13},
                 object({{"axis", 1}, {"start", 5}, {"end", 18}})));
  add(plain_case("concat/columns", {activation({7}), activation({33}), activation({1})}, {41},
                 object({{"axis", 1}})));
}

}  // namespace

void add_primitives(std::vector<OpCase>& cases) {
  add_functions(cases);
  add_movement(cases);
}

}  // namespace tokamak::testing
