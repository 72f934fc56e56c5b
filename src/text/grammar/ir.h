#pragma once
// What every grammar front end produces: rules over bytes and characters.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/grammar/code_set.h"

namespace tokamak::grammar {

using ExprId = uint32_t;
using RuleId = uint32_t;
inline constexpr uint32_t kUnbounded = UINT32_MAX;
inline constexpr ExprId kNoExpr = UINT32_MAX;

// A graph of states whose edges are expressions, for what is clumsy as a tree: automata of regular
// expressions, objects with optional members. State 0 is the first.
struct Graph {
  struct Edge {
    uint32_t from, to;
    ExprId expr;  // kNoExpr: matches the empty text
  };
  uint32_t states = 1;
  std::vector<Edge> edges;
  std::vector<uint32_t> finals;
};

struct Bytes {
  std::string text;
};
struct OneOf {  // any of these texts
  std::vector<std::string> texts;
};
struct Class {  // one character
  CodeSet set;
};
struct Seq {
  std::vector<ExprId> parts;
};
struct Alt {
  std::vector<ExprId> parts;
};
struct Repeat {
  ExprId part;
  uint32_t min, max;
};
struct Ref {
  RuleId rule;
};
using Expr = std::variant<Bytes, OneOf, Class, Seq, Alt, Repeat, Ref, Graph>;

// Owner: the front end while it builds; then read only. Every function may throw
// Error(kOutOfRange) when the grammar becomes too large.
class Ir {
 public:
  ExprId add(Expr expr);
  ExprId empty() { return bytes(""); }
  ExprId bytes(std::string_view text) { return add(Bytes{std::string(text)}); }
  ExprId one_of(std::vector<std::string> texts) { return add(OneOf{std::move(texts)}); }
  ExprId chars(CodeSet set) { return add(Class{std::move(set)}); }
  ExprId seq(std::vector<ExprId> parts) { return add(Seq{std::move(parts)}); }
  ExprId alt(std::vector<ExprId> parts) { return add(Alt{std::move(parts)}); }
  ExprId repeat(ExprId part, uint32_t min, uint32_t max) { return add(Repeat{part, min, max}); }
  ExprId optional(ExprId part) { return repeat(part, 0, 1); }
  ExprId ref(RuleId rule) { return add(Ref{rule}); }
  // Matches nothing. `why` is what the author is told if the whole grammar matches nothing.
  ExprId never(std::string why);
  const std::string* why_never(ExprId id) const;  // nullptr: not of never()

  RuleId add_rule(std::string name);           // defined later; the first rule is the root
  RuleId rule_named(const std::string& name);  // adds it at its first use
  const RuleId* find_rule(const std::string& name) const;  // of rule_named(); may be null
  void define(RuleId rule, ExprId body) { rules_[rule].body = body; }
  void set_place(RuleId rule, std::string place) { rules_[rule].place = std::move(place); }
  void set_unique(RuleId rule) { rules_[rule].unique = true; }

  // Adds the rules of another grammar; returns its root.
  RuleId embed(const Ir& other);

  struct Rule {
    std::string name;  // for messages
    ExprId body = kNoExpr;
    std::string place = {};  // the keyword of a schema, for messages about its size
    bool unique = false;     // strings of an array that must differ (unique_items.h)
  };
  const std::vector<Rule>& rules() const { return rules_; }
  const Expr& expr(ExprId id) const { return exprs_[id]; }
  RuleId root = 0;
  std::vector<std::string> notes;  // what the author should know about a grammar that is accepted

 private:
  std::vector<Expr> exprs_;
  std::vector<Rule> rules_;
  std::map<std::string, RuleId> named_;
  std::map<ExprId, std::string> why_never_;
  size_t size_ = 0;
};

// The same texts as `body`, the definition of `rule`, where alternatives that begin with the rule
// itself (a: b | a "+" b) are repetitions: b ("+" b)*.
ExprId without_left_recursion(Ir& ir, RuleId rule, ExprId body);

// Bounds on what a grammar may cost. Reaching one is an error that names it.
inline constexpr size_t kMaxExprs = 400'000;      // expressions, and edges of graphs
inline constexpr size_t kMaxRules = 50'000;       // rules
inline constexpr size_t kMaxPositions = 300'000;  // states of the automata of all rules
inline constexpr uint32_t kMaxRepeat = 100'000;   // a count in {m,n}
inline constexpr int kMaxNesting = 200;           // of brackets in a grammar or pattern

}  // namespace tokamak::grammar
