#include <algorithm>
#include <cmath>
#include <set>

#include "graph/rule_verify.h"

namespace tokamak {
namespace {

constexpr double kMaxNamed = 70000;    // literals that may be extents
constexpr double kLeastSquare = 1000;  // literals of conditions whose root may be an extent

}  // namespace

RuleLiterals rule_literals(const RewriteRule& rule) {
  std::set<double> found, all, stated;
  auto walk = [](auto&& self, const RuleExpr& e, std::set<double>& to) -> void {
    if (e.kind == RuleExpr::Kind::kLiteral && e.value.is_number()) to.insert(e.value.as_double());
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
  return {{all.begin(), all.end()},
          {out.begin(), out.end()},
          {solutions.begin(), solutions.end()},
          {extents.begin(), extents.end()}};
}

}  // namespace tokamak
