#pragma once
// Regular expressions of JSON Schema (ECMAScript, Unicode mode) as automata.
#include <string_view>

#include "text/grammar/char_fsm.h"

namespace tokamak::grammar {

enum class RegexUse {
  kWhole,   // the expression matches the whole text
  kSearch,  // it matches somewhere in the text, as JSON Schema's `pattern`
};

// Characters, classes with Unicode properties, groups, alternatives, repetition and the anchors ^
// and $. Throws Error(kInvalidArgument) for syntax errors and for what is not regular or not
// available (look-around, back-references, \b), with the offset.
CharFsm parse_regex(std::string_view pattern, RegexUse use);

}  // namespace tokamak::grammar
