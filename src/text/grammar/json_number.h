#pragma once
// Bounds of JSON numbers as automata over their decimal text.
#include <optional>
#include <string>
#include <vector>

#include "base/value.h"
#include "text/grammar/char_fsm.h"

namespace tokamak::grammar {

// A decimal number: digits without leading or trailing zeros around the point.
struct Decimal {
  bool negative = false;
  std::string whole = "0", fraction;
  bool is_zero() const { return whole == "0" && fraction.empty(); }
};
// Throws Error(kInvalidArgument) for one with hundreds of digits.
Decimal decimal_of(const Value& number);
int compare(const Decimal& a, const Decimal& b);

struct NumberBounds {
  std::optional<Decimal> min, max;
  bool above_min = false, below_max = false;  // exclusive
  std::vector<Decimal> multiples_of;
  bool any() const { return !min && !max && multiples_of.empty(); }
};

// Numbers without an exponent. integers, fractions: which of them are wanted.
// Throws Error(kInvalidArgument) for divisors that need too large an automaton.
CharFsm number_fsm(const NumberBounds& bounds, bool integers, bool fractions);

}  // namespace tokamak::grammar
