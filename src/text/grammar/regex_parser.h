#pragma once
// Regular expressions of JSON Schema (ECMAScript, Unicode mode) as automata.
#include <string_view>

#include "text/grammar/char_fsm.h"

namespace tokamak::grammar {

enum class RegexUse {
  kWhole,   // the expression matches the whole text
  kSearch,  // it matches somewhere in the text, as JSON Schema's `pattern`
};

struct RegexFlags {
  bool any_case = false;  // upper and lower case are the same
  bool dot_all = false;   // . also matches the end of a line
  bool inside = false;    // more text follows, which look-ahead would see: it is not available
};

// Characters, classes with Unicode properties, groups, alternatives, repetition, the anchors ^
// and $, the flags (?i) and (?s), and look-ahead where the text begins: ^(?!a)b, at most
// kMaxLookAheads times. Throws Error(kInvalidArgument) for syntax errors and for what is not
// regular or not available (other look-around, back-references, \b), with the offset.
CharFsm parse_regex(std::string_view pattern, RegexUse use, RegexFlags flags = {});

// The set with the other case of each character, where that is one character, too.
CodeSet any_case(const CodeSet& set);

}  // namespace tokamak::grammar
