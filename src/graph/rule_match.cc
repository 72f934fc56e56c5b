#include <algorithm>
#include <bit>

#include "base/error.h"
#include "graph/rule.h"

namespace tokamak {
namespace {

bool dtype_fits(const std::string& wanted, DType have) {
  if (wanted == "any") return true;
  if (wanted == "float") return have == DType::kF32 || have == DType::kF16 || have == DType::kBF16;
  return wanted == dtype_name(have);
}

bool bind_shape(const RuleVar& var, const TensorType& type, RuleMatch& match) {
  size_t splats = 0;
  for (const ShapeItem& item : var.shape) splats += item.kind == ShapeItem::Kind::kSplat;
  size_t fixed = var.shape.size() - splats, rank = type.dims.size();
  if (rank < fixed || (splats == 0 && rank != fixed)) return false;
  size_t axis = 0;
  for (const ShapeItem& item : var.shape) {
    if (item.kind == ShapeItem::Kind::kSplat) {
      Value part = Value::array();
      for (size_t n = rank - fixed; n > 0; --n) part.push(extent_value(type.dims[axis++].extent));
      if (!match.bind(item.name, part)) return false;
      continue;
    }
    const Dim& dim = type.dims[axis++];
    if (dim.bound) return false;  // such an extent is known on the device only
    if (item.kind == ShapeItem::Kind::kNumber && dim.extent != SymExpr(item.number)) return false;
    if (item.kind == ShapeItem::Kind::kName && !match.bind(item.name, extent_value(dim.extent)))
      return false;
  }
  return true;
}

// Literals are compared bit by bit: 0.0 is not -0.0.
bool same_literal(const Value& wanted, const Value& have) {
  if (wanted.is_number() && have.is_number())
    return std::bit_cast<uint64_t>(wanted.as_double()) == std::bit_cast<uint64_t>(have.as_double());
  return wanted == have;
}

constexpr int kMostUses = 16;  // that the verifier tries

bool names_call(const RuleExpr& e, std::string_view name) {
  return (e.kind == RuleExpr::Kind::kCall && e.name == name) ||
         std::any_of(e.args.begin(), e.args.end(),
                     [&](const RuleExpr& arg) { return names_call(arg, name); });
}

class Matcher {
 public:
  Matcher(const RewriteRule& rule, const Function& fn, const UseCount& uses)
      : rule_(rule), fn_(fn), uses_(uses) {}

  std::optional<RuleMatch> run(Ref root) {
    State s;
    s.match.vars.resize(rule_.vars.size() + 1);
    s.match.vars.back() = root;
    s.goals = {{rule_.pattern, root}};
    if (!solve(std::move(s))) return std::nullopt;
    return std::move(found_);
  }

 private:
  struct Goal {
    size_t term;
    Ref ref;
  };
  struct Deferred {  // attributes that are compared when all names are bound
    const RuleExpr* expr;
    Value have;
    int rank;  // >= 0: it is an axis of a tensor of this rank
  };
  struct State {
    std::vector<Goal> goals;
    std::vector<Deferred> deferred;
    RuleMatch match;
  };

  bool solve(State s) {
    while (!s.goals.empty()) {
      Goal goal = s.goals.back();
      s.goals.pop_back();
      const RuleTerm& term = rule_.terms[goal.term];
      if (term.kind == RuleTerm::Kind::kVar) {
        if (!variable(term, goal.ref, s)) return false;
      } else if (term.kind == RuleTerm::Kind::kNumber) {
        auto v = splat_value(fn_, goal.ref);
        if (!v) return false;
        if (term.near ? !near_values(*v, term.number)
                      : !same_literal(Value(static_cast<double>(static_cast<float>(term.number))),
                                      Value(*v)))
          return false;
      } else {
        const Node& node = fn_.node(goal.ref.node);
        if (node.op != term.op || goal.ref.output != term.output ||
            node.inputs.size() != term.inputs.size() || !attributes(term, node, s))
          return false;
        if (is_commutative(*node.op) && node.inputs[0] != node.inputs[1]) {
          State other = s;
          other.goals.push_back({term.inputs[0], node.inputs[1]});
          other.goals.push_back({term.inputs[1], node.inputs[0]});
          push(term, node, s);
          return solve(std::move(s)) || solve(std::move(other));
        }
        push(term, node, s);
      }
    }
    return finish(s);
  }

  // The first input is matched first: it usually decides.
  static void push(const RuleTerm& term, const Node& node, State& s) {
    for (size_t i = term.inputs.size(); i-- > 0;)
      s.goals.push_back({term.inputs[i], node.inputs[i]});
  }

  bool variable(const RuleTerm& term, Ref ref, State& s) const {
    Ref& bound = s.match.vars[term.var];
    if (bound.valid()) return bound == ref;
    if (!accept_var(rule_.vars[term.var], fn_, ref, s.match)) return false;
    bound = ref;
    return true;
  }

