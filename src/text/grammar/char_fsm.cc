#include "text/grammar/char_fsm.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "text/unicode.h"

namespace tokamak::grammar {
namespace {

void check_fsm_size(size_t states, size_t edges) {
  if (states > kMaxFsmStates || edges > kMaxFsmEdges)
    fail(ErrorCode::kOutOfRange,
         "a pattern is too large: its automaton has more than {} states or {} edges", kMaxFsmStates,
         kMaxFsmEdges);
}

using StateSet = std::vector<uint32_t>;  // sorted

StateSet closed(const CharFsm& fsm, StateSet states) {
  std::set<uint32_t> seen(states.begin(), states.end());
  for (size_t i = 0; i < states.size(); ++i)
    for (uint32_t to : fsm.empty[states[i]])
      if (seen.insert(to).second) states.push_back(to);
  return {seen.begin(), seen.end()};
}

bool any_final(const CharFsm& fsm, const StateSet& states) {
  return std::any_of(states.begin(), states.end(), [&](uint32_t s) { return fsm.final[s] != 0; });
}

}  // namespace

uint32_t CharFsm::add_state(bool is_final) {
  edges.emplace_back();
  empty.emplace_back();
  final.push_back(is_final ? 1 : 0);
  check_fsm_size(edges.size(), 0);
  return static_cast<uint32_t>(edges.size() - 1);
}

void CharFsm::add_edge(uint32_t from, const CodeSet& set, uint32_t to) {
  for (const CodeRange& r : set) edges[from].push_back({r.lo, r.hi, to});
  check_fsm_size(0, edges[from].size());
}

bool CharFsm::matches(std::u32string_view text) const {
  StateSet at = closed(*this, {0});
  for (char32_t c : text) {
    StateSet next;
    for (uint32_t s : at)
      for (const Edge& e : edges[s])
        if (e.lo <= c && c <= e.hi) next.push_back(e.to);
    at = closed(*this, std::move(next));
  }
  return any_final(*this, at);
}

bool CharFsm::matches(std::string_view utf8) const {
  return utf8_is_valid(utf8) && matches(utf8_to_u32(utf8));
}

CharFsm fsm_of_texts(const std::vector<std::string>& texts) {
  CharFsm out;
  out.add_state();
  for (const std::string& text : texts) {
    uint32_t at = 0;
    for (char32_t c : utf8_to_u32(text)) {
      auto& edges = out.edges[at];
      auto known = std::find_if(edges.begin(), edges.end(), [&](auto& e) { return e.lo == c; });
      if (known != edges.end()) {
        at = known->to;
        continue;
      }
      uint32_t next = out.add_state();
      out.add_edge(at, {{c, c}}, next);
      at = next;
    }
    out.final[at] = 1;
  }
  return out;
}

CharFsm fsm_of_length(uint32_t min, uint32_t max) {
  CharFsm out;
  uint32_t last = max == kUnbounded ? min : max;
  for (uint32_t i = 0; i <= last; ++i) {
    out.add_state(i >= min);
    if (i > 0) out.add_edge(i - 1, any_code(), i);
  }
  if (max == kUnbounded) out.add_edge(min, any_code(), min);
  return out;
}

// State k: the text so far ends with the first k characters. The text is ASCII.
CharFsm fsm_without(std::string_view text) {
  CharFsm out;
  for (size_t k = 0; k < text.size(); ++k) out.add_state(true);
  for (size_t k = 0; k < text.size(); ++k) {
    CodeSet known;
    for (char c : text) {
      auto code = static_cast<char32_t>(static_cast<uint8_t>(c));
      if (contains(known, code)) continue;
      known = unite(known, {{code, code}});
      std::string seen = std::string(text.substr(0, k)) + c;
      size_t next = std::min(seen.size(), text.size());
      while (!std::string_view(seen).ends_with(text.substr(0, next))) --next;
      if (next < text.size())
        out.add_edge(static_cast<uint32_t>(k), {{code, code}}, static_cast<uint32_t>(next));
    }
    out.add_edge(static_cast<uint32_t>(k), complement(known), 0);
  }
  return out;
}

CharFsm without_empty(const CharFsm& fsm) {
  CharFsm out;
  size_t edges = 0;
  for (uint32_t s = 0; s < fsm.size(); ++s) {
    StateSet all = closed(fsm, {s});
    out.add_state(any_final(fsm, all));
    for (uint32_t t : all)
      out.edges[s].insert(out.edges[s].end(), fsm.edges[t].begin(), fsm.edges[t].end());
    edges += out.edges[s].size();
    check_fsm_size(0, edges);
  }
  return out;
}

CharFsm deterministic(const CharFsm& fsm) {
  CharFsm out;
  std::map<StateSet, uint32_t> known;
  std::vector<StateSet> sets;
  size_t total = 0;
  auto state_of = [&](StateSet set) {
    auto [it, fresh] = known.emplace(set, static_cast<uint32_t>(sets.size()));
    if (fresh) {
      out.add_state(any_final(fsm, set));
      sets.push_back(std::move(set));
    }
    return it->second;
  };
  state_of(closed(fsm, {0}));
  for (uint32_t i = 0; i < sets.size(); ++i) {
    std::vector<CharFsm::Edge> all;
    std::vector<char32_t> starts;  // where the set of next states may change
    for (uint32_t s : sets[i])
      for (const CharFsm::Edge& e : fsm.edges[s]) {
        all.push_back(e);
        starts.push_back(e.lo);
        starts.push_back(e.hi + 1);
      }
    std::sort(starts.begin(), starts.end());
    starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
    total += all.size() + starts.size();
    check_fsm_size(0, total / 4);
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.lo < b.lo; });
    size_t first = 0;
    for (size_t k = 0; k + 1 < starts.size(); ++k) {
      StateSet next;
      while (first < all.size() && all[first].hi < starts[k]) ++first;
      for (size_t j = first; j < all.size() && all[j].lo <= starts[k]; ++j)
        if (all[j].hi >= starts[k]) next.push_back(all[j].to);
      if (next.empty()) continue;
      uint32_t to = state_of(closed(fsm, std::move(next)));
      auto& edges = out.edges[i];
      if (!edges.empty() && edges.back().to == to && edges.back().hi + 1 == starts[k])
        edges.back().hi = starts[k + 1] - 1;
      else
        edges.push_back({starts[k], starts[k + 1] - 1, to});
    }
  }
  return out;
}

