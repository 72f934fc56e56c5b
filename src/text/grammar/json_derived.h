#pragma once
// Keywords that say the same as others: conditions, dependencies and negations in terms of anyOf,
// required and properties.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/value.h"

namespace tokamak::grammar {

// What a `$ref` leads to; nullptr: nothing.
using FindSchema = std::function<const Value*(const std::string& ref)>;

// A schema that is valid for exactly the values that `schema` is not; nullopt: there is none that a
// grammar holds to.
std::optional<Value> negated_schema(const Value& schema, const FindSchema& find);

// A schema for some of the values that are not valid under `schema`, by those of its keywords that
// are easily negated; nullopt: there are none. `names`: members that a value may have.
std::optional<Value> excluding_schema(const Value& schema, const FindSchema& find,
                                      std::vector<std::string> names);

// Takes back that members may be added which the schema does not name.
void close_members(Value& derived);

// `not` with one of type, enum, const and pattern, which the compiler handles itself.
bool is_plain_negation(const Value& excluded);

struct Derived {
  Value schema;
  std::string silent;  // the JSON pointer of the part that says what does not hold
  bool of_not = false;
};

// What `if`, `not`, dependentRequired, dependentSchemas and dependencies of a schema say. Sets
// *refused to a keyword that cannot be written so.
std::vector<Derived> derived_schemas(const Value& schema, const FindSchema& find,
                                     const char** refused);

}  // namespace tokamak::grammar
