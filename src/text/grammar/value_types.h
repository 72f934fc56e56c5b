#pragma once
// JSON types as bits, and those that a schema allows without a full evaluation.
#include <cstdint>
#include <string_view>

#include "base/value.h"

namespace tokamak::grammar {

// Numbers with and without a fraction are two types.
enum TypeBit : uint32_t {
  kNull = 1,
  kBoolean = 2,
  kObject = 4,
  kArray = 8,
  kString = 16,
  kInteger = 32,
  kFraction = 64,
  kAllTypes = 127,
};
inline constexpr uint32_t kNumbers = kInteger | kFraction;

uint32_t type_bits(std::string_view name);  // "number": both kinds; 0: not a JSON type
uint32_t types_of(const Value& value);      // of a number: both kinds

// The types that a parameter of a function may have, as far as its schema says so with type, enum,
// const, anyOf, oneOf, allOf and references; all if it does not. The readers of calls and the
// grammars of calls use it, so that they agree on what an argument without quotes means.
uint32_t parameter_types(const Value& parameters, std::string_view name);

}  // namespace tokamak::grammar