CharFsm complement(const CharFsm& fsm) {
  CharFsm out = deterministic(fsm);
  uint32_t sink = out.add_state();
  for (uint32_t s = 0; s < out.size(); ++s) {
    out.final[s] = out.final[s] ? 0 : 1;
    CodeSet covered;
    for (const CharFsm::Edge& e : out.edges[s]) covered.push_back({e.lo, e.hi});
    out.add_edge(s, complement(normalized(std::move(covered))), sink);
  }
  return out;
}

CharFsm intersect(const CharFsm& x, const CharFsm& y) {
  CharFsm a = without_empty(x), b = without_empty(y), out;
  for (CharFsm* part : {&a, &b})
    for (auto& edges : part->edges)
      std::sort(edges.begin(), edges.end(), [](auto& e, auto& f) { return e.lo < f.lo; });
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> known;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  size_t total = 0;
  auto state_of = [&](uint32_t s, uint32_t t) {
    auto [it, fresh] = known.emplace(std::pair(s, t), static_cast<uint32_t>(pairs.size()));
    if (fresh) {
      out.add_state(a.final[s] && b.final[t]);
      pairs.emplace_back(s, t);
    }
    return it->second;
  };
  state_of(0, 0);
  for (uint32_t i = 0; i < pairs.size(); ++i) {
    auto [s, t] = pairs[i];
    size_t first = 0;  // the edges before it end before e
    for (const CharFsm::Edge& e : a.edges[s]) {
      while (first < b.edges[t].size() && b.edges[t][first].hi < e.lo) ++first;
      for (size_t k = first; k < b.edges[t].size() && b.edges[t][k].lo <= e.hi; ++k) {
        const CharFsm::Edge f = b.edges[t][k];
        check_fsm_size(0, ++total / 8);
        char32_t lo = std::max(e.lo, f.lo), hi = std::min(e.hi, f.hi);
        if (lo > hi) continue;
        uint32_t to = state_of(e.to, f.to);
        out.edges[i].push_back({lo, hi, to});
      }
    }
  }
  return out;
}

