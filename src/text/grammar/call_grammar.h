#pragma once
// The calls of a model as a grammar, in the formats that do not write them as one JSON value.
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/value.h"
#include "text/grammar/ir.h"

namespace tokamak::grammar {

// Where in an answer a call begins.
enum class CallStart : uint8_t {
  kMark,   // at a text
  kBrace,  // where the answer begins with a brace
  kName,   // where it begins with the name of a function and a line break or a brace
  kList,   // where it begins with a bracket, the name of a function and a parenthesis
};

struct CallSyntax {
  std::string_view format;  // ToolFormat::name
  CallStart start = CallStart::kMark;
  std::string_view mark = {};  // part of the grammar
};
const CallSyntax* find_call_syntax(std::string_view format);  // nullptr: none is known

// Calls of one of the tools, [{"name": "f", "parameters": {...}}, ...], from the mark to the end of
// the arguments, or of the list of calls. Where the parameters are null, arguments are free.
// `controls`: marks that are control tokens of the model.
// Every text of the grammar is a call for the machine of this format (text/output), whose arguments
// are valid. Throws as json_schema_grammar() does, also for names that the format cannot write.
Ir call_grammar(std::string_view format, const Value& tools,
                const std::vector<std::string>& controls, bool strict);
// The schema of arguments that are written as a JSON value: arguments are objects, whatever else
// the parameters may be. Null: any object.
Value object_schema(const Value& parameters);
// All marks that it may have.
std::span<const std::string_view> call_marks();

}  // namespace tokamak::grammar
