#pragma once
// Texts and expressions of programs: Jinja, as in chat templates, over the program's variables.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/value.h"

namespace tokamak::program {

// Immutable; shared by the branches of a program and by its runs.
class Expression {
 public:
  // A text with {{ expressions }} in it. Throws Error(kInvalidArgument).
  static Expression text(std::string_view source);
  // An expression, "count > 3 and not done". Throws Error(kInvalidArgument).
  static Expression formula(std::string_view source);
  static Expression literal(Value value);

  // Variables that must exist when it is evaluated, and those that are used if they do.
  const std::vector<std::string>& names() const { return names_; }

  // Evaluates it over the members of `variables`, an object. Bounded in time and memory. Throws
  // Error(kInvalidArgument).
  Value evaluate(const Value& variables) const;

 private:
  struct Parsed;
  static Expression parse(std::string source, bool formula);

  std::shared_ptr<const Parsed> parsed_;  // nullptr: a literal
  Value literal_;
  std::vector<std::string> names_, optional_;
  bool formula_ = false;
};

bool is_true(const Value& value);  // as in Python: not null, false, 0 or empty

}  // namespace tokamak::program
