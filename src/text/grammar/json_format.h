#pragma once
// The values of JSON Schema's `format` as automata.
#include <string>
#include <string_view>

#include "text/grammar/char_fsm.h"

namespace tokamak::grammar {

// nullptr: not known. The automaton lives as long as the program. Formats are generated in a
// common form: every text is valid, but not every valid text is generated (no quoted local parts
// of addresses, no leap seconds, years of four digits).
const CharFsm* format_fsm(const std::string& name);
bool is_hint_format(std::string_view name);  // of OpenAPI: any string has it
// The texts of a contentEncoding. nullptr: not supported.
const CharFsm* encoding_fsm(const std::string& name);
const char* format_names();  // for messages

}  // namespace tokamak::grammar
