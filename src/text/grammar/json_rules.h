#pragma once
// The rules of JSON text that all schemas share, also of the notations that models use for the
// arguments of calls.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/value.h"
#include "text/grammar/char_fsm.h"
#include "text/grammar/ir.h"

namespace tokamak::grammar {

struct Notation {
  enum class Kind : uint8_t {
    kJson,
    kPython,  // True, None, and strings in either kind of quotes
    kGemma,   // {a:1,b:<quote>text<quote>}, names in alphabetical order
  };
  Kind kind = Kind::kJson;
  std::string quote = {};  // kGemma: as the grammar spells it (vocabulary.h: control tokens)
  // What no string may contain, because it would end the string (kGemma) or the argument.
  std::string absent = {};
};

// JSON as models write it: one line or indented. White space may follow brackets, commas and
// colons and precede closing brackets: nothing, a space, or a line break and at most 20 blanks.
// Without that bound, models fill an answer with blanks. `space`, a regular expression, replaces
// this. Owner: one front end; one thread.
class JsonRules {
 public:
  // Throws Error(kInvalidArgument) for a pattern that matches more than white space.
  explicit JsonRules(Ir& ir, const std::optional<std::string>& space = {}, Notation notation = {});
  const Notation& notation() const { return notation_; }

  ExprId space() { return ir_.ref(rule(space_, "white space", &JsonRules::space_body)); }
  ExprId string() { return ir_.ref(rule(string_, "a string", &JsonRules::string_body)); }
  ExprId string(uint32_t min, uint32_t max);  // by the number of characters; only where is_plain()
  // Strings are those of JSON, without exception.
  bool is_plain() const { return notation_.kind == Notation::Kind::kJson && !has_absent(); }
  CharFsm writable(CharFsm strings) const;  // without those that contain Notation::absent
  ExprId quoted(const CharFsm& strings);    // in the shortest form
  ExprId key(const std::string& name);      // of an object
  ExprId key(const CharFsm& names);
  // All ways to write a string, number, boolean or null; none if it has Notation::absent.
  std::vector<std::string> spellings(const Value& scalar) const;
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
  ExprId python_string(char quote);
  bool has_absent() const { return !notation_.absent.empty(); }

  static constexpr RuleId kNone = UINT32_MAX;
  Ir& ir_;
  const std::optional<std::string> space_regex_;
  const Notation notation_;
  RuleId space_ = kNone, string_ = kNone, number_ = kNone, integer_ = kNone, object_ = kNone,
         array_ = kNone, value_ = kNone, escape_ = kNone, block_ = kNone;
};

// The order of names in kGemma, as Jinja's dictsort has it.
bool precedes_in_dictsort(std::string_view a, std::string_view b);

}  // namespace tokamak::grammar
