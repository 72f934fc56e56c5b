#pragma once
// The rules of JSON text that all schemas share.
#include <optional>
#include <string>
#include <string_view>

#include "base/value.h"
#include "text/grammar/ir.h"

namespace tokamak::grammar {

// JSON as models write it: one line or indented. White space may follow brackets, commas and
// colons and precede closing brackets: nothing, a space, or a line break and at most 20 blanks.
// Without that bound, models fill an answer with blanks. `space`, a regular expression, replaces
// this. Owner: one front end; one thread.
class JsonRules {
 public:
  // Throws Error(kInvalidArgument) for a pattern that matches more than white space.
  explicit JsonRules(Ir& ir, const std::optional<std::string>& space = {});

  ExprId space() { return ir_.ref(rule(space_, "white space", &JsonRules::space_body)); }
  ExprId string() { return ir_.ref(rule(string_, "a string", &JsonRules::string_body)); }
  ExprId string(uint32_t min, uint32_t max);  // by the number of characters
  ExprId number() { return ir_.ref(rule(number_, "a number", &JsonRules::number_body)); }
  ExprId integer() { return ir_.ref(rule(integer_, "an integer", &JsonRules::integer_body)); }
  ExprId object() { return ir_.ref(rule(object_, "an object", &JsonRules::object_body)); }
  ExprId array() { return ir_.ref(rule(array_, "an array", &JsonRules::array_body)); }
  ExprId value() { return ir_.ref(rule(value_, "a value", &JsonRules::value_body)); }
  ExprId exactly(const Value& value);

  // "{" members "}"; `members` matches one or more of them. May also be empty: "{}".
  ExprId braces(std::string_view open, ExprId members, std::string_view close, bool maybe_empty);
  ExprId comma() { return ir_.seq({ir_.bytes(","), space()}); }
  ExprId member(ExprId quoted_key, ExprId value);

 private:
  RuleId rule(RuleId& known, const char* name, ExprId (JsonRules::*body)());
  ExprId space_body();
  ExprId character();
  ExprId characters(uint32_t count);
  ExprId string_body();
  ExprId number_body();
  ExprId integer_body();
  ExprId object_body();
  ExprId array_body();
  ExprId value_body();
  ExprId escape_body();
  ExprId block_body();

  static constexpr RuleId kNone = UINT32_MAX;
  Ir& ir_;
  const std::optional<std::string> space_regex_;
  RuleId space_ = kNone, string_ = kNone, number_ = kNone, integer_ = kNone, object_ = kNone,
         array_ = kNone, value_ = kNone, escape_ = kNone, block_ = kNone;
};

// A text as a JSON string with quotes.
std::string json_quoted(std::string_view text);

}  // namespace tokamak::grammar
