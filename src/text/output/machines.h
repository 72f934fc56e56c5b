#pragma once
// The machines: one for each syntax in which models write calls.
#include <memory>
#include <string_view>

#include "text/output/call.h"

namespace tokamak {

// {"name": "f", "arguments": {...}}, or a list of them.
std::unique_ptr<CallMachine> make_json_calls();

// Some models write a namespace before the name and the number of the call after it.
std::string_view bare_call_name(std::string_view name);

// NAME separator {...}. With `known`, the name must be that of a tool, since nothing else marks a
// call.
struct NamedSyntax {
  std::string_view separator;
  bool known = false;
};
std::unique_ptr<CallMachine> make_named_call(const NamedSyntax& syntax, const ToolTypes& types);

// NAME, and a pair of marks around each parameter's name and value.
struct TaggedSyntax {
  std::string_view begin;             // before the name; may be empty
  std::string_view name_end;          // characters that end the name
  std::string_view key, key_end;      // around a parameter's name
  std::string_view value, value_end;  // around its value; `value` may be empty
  std::string_view end;               // after the last parameter
  bool lines = false;   // a value is surrounded by line breaks that are not part of it
  bool closes = false;  // `end` is also the closing mark
};
std::unique_ptr<CallMachine> make_tagged_call(const TaggedSyntax& syntax, const ToolTypes& types);

// [f(a=1, b="x"), g()], with Python's literals.
std::unique_ptr<CallMachine> make_python_calls(const ToolTypes& types);

// call:NAME{a:1,b:<quote>x<quote>}
std::unique_ptr<CallMachine> make_gemma_call(std::string_view quote);

}  // namespace tokamak
