#pragma once
// JSON Schema (drafts 7 and 2020-12) as a grammar. docs/structured.md lists the keywords.
#include <optional>
#include <string>

#include "base/value.h"
#include "text/grammar/ir.h"

namespace tokamak::grammar {

// Every text of the grammar is valid under the schema. What the grammar could not hold to is an
// Error(kInvalidArgument or kOutOfRange) that names the keyword and its place, never ignored.
// `space`: a regular expression for white space (json_rules.h).
// `strict`: a `format` that is not known is an error too. Otherwise it is an annotation, as JSON
// Schema says, and one of Ir::notes.
Ir json_schema_grammar(const Value& schema, const std::optional<std::string>& space = {},
                       bool strict = false);
// Any object.
Ir json_object_grammar(const std::optional<std::string>& space = {});

}  // namespace tokamak::grammar
