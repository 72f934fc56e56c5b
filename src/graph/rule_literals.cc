#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/rule_verify.h"

namespace tokamak {
namespace {

constexpr double kMaxNamed = 70000;    // literals that may be extents
constexpr double kLeastSquare = 1000;  // literals of conditions whose root may be an extent

RuleExpr call_of(std::string name, std::vector<RuleExpr> args) {
  RuleExpr e;
  e.kind = RuleExpr::Kind::kCall;
  e.name = std::move(name);
  e.args = std::move(args);
  return e;
}

void find_ways(const RuleExpr& e, bool negated, std::vector<RuleExpr>& out) {
  auto is = [](const RuleExpr& x, std::string_view name) {
    return x.kind == RuleExpr::Kind::kCall && x.name == name;
  };
  auto zero = [](const RuleExpr& x) {
    return x.kind == RuleExpr::Kind::kLiteral && x.value.is_number() && x.value.as_double() == 0;
  };
  if (is(e, "not")) return find_ways(e.args.at(0), !negated, out);
  if (is(e, negated ? "and" : "or")) {
    for (const RuleExpr& arg : e.args) find_ways(arg, negated, out);
    return;
  }
  if (is(e, negated ? "!=" : "==") && e.args.size() == 2)
    for (size_t side : {size_t{0}, size_t{1}})
      if (is(e.args[side], "*") && zero(e.args[1 - side])) {
        for (const RuleExpr& factor : e.args[side].args)
          find_ways(call_of("==", {factor, e.args[1 - side]}), false, out);
        return;
      }
  out.push_back(negated ? call_of("not", {e}) : e);
}

// The field does not round: 1/3 as a double is another number there than 1 / 3.
bool is_short(const Value& v) {
  int exponent = 0;
  double mantissa = v.is_double() ? std::ldexp(std::frexp(v.as_double(), &exponent), 32) : 0;
  return mantissa == std::floor(mantissa);
}

// The value of an expression without names: 300 * 300.
std::optional<double> computed(const RuleExpr& e) {
  static const RewriteRule kRule;
  static Module module{"empty"};
  static const Function& fn = module.add_function("f");
  auto v = evaluate_expr(e, kRule, {}, fn, nullptr);
  return v && v->is_number() ? std::optional(v->as_double()) : std::nullopt;
}

}  // namespace

bool has_short_numbers(const Module& module, const Function& fn) {
  for (const ConstantDecl& c : module.constants)
    if (!std::all_of(c.values.begin(), c.values.end(), [](double v) { return is_short(Value(v)); }))
      return false;
  for (const Node& node : fn.nodes())
    for (const auto& [key, value] : node.attrs.as_object())
      if (!is_short(value)) return false;
  return true;
}

std::vector<std::string> open_extents(const RewriteRule& rule) {
  std::vector<std::string> names = rule.shape_names;
  for (const RuleTerm& term : rule.terms)
    for (const auto& [key, expr] : term.attrs)
      if (key == "n" && expr.kind == RuleExpr::Kind::kName &&
          std::find(names.begin(), names.end(), expr.name) == names.end())
        names.push_back(expr.name);
  return names;
}

std::vector<RuleExpr> ways_to_hold(const RuleExpr& condition) {
  std::vector<RuleExpr> ways;
  find_ways(condition, false, ways);
  return ways;
}

RuleLiterals rule_literals(const RewriteRule& rule) {
  std::set<double> found, all, stated;
  auto walk = [](auto&& self, const RuleExpr& e, std::set<double>& to) -> void {
    if (auto number = computed(e)) to.insert(*number);
    for (const RuleExpr& arg : e.args) self(self, arg, to);
  };
  for (const RuleExpr& c : rule.conditions) walk(walk, c, stated);
  found = stated;
  for (const RuleTerm& t : rule.terms) {
    if (t.kind == RuleTerm::Kind::kNumber && std::isfinite(t.number)) found.insert(t.number);
    for (const auto& [key, expr] : t.attrs)
      walk(walk, expr,
           key == "value" || key == "scale" || key == "eps" || key == "cap" ? found : all);
  }
  all.insert(found.begin(), found.end());
  std::set<int64_t> extents;
  auto add_extents = [&](double n) {
    if (n == std::floor(n) && n >= 1 && n <= kMaxNamed)
      for (int by : {-1, 0, 1, 2, 40}) extents.insert(static_cast<int64_t>(n) + by);
  };
  for (double a : all) add_extents(a);
  for (double a : stated)
    if (a >= kLeastSquare) add_extents(std::floor(std::sqrt(a)));
  extents.erase(0);
  std::set<double> out, solutions;
  for (double a : stated) {
    for (double v : {a, std::sqrt(std::abs(a)), -std::sqrt(std::abs(a))}) solutions.insert(v);
    for (double b : stated)
      for (double v : {a + b, a - b, a * b, a / b, -a - b})
        if (std::isfinite(v)) solutions.insert(v);
  }
  for (double a : found) {
    for (double by : {1.0, 1 + 1e-9, 1 - 1e-9, 1.03, 0.97, -1.0}) out.insert(a * by);
    if (a != 0) out.insert(1 / a);
    for (double b : found)
      if (a != b)
        for (double part : {0.5, -0.5, 0.9, -0.9}) out.insert(a + part * b);
  }
  bool rounds = false;
  for (const RuleTerm& t : rule.terms)
    for (const auto& [key, expr] : t.attrs)
      rounds |= expr.value == Value("f16") || expr.value == Value("bf16");
  return {{all.begin(), all.end()},
          {out.begin(), out.end()},
          {solutions.begin(), solutions.end()},
          {extents.begin(), extents.end()},
          rounds};
}

}  // namespace tokamak
