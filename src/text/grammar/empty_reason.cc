#include "text/grammar/empty_reason.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "base/error.h"

namespace tokamak::grammar {
namespace {

constexpr size_t kMostReasons = 3;  // in one message

// Follows what the root needs and cannot have, down to the expressions of Ir::never.
class EmptyReason {
 public:
  EmptyReason(const Ir& ir, const std::vector<uint8_t>& live)
      : ir_(ir), live_(live), seen_(live.size(), 0) {}

  std::string find() {
    follow(Ref{ir_.root});
    while (!work_.empty() && reasons_.size() < kMostReasons) {
      ExprId id = work_.back();
      work_.pop_back();
      if (const std::string* why = ir_.why_never(id)) {
        if (std::find(reasons_.begin(), reasons_.end(), *why) == reasons_.end())
          reasons_.push_back(*why);
        continue;
      }
      std::visit([&](const auto& e) { follow(e); }, ir_.expr(id));
    }
    if (!reasons_.empty()) return fmt::format("{}", fmt::join(reasons_, "; "));
    return fmt::format("the grammar matches no text at all: '{}' {}",
                       ir_.rules()[endless_ ? *endless_ : last_].name,
                       endless_ ? "contains itself without end" : "matches nothing");
  }

 private:
  bool is_empty(ExprId id) const {
    return id != kNoExpr && std::visit([&](const auto& e) { return is_empty(e); }, ir_.expr(id));
  }
  bool is_empty(const Bytes&) const { return false; }
  bool is_empty(const OneOf& e) const { return e.texts.empty(); }
  bool is_empty(const Class& e) const { return e.set.empty(); }
  bool is_empty(const Seq& e) const {
    return std::any_of(e.parts.begin(), e.parts.end(), [&](ExprId id) { return is_empty(id); });
  }
  bool is_empty(const Alt& e) const {
    return std::all_of(e.parts.begin(), e.parts.end(), [&](ExprId id) { return is_empty(id); });
  }
  bool is_empty(const Repeat& e) const { return e.min > 0 && is_empty(e.part); }
  bool is_empty(const Ref& e) const { return live_[e.rule] == 0; }
  bool is_empty(const Graph& e) const {
    std::vector<uint8_t> reached = reachable(e);
    return std::none_of(e.finals.begin(), e.finals.end(), [&](uint32_t s) { return reached[s]; });
  }
  std::vector<uint8_t> reachable(const Graph& e) const {
    std::vector<std::vector<uint32_t>> next(e.states);
    for (const Graph::Edge& edge : e.edges)
      if (!is_empty(edge.expr)) next[edge.from].push_back(edge.to);
    std::vector<uint8_t> reached(e.states, 0);
    std::vector<uint32_t> work{0};
    reached[0] = 1;
    while (!work.empty()) {
      uint32_t at = work.back();
      work.pop_back();
      for (uint32_t to : next[at])
        if (std::exchange(reached[to], uint8_t{1}) == 0) work.push_back(to);
    }
    return reached;
  }

  // Puts what makes an empty expression empty on the stack, the first part on top.
  template <class E>
  void follow(const E&) {}
  void follow(const Seq& e) {
    auto part =
        std::find_if(e.parts.begin(), e.parts.end(), [&](ExprId id) { return is_empty(id); });
    if (part != e.parts.end()) work_.push_back(*part);
  }
  void follow(const Alt& e) { work_.insert(work_.end(), e.parts.rbegin(), e.parts.rend()); }
  void follow(const Repeat& e) { work_.push_back(e.part); }
  void follow(const Ref& e) {
    if (std::exchange(seen_[e.rule], uint8_t{1}) != 0) {
      if (!endless_) endless_ = e.rule;
      return;
    }
    last_ = e.rule;
    work_.push_back(ir_.rules()[e.rule].body);
  }
  void follow(const Graph& e) {
    std::vector<uint8_t> reached = reachable(e);
    for (size_t i = e.edges.size(); i-- > 0;)
      if (reached[e.edges[i].from] && !reached[e.edges[i].to]) work_.push_back(e.edges[i].expr);
  }

  const Ir& ir_;
  const std::vector<uint8_t>& live_;
  std::vector<uint8_t> seen_;  // rules
  std::vector<ExprId> work_;
  std::vector<std::string> reasons_;
  std::optional<RuleId> endless_;  // a rule that was met again
  RuleId last_ = 0;
};

}  // namespace

std::string empty_reason(const Ir& ir, const std::vector<uint8_t>& live) {
  return EmptyReason(ir, live).find();
}

}  // namespace tokamak::grammar
