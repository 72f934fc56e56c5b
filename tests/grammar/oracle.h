#pragma once
// What the tests compare with: a recogniser that follows the expressions of a grammar directly.
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/ir.h"
#include "text/unicode.h"

namespace tokamak::grammar {

class SlowMatcher {
 public:
  explicit SlowMatcher(const Ir& ir) : ir_(ir) {}
  bool matches(std::string_view text) {
    text_ = text;
    return ends(ir_.rules()[ir_.root].body, 0).contains(text.size());
  }

 private:
  using Ends = std::set<size_t>;
  // Where a match of the expression that begins at `pos` may end.
  Ends ends(ExprId id, size_t pos) {
    return std::visit([&](const auto& e) { return ends(e, pos); }, ir_.expr(id));
  }
  Ends ends(const Bytes& e, size_t pos) {
    return text_.substr(pos).starts_with(e.text) ? Ends{pos + e.text.size()} : Ends{};
  }
  Ends ends(const OneOf& e, size_t pos) {
    Ends out;
    for (const std::string& text : e.texts) out.merge(ends(Bytes{text}, pos));
    return out;
  }
  Ends ends(const Class& e, size_t pos) {
    if (pos >= text_.size()) return {};
    Utf8Char c = utf8_decode(text_, pos);
    return c.valid && contains(e.set, c.cp) ? Ends{pos + c.length} : Ends{};
  }
  Ends then(const Ends& from, ExprId id) {
    Ends out;
    for (size_t pos : from) out.merge(ends(id, pos));
    return out;
  }
  Ends ends(const Seq& e, size_t pos) {
    Ends at{pos};
    for (ExprId part : e.parts) at = then(at, part);
    return at;
  }
  Ends ends(const Alt& e, size_t pos) {
    Ends out;
    for (ExprId part : e.parts) out.merge(ends(part, pos));
    return out;
  }
  Ends ends(const Repeat& e, size_t pos) {
    Ends out, at{pos};
    for (uint32_t i = 0; !at.empty() && i <= e.max; ++i) {
      size_t before = out.size();
      if (i >= e.min) out.insert(at.begin(), at.end());
      if (i > e.min && out.size() == before) break;
      if (i == e.max) break;
      at = then(at, e.part);
    }
    return out;
  }
  Ends ends(const Ref& e, size_t pos) { return ends(ir_.rules()[e.rule].body, pos); }
  Ends ends(const Graph& e, size_t pos) {
    std::vector<Ends> at(e.states);
    at[0].insert(pos);
    for (bool changed = true; changed;) {
      changed = false;
      for (const Graph::Edge& edge : e.edges) {
        Ends more = edge.expr == kNoExpr ? at[edge.from] : then(at[edge.from], edge.expr);
        size_t before = at[edge.to].size();
        at[edge.to].merge(more);
        changed |= at[edge.to].size() != before;
      }
    }
    Ends out;
    for (uint32_t state : e.finals) out.insert(at[state].begin(), at[state].end());
    return out;
  }

  const Ir& ir_;
  std::string_view text_;
};

}  // namespace tokamak::grammar
