#pragma once
// Grammars in llama.cpp's notation (GBNF): rules "name ::= ...", the first of them named root.
#include <string_view>

#include "text/grammar/ir.h"

namespace tokamak::grammar {

// Throws Error(kInvalidArgument) with line and column. ("...", [...], ., rule names, groups, |, *,
// +, ?, {m,n}, # comments; escapes as in llama.cpp.) Tokens by id or text, <...>, are not
// available.
Ir parse_gbnf(std::string_view text);

}  // namespace tokamak::grammar
