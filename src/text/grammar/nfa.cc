#include "text/grammar/nfa.h"

#include <algorithm>

#include "base/error.h"
#include "text/grammar/empty_reason.h"
#include "text/grammar/nfa_builder.h"
#include "text/grammar/token_shapes.h"

namespace tokamak::grammar {
namespace {

template <class T>
Nfa::Lists<T> lists_of(const std::vector<NfaBuilder::Edge<T>>& edges, size_t positions) {
  Nfa::Lists<T> out;
  out.first.assign(positions + 1, 0);
  for (const auto& e : edges) ++out.first[e.from + 1];
  for (size_t p = 0; p < positions; ++p) out.first[p + 1] += out.first[p];
  out.all.resize(out.first[positions]);
  std::vector<uint32_t> next(out.first.begin(), out.first.end() - 1);
  for (const auto& e : edges) out.all[next[e.from]++] = e.edge;
  return out;
}

// Marks what can be reached backwards from the marked positions. An edge that calls a rule counts
// once the rule's start is marked.
class Backwards {
 public:
  Backwards(const NfaBuilder& b, bool with_bytes) : b_(b), marked(b.final.size(), 0) {
    std::vector<NfaBuilder::Edge<Position>> reversed;
    for (const auto& e : b.empty) reversed.push_back({e.edge, e.from});
    if (with_bytes)
      for (const auto& e : b.bytes) reversed.push_back({e.edge.to, e.from});
    into_ = lists_of(reversed, marked.size());
    std::vector<NfaBuilder::Edge<Nfa::RuleEdge>> calls;  // by target; .to is the origin
    for (const auto& e : b.calls) calls.push_back({e.edge.to, {e.from, e.edge.rule}});
    calls_into_ = lists_of(calls, marked.size());
    callers_.resize(b.rules.size());
    for (const auto& e : b.calls) callers_[e.edge.rule].push_back({e.from, e.edge.to});
    starts_.assign(marked.size(), UINT32_MAX);
    for (size_t r = 0; r < b.rules.size(); ++r)
      starts_[b.rules[r].start] = static_cast<uint32_t>(r);
  }

  void run() {
    for (size_t p = 0; p < marked.size(); ++p)
      if (b_.final[p]) mark(static_cast<Position>(p));
    while (!work_.empty()) {
      Position p = work_.back();
      work_.pop_back();
      for (Position from : into_.of(p)) mark(from);
      for (const Nfa::RuleEdge& call : calls_into_.of(p))
        if (marked[b_.rules[call.rule].start]) mark(call.to);
      if (starts_[p] == UINT32_MAX) continue;
      for (const auto& [from, to] : callers_[starts_[p]])
        if (marked[to]) mark(from);
    }
  }

 private:
  void mark(Position p) {
    if (marked[p]) return;
    marked[p] = 1;
    work_.push_back(p);
  }
  const NfaBuilder& b_;

 public:
  std::vector<uint8_t> marked;

