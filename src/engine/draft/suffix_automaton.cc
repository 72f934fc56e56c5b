#include "engine/draft/suffix_automaton.h"

#include <algorithm>

namespace tokamak {
namespace {

// Occurrences of a text are counted for this many of its suffixes, the longest ones. The others are
// short and frequent, or the text repeats a few tokens: there, counts say little.
constexpr int kCountedSuffixes = 64;

}  // namespace

SuffixAutomaton::SuffixAutomaton() : table_(64, -1) { add_state(0, -1); }

int32_t SuffixAutomaton::add_state(int32_t length, int32_t link) {
  states_.push_back({length, link, -1, 0});
  return static_cast<int32_t>(states_.size()) - 1;
}

size_t SuffixAutomaton::home(int32_t from, int32_t token) const {
  uint64_t key = uint64_t{static_cast<uint32_t>(from)} << 32 | static_cast<uint32_t>(token);
  key *= 0x9e3779b97f4a7c15u;
  return static_cast<size_t>(key >> 32) & (table_.size() - 1);
}

int32_t SuffixAutomaton::find_edge(int32_t from, int32_t token) const {
  for (size_t at = home(from, token); table_[at] >= 0; at = (at + 1) & (table_.size() - 1)) {
    const Edge& e = edges_[static_cast<size_t>(table_[at])];
    if (e.from == from && e.token == token) return table_[at];
  }
  return -1;
}

void SuffixAutomaton::add_edge(int32_t from, int32_t token, int32_t to) {
  if (edges_.size() * 2 >= table_.size()) grow();
  State& state = states_[static_cast<size_t>(from)];
  auto index = static_cast<int32_t>(edges_.size());
  edges_.push_back({from, token, to, state.edge});
  state.edge = index;
  size_t at = home(from, token);
  while (table_[at] >= 0) at = (at + 1) & (table_.size() - 1);
  table_[at] = index;
}

void SuffixAutomaton::grow() {
  table_.assign(table_.size() * 2, -1);
  for (size_t i = 0; i < edges_.size(); ++i) {
    size_t at = home(edges_[i].from, edges_[i].token);
    while (table_[at] >= 0) at = (at + 1) & (table_.size() - 1);
    table_[at] = static_cast<int32_t>(i);
  }
}

int32_t SuffixAutomaton::next(int32_t state, int32_t token) const {
  int32_t edge = find_edge(state, token);
  return edge < 0 ? -1 : edges_[static_cast<size_t>(edge)].to;
}

int32_t SuffixAutomaton::split(int32_t from, int32_t token, int32_t to) {
  if (length(to) == length(from) + 1) return to;
  int32_t copy = add_state(length(from) + 1, link(to));
  states_[static_cast<size_t>(copy)].count = states_[static_cast<size_t>(to)].count;
  for (int32_t e = states_[static_cast<size_t>(to)].edge; e >= 0;) {
    Edge edge = edges_[static_cast<size_t>(e)];
    add_edge(copy, edge.token, edge.to);
    e = edge.next;
  }
  states_[static_cast<size_t>(to)].link = copy;
  for (int32_t state = from; state >= 0; state = link(state)) {
    int32_t e = find_edge(state, token);
    if (e < 0 || edges_[static_cast<size_t>(e)].to != to) break;
    edges_[static_cast<size_t>(e)].to = copy;
  }
  return copy;
}

void SuffixAutomaton::append(int32_t token) {
  ++tokens_;
  int32_t from = last_, known = next(from, token);
  if (known >= 0) {  // an earlier text began like this one
    last_ = split(from, token, known);
  } else {
    last_ = add_state(length(from) + 1, kRoot);
    for (; from >= 0; from = link(from)) {
      known = next(from, token);
      if (known >= 0) break;
      add_edge(from, token, last_);
    }
    if (from >= 0) {
      int32_t suffix = split(from, token, known);
      states_[static_cast<size_t>(last_)].link = suffix;
    }
  }
  int counted = 0;
  for (int32_t s = last_; s > kRoot && counted < kCountedSuffixes; s = link(s), ++counted)
    ++states_[static_cast<size_t>(s)].count;
}

SuffixAutomaton::Match SuffixAutomaton::match(std::span<const int32_t> ids) const {
  Match m;
  for (int32_t id : ids) {
    int32_t to = next(m.state, id);
    while (to < 0 && m.state != kRoot) {
      m.state = link(m.state);
      m.length = length(m.state);
      to = next(m.state, id);
    }
    if (to < 0) continue;
    m.state = to;
    ++m.length;
  }
  return m;
}

SuffixAutomaton::Follower SuffixAutomaton::likeliest(int32_t state) const {
  Follower best;
  int64_t all = 0, most = 0;
  for (int32_t e = states_[static_cast<size_t>(state)].edge; e >= 0;) {
    const Edge& edge = edges_[static_cast<size_t>(e)];
    int64_t count = std::max(1, states_[static_cast<size_t>(edge.to)].count);
    all += count;
    if (count > most) {
      most = count;
      best.token = edge.token;
      best.state = edge.to;
    }
    e = edge.next;
  }
  if (all > 0) best.share = static_cast<double>(most) / static_cast<double>(all);
  return best;
}

void SuffixAutomaton::followers(int32_t state, size_t most, std::vector<Follower>& out) const {
  out.clear();
  double all = 0;
  for (int32_t e = states_[static_cast<size_t>(state)].edge; e >= 0;) {
    const Edge& edge = edges_[static_cast<size_t>(e)];
    auto count = static_cast<double>(std::max(1, states_[static_cast<size_t>(edge.to)].count));
    all += count;
    e = edge.next;
    size_t at = out.size();
    while (at > 0 && out[at - 1].share < count) --at;
    if (at >= most) continue;
    if (out.size() == most) out.pop_back();
    out.insert(out.begin() + static_cast<std::ptrdiff_t>(at), {edge.token, edge.to, count});
  }
  for (Follower& f : out) f.share /= all;
}

}  // namespace tokamak
