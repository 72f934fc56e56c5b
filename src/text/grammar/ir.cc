#include "text/grammar/ir.h"

#include "base/error.h"

namespace tokamak::grammar {

ExprId Ir::add(Expr expr) {
  size_ += 1;
  if (const auto* graph = std::get_if<Graph>(&expr)) size_ += graph->edges.size() + graph->states;
  if (const auto* seq = std::get_if<Seq>(&expr)) size_ += seq->parts.size();
  if (const auto* alt = std::get_if<Alt>(&expr)) size_ += alt->parts.size();
  if (size_ > kMaxExprs)
    fail(ErrorCode::kOutOfRange, "the grammar is too large: more than {} expressions", kMaxExprs);
  if (const auto* repeat = std::get_if<Repeat>(&expr)) {
    uint32_t most = repeat->max == kUnbounded ? repeat->min : repeat->max;
    if (most > kMaxRepeat)
      fail(ErrorCode::kOutOfRange, "the grammar repeats a part {} times; at most {} are possible",
           most, kMaxRepeat);
  }
  exprs_.push_back(std::move(expr));
  return static_cast<ExprId>(exprs_.size() - 1);
}

ExprId Ir::never(std::string why) {
  ExprId id = alt({});
  why_never_.emplace(id, std::move(why));
  return id;
}

const std::string* Ir::why_never(ExprId id) const {
  auto it = why_never_.find(id);
  return it == why_never_.end() ? nullptr : &it->second;
}

RuleId Ir::add_rule(std::string name) {
  if (rules_.size() >= kMaxRules)
    fail(ErrorCode::kOutOfRange, "the grammar is too large: more than {} rules", kMaxRules);
  rules_.push_back({.name = std::move(name)});
  return static_cast<RuleId>(rules_.size() - 1);
}

RuleId Ir::rule_named(const std::string& name) {
  auto it = named_.find(name);
  if (it == named_.end()) it = named_.emplace(name, add_rule(name)).first;
  return it->second;
}

const RuleId* Ir::find_rule(const std::string& name) const {
  auto it = named_.find(name);
  return it == named_.end() ? nullptr : &it->second;
}

RuleId Ir::embed(const Ir& other) {
  notes.insert(notes.end(), other.notes.begin(), other.notes.end());
  auto first_expr = static_cast<ExprId>(exprs_.size());
  auto first_rule = static_cast<RuleId>(rules_.size());
  auto moved = [&](ExprId id) { return id == kNoExpr ? id : id + first_expr; };
  for (Expr expr : other.exprs_) {
    if (auto* seq = std::get_if<Seq>(&expr))
      for (ExprId& part : seq->parts) part = moved(part);
    if (auto* alt = std::get_if<Alt>(&expr))
      for (ExprId& part : alt->parts) part = moved(part);
    if (auto* repeat = std::get_if<Repeat>(&expr)) repeat->part = moved(repeat->part);
    if (auto* ref = std::get_if<Ref>(&expr)) ref->rule += first_rule;
    if (auto* graph = std::get_if<Graph>(&expr))
      for (Graph::Edge& edge : graph->edges) edge.expr = moved(edge.expr);
    add(std::move(expr));
  }
  for (const auto& [id, why] : other.why_never_) why_never_.emplace(moved(id), why);
  for (const Rule& rule : other.rules_) {
    define(add_rule(rule.name), moved(rule.body));
    rules_.back().unique = rule.unique;
    rules_.back().place = rule.place;
  }
  return other.root + first_rule;
}

ExprId without_left_recursion(Ir& ir, RuleId rule, ExprId body) {
  std::vector<ExprId> alternatives{body}, others, tails;
  if (const auto* alt = std::get_if<Alt>(&ir.expr(body))) alternatives = alt->parts;
  auto is_self = [&](ExprId id) {
    const auto* ref = std::get_if<Ref>(&ir.expr(id));
    return ref != nullptr && ref->rule == rule;
  };
  for (ExprId id : alternatives) {
    if (is_self(id)) continue;  // a: a
    const auto* seq = std::get_if<Seq>(&ir.expr(id));
    if (seq == nullptr || seq->parts.empty() || !is_self(seq->parts[0])) {
      others.push_back(id);
      continue;
    }
    std::vector<ExprId> rest(seq->parts.begin() + 1, seq->parts.end());
    tails.push_back(ir.seq(std::move(rest)));
  }
  if (tails.empty() && others.size() == alternatives.size()) return body;
  ExprId more = ir.repeat(ir.alt(std::move(tails)), 0, kUnbounded);
  return ir.seq({ir.alt(std::move(others)), more});
}

}  // namespace tokamak::grammar