 private:
  Nfa::Lists<Position> into_;
  Nfa::Lists<Nfa::RuleEdge> calls_into_;
  std::vector<std::vector<std::pair<Position, Position>>> callers_;
  std::vector<uint32_t> starts_;
  std::vector<Position> work_;
};

void find_nullable(NfaBuilder& b) {
  Backwards back(b, false);
  back.run();
  for (Nfa::Rule& rule : b.rules) rule.nullable = back.marked[rule.start] != 0;
  for (const auto& e : b.calls)
    if (b.rules[e.edge.rule].nullable) b.empty.push_back({e.from, e.edge.to});
}

// Drops what cannot reach the end of its rule.
void trim(NfaBuilder& b, const Ir& ir) {
  Backwards back(b, true);
  back.run();
  const std::vector<uint8_t>& live = back.marked;
  if (!live[b.rules[0].start]) {
    std::vector<uint8_t> live_rules(ir.rules().size(), 1);
    for (RuleId r = 0; r < live_rules.size(); ++r)
      if (const RuleId* own = b.automaton_of(r)) live_rules[r] = live[b.rules[*own].start];
    fail(ErrorCode::kInvalidArgument, "{}", empty_reason(ir, live_rules));
  }
  for (Position& to : b.plain_to)
    if (to != kNoPosition && !live[to]) to = kNoPosition;
  std::erase_if(b.bytes, [&](const auto& e) { return !live[e.from] || !live[e.edge.to]; });
  std::erase_if(b.empty, [&](const auto& e) { return !live[e.from] || !live[e.edge]; });
  std::erase_if(b.calls, [&](const auto& e) {
    return !live[e.from] || !live[e.edge.to] || !live[b.rules[e.edge.rule].start];
  });
}

// The rules that a rule may call before it consumes a byte.
std::vector<RuleId> first_calls(const Nfa& nfa, RuleId rule, std::vector<uint32_t>& seen) {
  std::vector<RuleId> out;
  std::vector<Position> work{nfa.rules[rule].start};
  seen[work[0]] = rule + 1;
  while (!work.empty()) {
    Position p = work.back();
    work.pop_back();
    for (const Nfa::RuleEdge& call : nfa.calls.of(p)) out.push_back(call.rule);
    for (Position to : nfa.empty.of(p))
      if (std::exchange(seen[to], rule + 1) != rule + 1) work.push_back(to);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

// Ranks in topological order of first calls; a cycle is left recursion.
void rank_rules(Nfa& nfa) {
  size_t n = nfa.rules.size();
  std::vector<std::vector<RuleId>> calls(n);
  std::vector<uint32_t> seen(nfa.positions(), 0), callers(n, 0);
  for (size_t r = 0; r < n; ++r) {
    calls[r] = first_calls(nfa, static_cast<RuleId>(r), seen);
    for (RuleId c : calls[r]) ++callers[c];
  }
  std::vector<RuleId> order;
  for (size_t r = 0; r < n; ++r)
    if (callers[r] == 0) order.push_back(static_cast<RuleId>(r));
  for (size_t i = 0; i < order.size(); ++i) {
    nfa.rules[order[i]].rank = static_cast<uint32_t>(i);
    for (RuleId c : calls[order[i]])
      if (--callers[c] == 0) order.push_back(c);
  }
  if (order.size() == n) return;
  // Every remaining rule has a remaining caller: n steps back end inside a cycle.
  RuleId at = 0;
  while (callers[at] == 0) ++at;
  for (size_t i = 0; i < n; ++i)
    for (size_t r = 0; r < n; ++r)
      if (callers[r] > 0 && std::binary_search(calls[r].begin(), calls[r].end(), at)) {
        at = static_cast<RuleId>(r);
        break;
      }
  fail(ErrorCode::kInvalidArgument,
       "left recursion: rule '{}' calls itself before it consumes anything; put the recursive part "
       "last",
       nfa.rules[at].name);
}

void find_classes(Nfa& nfa) {
  std::array<bool, 257> starts{};
  starts[0] = true;
  for (const Nfa::ByteEdge& e : nfa.bytes.all) starts[e.lo] = starts[e.hi + 1] = true;
  for (size_t byte = 0; byte < 256; ++byte) {
    if (starts[byte]) nfa.class_byte.push_back(static_cast<uint8_t>(byte));
    nfa.class_of[byte] = static_cast<uint8_t>(nfa.class_byte.size() - 1);
  }
}

// Finds Nfa::mixed of words. Two edges that share the characters of a symbol count as different.
void find_mixed(Nfa& nfa) {
  for (Position p = 0; p < nfa.positions(); ++p)
    for (const Nfa::ByteEdge& e : nfa.bytes.of(p))
      for (uint8_t symbol : {kLower, kUpper, kDigit}) {
        auto [first, last] = symbol_bytes(symbol);
        const bool disjoint = e.hi < first || last < e.lo, whole = e.lo <= first && last <= e.hi;
        if (!disjoint && !whole) nfa.mixed[p] |= symbol;
      }
}

}  // namespace

Nfa lower(const Ir& ir) {
  NfaBuilder b(ir);
  b.build();
  find_nullable(b);
  trim(b, ir);
  Nfa nfa;
  size_t n = b.final.size();
  nfa.bytes = lists_of(b.bytes, n);
  nfa.calls = lists_of(b.calls, n);
  nfa.empty = lists_of(b.empty, n);
  nfa.final = std::move(b.final);
  nfa.plain_to = std::move(b.plain_to);
  nfa.mixed = std::move(b.mixed);
  nfa.rule_of = std::move(b.rule_of);
  nfa.rules = std::move(b.rules);
  rank_rules(nfa);
  find_classes(nfa);
  find_mixed(nfa);
  return nfa;
}

size_t Nfa::memory_bytes() const {
  auto size = []<class T>(const std::vector<T>& v) { return v.size() * sizeof(T); };
  auto lists = [&](const auto& l) { return size(l.first) + size(l.all); };
  return lists(bytes) + lists(calls) + lists(empty) + size(final) + size(plain_to) + size(mixed) +
         size(rule_of) + size(rules);
}

}  // namespace tokamak::grammar
