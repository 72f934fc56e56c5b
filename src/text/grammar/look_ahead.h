#pragma once
// Look-ahead where the text begins: ^(?!a)b and ^(?=a)b. It is one more condition on the whole
// text.
#include <cstddef>
#include <string_view>
#include <vector>

#include "text/grammar/regex_parser.h"

namespace tokamak::grammar {

// Bytes begin..end of the pattern match where the text begins, or with `negative` do not.
struct LookAhead {
  size_t begin, end;
  bool negative;
};

// Each condition is a product of automata, which may grow with every one of them.
inline constexpr size_t kMaxLookAheads = 16;

// Finds the conditions at the beginning of the pattern, which is valid UTF-8, and returns where the
// rest of it begins; 0: there are none. Throws Error(kInvalidArgument) beyond kMaxLookAheads.
size_t without_look_ahead(std::string_view pattern, RegexUse use,
                          std::vector<LookAhead>& conditions);

// The error of a regular expression, at the character that follows `before` characters.
[[noreturn]] void regex_error(std::string_view pattern, size_t before, std::string_view what);

}  // namespace tokamak::grammar
