#pragma once
// JSON Schema (drafts 7 and 2020-12) as a grammar. docs/structured.md lists the keywords.
#include <optional>
#include <string>
#include <vector>

#include "base/value.h"
#include "text/grammar/ir.h"
#include "text/grammar/json_rules.h"

namespace tokamak::grammar {

// Every text of the grammar is valid under the schema. What the grammar could not hold to is an
// Error(kInvalidArgument or kOutOfRange) that names the keyword and its place, never ignored.
// `space`: a regular expression for white space (json_rules.h).
// `strict`: a `format` that is not known is an error too. Otherwise it is an annotation, as JSON
// Schema says, and one of Ir::notes.
Ir json_schema_grammar(const Value& schema, const std::optional<std::string>& space = {},
                       bool strict = false);

// How a format writes the arguments of a call where they are not an object of its notation: each
// as a name and a value with texts around them.
struct ArgumentSyntax {
  using Texts = std::vector<std::string>;  // one of them
  Texts before_name, before_value, after_value;
  bool commas = false;  // between arguments
  // Strings have no quotes and end before this text. Notation::absent is the same. Empty: values
  // are those of the notation.
  std::string value_end = {};
  std::string names = {};   // a regular expression for the names that can be written
  bool texts_only = false;  // every argument is read as a string, whatever its parameter may be
};
struct ArgumentNotation {
  Notation notation;
  std::optional<ArgumentSyntax> syntax;  // nullopt: an object
  std::optional<std::string> space;
};
// The arguments of a function with these parameters, for which the same holds.
Ir arguments_grammar(const Value& parameters, const ArgumentNotation& notation, bool strict);

// Any object.
Ir json_object_grammar(const std::optional<std::string>& space = {});

}  // namespace tokamak::grammar
