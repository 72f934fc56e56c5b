#pragma once
// From schemas to rules. Every conjunction of schemas that occurs becomes one rule.
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "text/grammar/json_conjunction.h"
#include "text/grammar/json_number.h"
#include "text/grammar/json_rules.h"
#include "text/grammar/json_schema.h"

namespace tokamak::grammar {

// Owner: json_schema_grammar(); one thread.
class SchemaCompiler {
 public:
  SchemaCompiler(const Value& schema, const ArgumentNotation& notation, bool strict)
      : schema_(schema),
        document_(schema),
        rules_(ir_, notation.space, notation.notation),
        syntax_(notation.syntax),
        strict_(strict) {}
  Ir compile();

 private:
  // Where a schema applies. kArguments: to the arguments of a call that are not written as an
  // object (ArgumentSyntax). kArgument and more: to one of them, where strings have no quotes; the
  // rest is its parameter_types().
  using Place = uint32_t;
  // kUniqueItem: to an item that must differ from the others of its array, see comparable().
  static constexpr Place kValue = 0, kArguments = 1, kUniqueItem = 2, kArgument = 256;
  ExprId reference(const Conjunction& all, Place place = kValue);  // to its rule
  ExprId body(const Conjunction& all);
  static std::pair<std::string, std::string> largest_part(const Conjunction& all);
  void set_place(RuleId rule, const Conjunction& all);
  ExprId alternatives(const Conjunction& all, size_t index, bool one_of);
  void make_exclusive(std::vector<Conjunction>& parts, const std::vector<const Value*>& schemas,
                      const SchemaRef& s);
  ExprId of_types(const Conjunction& all);

  // Matches nothing. The place and the reason are told if that leaves no value for the schema.
  ExprId never(const std::string& path, std::string_view keyword, std::string_view what) {
    return ir_.never(schema_message(path, keyword, what));
  }
  // The same at the first of the keywords that a schema has.
  ExprId never(const Conjunction& all, std::initializer_list<const char*> keywords,
               std::string_view what);
  ExprId no_type(const Conjunction& all);

  ExprId listed_values(const std::vector<const Value*>& values);
  // Ways to write null, true or false at this place.
  std::vector<std::string> words(const Value& word) const;
  // One of the arguments of a call, its name, and a string without quotes.
  Place argument_place(const std::string& name) const;
  ExprId argument(ExprId name, ExprId value);
  ExprId argument_name(const std::string& name);
  ExprId argument_text(const CharFsm& strings);
  ExprId listed_arguments(const Value& value);

  ExprId string(const Conjunction& all);
  // The texts of strings, and whether anything but the length restricts them.
  bool string_fsm(const Conjunction& all, CharFsm& out);
  const CharFsm* known_format(const SchemaRef& s);  // nullptr: it allows every string
  static CharFsm of_length(const CharFsm& fsm, uint32_t min, uint32_t max, const std::string& path);
  bool excluded_strings(const Value& schema, const std::string& path, CharFsm& out);
  std::pair<uint32_t, uint32_t> limits(const Conjunction& all, const char* least, const char* most);
  ExprId number(const Conjunction& all, uint32_t types);
  NumberBounds number_bounds(const Conjunction& all);
  ExprId array(const Conjunction& all);
  struct ItemCounts {
    uint32_t min = 0, max = kUnbounded;
    uint32_t listed = 0;  // prefix items
    // The rest of the items are alike.
    uint32_t last() const { return max == kUnbounded ? std::max({listed, min, 1u}) : max; }
  };
  struct Contained {
    const SchemaRef* schema = nullptr;  // that has `contains`
    uint32_t min = 0, max = kUnbounded;
  };
  Contained contained(const Conjunction& all);
  std::pair<ExprId, ExprId> counted_item(const Conjunction& one, const Contained& contained,
                                         Place place);
  ExprId item_list(const Conjunction& all, const ItemCounts& counts, const Contained& contained,
                   Place place);
  bool few_values(const Conjunction& one, std::vector<const Value*>& out);
  bool endless_strings(const Conjunction& one);
  ExprId unique_string(const Conjunction& one, uint32_t min);
  std::string unique_member(const Conjunction& all);
  bool comparable(const Conjunction& one);
  [[noreturn]] static void not_comparable(const std::string& path);
  ExprId unique_items(const Conjunction& all, const SchemaRef& s, const ItemCounts& counts);

  struct Member {
    std::string name;
    ExprId expr;
    bool required;
  };
  ExprId object(const Conjunction& all);
  // *impossible: set to an expression that matches nothing if a required one has no value.
  std::vector<Member> members(const Conjunction& all, std::optional<ExprId>* impossible);
  std::vector<std::string> member_names(const Conjunction& all);
  // Members that are not declared, or kNoExpr.
  ExprId other_member(const Conjunction& all, const std::vector<std::string>& names);
  // Their names.
  CharFsm other_names(const Conjunction& all, const std::vector<std::string>& names);
  ExprId members_graph(const std::vector<Member>& members, ExprId other, uint32_t min,
                       uint32_t max);
  bool name_allowed(const Conjunction& all, const std::string& name);

  const Value& schema_;
  Ir ir_;
  SchemaDocument document_;
  JsonRules rules_;
  const std::optional<ArgumentSyntax> syntax_;
  Place place_ = kValue;  // of the rule that is being built
  const bool strict_;
  using Key = std::vector<std::tuple<const Value*, int, const Value*>>;
  std::map<std::pair<Place, Key>, RuleId> known_;
  std::map<std::string, RuleId> strings_;  // by what restricts them
  struct Waiting {
    RuleId rule;
    Conjunction all;
    Place place;
  };
  std::vector<Waiting> waiting_;
  static constexpr size_t kMaxCombinations = 2000;  // of alternatives of anyOf and oneOf
  size_t combinations_ = 0, compared_ = 0;          // the latter by comparable()
};

}  // namespace tokamak::grammar