CharFsm unite(const CharFsm& a, const CharFsm& b) {
  CharFsm out;
  out.add_state();
  for (const CharFsm* part : {&a, &b}) {
    auto base = static_cast<uint32_t>(out.size());
    out.empty[0].push_back(base);
    for (uint32_t s = 0; s < part->size(); ++s) {
      out.add_state(part->final[s] != 0);
      for (CharFsm::Edge e : part->edges[s]) out.edges.back().push_back({e.lo, e.hi, base + e.to});
      for (uint32_t to : part->empty[s]) out.empty.back().push_back(base + to);
    }
  }
  return out;
}

bool is_empty(const CharFsm& fsm) {
  StateSet work{0};
  std::vector<uint8_t> seen(fsm.size(), 0);
  while (!work.empty()) {
    uint32_t s = work.back();
    work.pop_back();
    if (std::exchange(seen[s], uint8_t{1})) continue;
    if (fsm.final[s]) return false;
    for (const CharFsm::Edge& e : fsm.edges[s]) work.push_back(e.to);
    work.insert(work.end(), fsm.empty[s].begin(), fsm.empty[s].end());
  }
  return true;
}

bool is_endless(const CharFsm& fsm) {
  const CharFsm all = deterministic(fsm);
  std::vector<std::vector<uint32_t>> before(all.size());
  for (uint32_t s = 0; s < all.size(); ++s)
    for (const CharFsm::Edge& e : all.edges[s]) before[e.to].push_back(s);
  std::vector<uint8_t> live(all.size(), 0), goes_on(all.size(), 0);
  std::vector<uint32_t> work;
  for (uint32_t s = 0; s < all.size(); ++s)
    if (all.final[s]) work.push_back(s);
  while (!work.empty()) {
    const uint32_t s = work.back();
    work.pop_back();
    if (std::exchange(live[s], uint8_t{1})) continue;
    for (uint32_t from : before[s]) {
      goes_on[from] = 1;
      work.push_back(from);
    }
  }
  return live == goes_on;
}

namespace {

// The characters between two states, as an expression.
template <class SetExpr>
ExprId graph_expr(Ir& ir, const CharFsm& fsm, SetExpr&& set_expr) {
  Graph graph;
  graph.states = static_cast<uint32_t>(fsm.size());
  for (uint32_t s = 0; s < fsm.size(); ++s) {
    if (fsm.final[s]) graph.finals.push_back(s);
    for (uint32_t to : fsm.empty[s]) graph.edges.push_back({s, to, kNoExpr});
    std::map<uint32_t, CodeSet> by_target;
    for (const CharFsm::Edge& e : fsm.edges[s]) by_target[e.to].push_back({e.lo, e.hi});
    for (auto& [to, set] : by_target)
      for (ExprId expr : set_expr(normalized(std::move(set)))) graph.edges.push_back({s, to, expr});
  }
  return ir.add(std::move(graph));
}

std::string json_escape(char32_t c) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\'':
      return "\\'";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
  }
}

}  // namespace

ExprId expr_of(Ir& ir, const CharFsm& fsm) {
  return graph_expr(ir, fsm,
                    [&](CodeSet set) { return std::vector<ExprId>{ir.chars(std::move(set))}; });
}

ExprId json_expr_of(Ir& ir, const CharFsm& fsm, char quote) {
  const auto mark = static_cast<char32_t>(quote);
  const CodeSet escaped{{0, 0x1F}, {mark, mark}, {'\\', '\\'}};
  std::map<std::string, RuleId> rules;  // sets of escaped characters that were used before
  return graph_expr(ir, fsm, [&](const CodeSet& set) {
    std::vector<ExprId> out;
    if (CodeSet raw = intersect(set, complement(escaped)); !raw.empty())
      out.push_back(ir.chars(std::move(raw)));
    std::vector<std::string> texts;
    std::string key;
    for (const CodeRange& r : intersect(set, escaped))
      for (char32_t c = r.lo; c <= r.hi; ++c) {
        texts.push_back(json_escape(c));
        key += static_cast<char>(c);
      }
    if (texts.empty()) return out;
    auto [it, fresh] = rules.emplace(key, 0);
    if (fresh) {
      it->second = ir.add_rule("an escaped character");
      ir.define(it->second, ir.one_of(std::move(texts)));
    }
    out.push_back(ir.ref(it->second));
    return out;
  });
}

}  // namespace tokamak::grammar
