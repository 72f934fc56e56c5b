#pragma once
// Inputs, batches and attributes of op cases, in short form.
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "base/value.h"
#include "ops/cases.h"
#include "tensor/dtype.h"
#include "tensor/sym.h"

namespace tokamak::testing {

inline Arg activation(std::vector<int64_t> dims) {
  return {.kind = Arg::Kind::kActivation, .dims = std::move(dims)};
}
inline Arg quantized(int64_t k) { return {.kind = Arg::Kind::kQuantized, .dims = {k}}; }
// Rounded by the op `quantize` to one bf16 number each.
inline Arg rounded(int64_t k) {
  return {.kind = Arg::Kind::kQuantized, .dims = {k}, .dtype = DType::kBF16};
}
inline Arg weight(DType dtype, std::vector<int64_t> dims) {
  return {.kind = Arg::Kind::kWeight, .dims = std::move(dims), .dtype = dtype};
}
inline Arg input(std::string name) { return {.kind = Arg::Kind::kInput, .name = std::move(name)}; }
inline Arg constant(std::vector<int64_t> dims, std::vector<double> values) {
  return {.kind = Arg::Kind::kConstant, .dims = std::move(dims), .values = std::move(values)};
}
inline Arg result(size_t number) { return {.kind = Arg::Kind::kResult, .result = number}; }
inline Arg frequencies(int64_t half) {
  Arg arg{.kind = Arg::Kind::kConstant, .dims = {half}};
  for (int64_t j = 0; j < half; ++j)
    arg.values.push_back(std::pow(10000.0, -static_cast<double>(j) / static_cast<double>(half)));
  return arg;
}
inline SymExpr rows(int64_t per_token = 1) { return SymExpr::symbol("T") * per_token; }
inline BatchSpec tokens(int64_t t) { return {.own = {static_cast<int32_t>(t)}, .older = {0}}; }
inline Value object(std::initializer_list<Value::Member> members) {
  return Value(Value::Object(members));
}

}  // namespace tokamak::testing