  bool attributes(const RuleTerm& term, const Node& node, State& s) const {
    for (const auto& [key, expr] : term.attrs) {
      std::optional<Value> have = default_attr(*node.op, key);
      if (const Value* given = node.attrs.find(key)) have = *given;
      if (!have) return false;
      int rank = -1;
      if (key == "axis" && have->is_int() && !node.inputs.empty()) {
        rank = fn_.tensor(node.inputs[0]).rank();
        if (have->as_int() < 0) have = Value(have->as_int() + rank);
      }
      if (!attribute(expr, *have, rank, s)) return false;
    }
    // A pattern that does not name the storage type does not match nodes that have one.
    auto names_storage = [](const auto& a) { return a.first == kStorageAttr; };
    if (node.op->storage && node.attrs.has(kStorageAttr) &&
        std::none_of(term.attrs.begin(), term.attrs.end(), names_storage))
      return false;
    if (term.open) return true;
    for (const auto& [key, value] : node.attrs.as_object()) {
      bool named = std::any_of(term.attrs.begin(), term.attrs.end(),
                               [&key = key](const auto& a) { return a.first == key; });
      if (named) continue;
      auto absent = default_attr(*node.op, key);
      if (!absent || !same_literal(*absent, value)) return false;
    }
    return true;
  }

  bool attribute(const RuleExpr& expr, const Value& have, int rank, State& s) const {
    const auto& shapes = rule_.shape_names;
    if (expr.kind == RuleExpr::Kind::kName &&
        std::find(shapes.begin(), shapes.end(), expr.name) == shapes.end())
      return s.match.bind(expr.name, have);
    s.deferred.push_back({&expr, have, rank});
    return expr.kind != RuleExpr::Kind::kLiteral || fits(s.deferred.back(), s.match);
  }

  bool fits(const Deferred& d, const RuleMatch& match) const {
    std::optional<Value> wanted = evaluate_expr(*d.expr, rule_, match, fn_, uses_);
    if (!wanted) return false;
    if (d.rank >= 0 && wanted->is_int() && wanted->as_int() < 0)
      wanted = Value(wanted->as_int() + d.rank);
    if (d.expr->kind == RuleExpr::Kind::kCall && d.expr->name == "~")
      return wanted->is_number() && d.have.is_number() &&
             near_values(wanted->as_double(), d.have.as_double());
    return same_literal(*wanted, d.have);
  }

  bool finish(State& s) {
    for (const Deferred& d : s.deferred)
      if (!fits(d, s.match)) return false;
    for (const RuleExpr& condition : rule_.conditions)
      if (!holds(condition, s.match, uses_)) return false;
    found_ = std::move(s.match);
    return true;
  }

  // The verifier does not know how often values are used: any number may satisfy the condition.
  bool holds(const RuleExpr& condition, const RuleMatch& match, const UseCount& uses) const {
    std::optional<Value> v = evaluate_expr(condition, rule_, match, fn_, uses);
    if (v && v->is_bool() && v->as_bool()) return true;
    if (uses || !names_call(condition, "uses")) return false;
    for (int n = 0; n <= kMostUses; ++n)
      if (holds(condition, match, [n](Ref) { return n; })) return true;
    return false;
  }

  const RewriteRule& rule_;
  const Function& fn_;
  const UseCount& uses_;
  std::optional<RuleMatch> found_;
};

// A state with planes of these names, in order, each of one axis.
bool bind_planes(const RuleVar& var, const Function& fn, const std::string& state,
                 RuleMatch& match) {
  if (var.planes.empty()) return true;
  const StateDecl* decl = fn.module().find_state(state);
  if (!decl || decl->planes.size() != var.planes.size()) return false;
  TensorType widths{DType::kF32, {}};
  for (size_t p = 0; p < var.planes.size(); ++p) {
    const PlaneDecl& plane = decl->planes[p];
    if (plane.name != var.planes[p] || plane.type.rank() != 1) return false;
    widths.dims.push_back(plane.type.dims[0]);
  }
  return bind_shape(var, widths, match);
}

}  // namespace

bool accept_var(const RuleVar& var, const Function& fn, Ref r, RuleMatch& match) {
  const Type& type = fn.type(r);
  std::string_view op = fn.node(r.node).op->name;
  switch (var.kind) {
    case RuleVar::Kind::kState:
      return type.kind == Type::Kind::kState && bind_planes(var, fn, type.name, match);
    case RuleVar::Kind::kView:
      return type.kind == Type::Kind::kView;
    case RuleVar::Kind::kScalar:
      return splat_value(fn, r).has_value() && type.tensor.elements() == SymExpr(1);
    case RuleVar::Kind::kConst:
      if (op != "constant") return false;
      break;
    case RuleVar::Kind::kWeight:
      if (op != "weight") return false;
      break;
    case RuleVar::Kind::kTensor:
      break;
  }
  if (type.kind != Type::Kind::kTensor || !dtype_fits(var.dtype, type.tensor.dtype)) return false;
  return !var.shaped || bind_shape(var, type.tensor, match);
}

bool may_match(const RewriteRule& rule, const Function& fn, const Node& root) {
  const RuleTerm& pattern = rule.terms[rule.pattern];
  if (root.op != pattern.op || root.inputs.size() != pattern.inputs.size()) return false;
  auto op_at = [&](size_t i) { return fn.node(root.inputs[i].node).op; };
  bool either = is_commutative(*root.op);
  for (size_t i = 0; i < pattern.inputs.size(); ++i) {
    const RuleTerm& child = rule.terms[pattern.inputs[i]];
    if (child.kind != RuleTerm::Kind::kOp) continue;
    if (op_at(i) != child.op && !(either && op_at(1 - i) == child.op)) return false;
  }
  return true;
}

std::optional<RuleMatch> match_rule(const RewriteRule& rule, const Function& fn, Ref root,
                                    const UseCount& uses) {
  if (!may_match(rule, fn, fn.node(root.node))) return std::nullopt;
  return Matcher(rule, fn, uses).run(root);
}

}  // namespace tokamak
