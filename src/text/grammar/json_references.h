#pragma once
// References of a JSON schema within its document.
#include <optional>
#include <string>
#include <string_view>

#include "base/value.h"

namespace tokamak::grammar {

// Follows a JSON pointer ("/properties/a", percent-encoded or not); nullptr: it leads nowhere.
const Value* find_pointer(const Value& root, std::string_view pointer);

// The document with every reference that it resolves itself ($id, $anchor, relative URIs,
// $dynamicRef) written as "#" and a JSON pointer; nullopt: it has only such references. Others
// stay as they are. Throws Error(kInvalidArgument) if it is nested too deeply.
std::optional<Value> with_plain_references(const Value& document, bool old_draft);

}  // namespace tokamak::grammar
