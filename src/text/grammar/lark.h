#pragma once
// Grammars in the notation of the Python package Lark: rules "name: ...", terminals "NAME: ...".
#include <string_view>

#include "text/grammar/ir.h"

namespace tokamak::grammar {

// The text has rules, but none in llama.cpp's notation ("::=").
bool is_lark(std::string_view text);

// Throws Error(kInvalidArgument) with line and column. Strings, regular expressions, ranges,
// groups,
// [...], ? * + ~ {m,n}, %import of the terminals of `common`, %ignore, which may then follow every
// terminal, and llguidance's %json {...}, a JSON schema. The first rule is `start`, or the first
// one. There is no lexer: a terminal may be as long as its definition allows, and terminals have no
// priorities. Templates, %declare, %override, %extend and other additions of llguidance are not
// available.
Ir parse_lark(std::string_view text);

}  // namespace tokamak::grammar
