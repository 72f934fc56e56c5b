#pragma once
// A rewrite rule as data: pattern => replacement if conditions. docs/rewrite_rules.md is the text
// form. The caller keeps the rules alive while a Rewriter uses them.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace tokamak {

enum class RuleClass : uint8_t {
  kExact,  // the same bits, whatever the values
  kReal,   // equal over the reals: bounded error on finite values
};

// An expression over attributes and extents: literals, names, calls (operators are calls), lists.
struct RuleExpr {
  enum class Kind : uint8_t { kLiteral, kName, kCall, kList, kSplat };
  Kind kind = Kind::kLiteral;
  Value value;       // kLiteral
  std::string name;  // kName, kSplat; kCall: "+", "==", "rank" ...
  std::vector<RuleExpr> args;
};

struct ShapeItem {  // one entry of [*s, n, 2, _]
  enum class Kind : uint8_t { kName, kSplat, kNumber, kAny };
  Kind kind = Kind::kName;
  std::string name;
  int64_t number = 0;
};

// What a variable of the pattern may stand for. A shape binds its names, or has to agree with them.
struct RuleVar {
  enum class Kind : uint8_t { kTensor, kScalar, kConst, kWeight, kState, kView };
  std::string name;
  Kind kind = Kind::kTensor;
  std::string dtype = "any";  // any, float (f32, f16, bf16), or an element type's name
  bool shaped = false;
  std::vector<ShapeItem> shape;     // of a state: one extent per plane
  std::vector<std::string> planes;  // kState: names, all of one axis; empty: any planes
  // Not checked when matching. "in": values for which the pattern does not overflow; "within"
  // (assumed): values that the rule is for.
  std::optional<std::pair<RuleExpr, RuleExpr>> range;
  bool assumed = false;
};

struct RuleTerm {
  enum class Kind : uint8_t { kVar, kNumber, kOp, kScalar, kFill, kRecipe };
  Kind kind = Kind::kVar;
  size_t var = 0;     // kVar
  double number = 0;  // kNumber: a constant with this value everywhere
  bool near = false;  // kNumber: within 1e-6 of it
  const OpDef* op = nullptr;
  uint32_t output = 0;
  std::vector<size_t> inputs;  // terms
  std::vector<std::pair<std::string, RuleExpr>> attrs;
  bool open = false;  // {..}: other attributes may have any value
};

struct RewriteRule {
  std::string name, doc, text;  // text: as written, from "rule" to the end of its last condition
  RuleClass cls = RuleClass::kExact;
  std::vector<RuleVar> vars;
  std::vector<RuleTerm> terms;
  size_t pattern = 0, replacement = 0;  // roots, in terms
  std::vector<RuleExpr> conditions;
  std::vector<std::string> shape_names;  // bound by shapes of variables
  bool approximate = false;              // has "~": constants that are compared within 1e-6

  const OpDef* root_op() const { return terms[pattern].op; }
  uint64_t hash() const;  // of what the rule says, white space and comments excluded
};

// Throws Error(kInvalidArgument, "rule NAME, line N: ...").
std::vector<RewriteRule> parse_rules(std::string_view text);

// What the variables and names of a pattern are bound to at one node of a function.
struct RuleMatch {
  std::vector<Ref> vars;                             // by variable; root last
  std::vector<std::pair<std::string, Value>> names;  // attributes and extents
  const Value* find(std::string_view name) const;
  bool bind(std::string_view name, const Value& value);  // false: bound to something else
};

// How many times a node's output is used; -1: not known yet.
using UseCount = std::function<int(Ref)>;

// --- rule_expr.cc: nullopt when it has no value (an unknown name, a value of the wrong kind).
std::optional<Value> evaluate_expr(const RuleExpr& expr, const RewriteRule& rule,
                                   const RuleMatch& match, const Function& fn,
                                   const UseCount& uses);
Value extent_value(const SymExpr& extent);  // an integer, or the expression's text
bool near_values(double a, double b);       // within 1e-6
// The value that a tensor of one repeated f32 value has; nullopt for everything else.
std::optional<double> splat_value(const Function& fn, Ref r);
// The d x d matrix C of which rotation(C) in a condition is `distance`.
std::vector<double> rotation_matrix(int64_t d, int64_t distance);
// Absent attributes count as these: 0 for reduce_sum's keep ...
std::optional<Value> default_attr(const OpDef& op, std::string_view key);
bool is_commutative(const OpDef& op);

// --- rule_match.cc: whether the rule's pattern is rooted at `root` and its conditions hold.
std::optional<RuleMatch> match_rule(const RewriteRule& rule, const Function& fn, Ref root,
                                    const UseCount& uses);
// Whether a variable may stand for `r`; binds the names of its shape.
bool accept_var(const RuleVar& var, const Function& fn, Ref r, RuleMatch& match);
// A cheap test of the ops of the root's inputs that rejects most nodes.
bool may_match(const RewriteRule& rule, const Function& fn, const Node& root);

// --- rule_build.cc: adds the replacement's nodes; nullopt when it does not fit (then some unused
// nodes may have been added). `simplify` is called on every node made below the root.
std::optional<Ref> build_replacement(const RewriteRule& rule, const RuleMatch& match,
                                     Module& module, Function& fn, const std::string& name,
                                     const std::function<Ref(Ref)>& simplify);
bool same_extents(const Type& a, const Type& b);  // names of axes do not matter

}  // namespace tokamak
