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

RuleId Ir::add_rule(std::string name) {
  if (rules_.size() >= kMaxRules)
    fail(ErrorCode::kOutOfRange, "the grammar is too large: more than {} rules", kMaxRules);
  rules_.push_back({std::move(name), kNoExpr});
  return static_cast<RuleId>(rules_.size() - 1);
}

}  // namespace tokamak::grammar
