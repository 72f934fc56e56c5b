#include "text/grammar/automaton.h"

#include <algorithm>

#include "base/error.h"

namespace tokamak::grammar {
namespace {

constexpr size_t kMaxItems = 2048;  // of a config
constexpr ContextId kRootContext = 0, kUnknownContext = 1;
// Entries of the largest tables that have room from the start: a mask does not wait for a copy of
// them. Memory that is not used costs nothing.
constexpr size_t kRoom = size_t{1} << 20;

uint64_t hash_items(const std::vector<Automaton::Item>& items, uint64_t seed) {
  static_assert(sizeof(Automaton::Item) == 8);
  return hash_words(reinterpret_cast<const uint32_t*>(items.data()), items.size() * 2, seed);
}

bool item_less(const Automaton::Item& a, const Automaton::Item& b) {
  return a.state != b.state ? a.state < b.state : a.context < b.context;
}

void sort_items(std::vector<Automaton::Item>& items) {
  std::sort(items.begin(), items.end(), item_less);
  items.erase(std::unique(items.begin(), items.end()), items.end());
}

}  // namespace

Automaton::Automaton(const Nfa& nfa)
    : nfa_(nfa), classes_(nfa.class_byte.size()), seen_(nfa.positions(), 0) {
  steps_.reserve(kRoom);
  state_steps_.reserve(kRoom);
  configs_.push_back({});  // the dead config
  steps_.assign(classes_, kDeadConfig);
  std::vector<Item> root{{kEndOfText, 0}}, unknown{{kUnknown, 0}};
  intern_context(root);
  intern_context(unknown);
  rule_starts_.assign(nfa.rules.size(), kNoState);
}

size_t Automaton::bytes() const {
  auto size = []<class T>(const std::vector<T>& v) { return v.size() * sizeof(T); };
  return size(states_) + size(positions_) + size(calls_) + size(state_steps_) + size(plain_steps_) +
         size(contexts_) + size(entries_) + size(configs_) + size(items_) + size(steps_) +
         state_table_.bytes() + context_table_.bytes() + config_table_.bytes();
}

void Automaton::spend(size_t amount) {
  if (amount > budget_)
    fail(ErrorCode::kOutOfRange,
         "the grammar is too ambiguous: one step of it takes too much work");
  budget_ -= amount;
}

// --- states

StateId Automaton::intern_state(std::vector<Position>& positions) {
  ++mark_;
  size_t kept = 0;
  for (size_t i = 0; i < positions.size(); ++i) seen_[positions[i]] = mark_;
  for (size_t i = 0; i < positions.size(); ++i)
    for (Position to : nfa_.empty.of(positions[i]))
      if (std::exchange(seen_[to], mark_) != mark_) positions.push_back(to);
  for (Position p : positions)
    if (nfa_.final[p] || !nfa_.bytes.of(p).empty() || !nfa_.calls.of(p).empty())
      positions[kept++] = p;
  positions.resize(kept);
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  if (positions.empty()) return kNoState;

  auto fresh = static_cast<StateId>(states_.size());
  StateId id = state_table_.find_or_add(
      hash_words(positions.data(), positions.size()), fresh, [&](StateId other) {
        const State& s = states_[other];
        return s.count == positions.size() &&
               std::equal(positions.begin(), positions.end(), positions_.begin() + s.first);
      });
  if (id != fresh) return id;
  spend(1 + positions.size() / 16);
  State state;
  state.first = static_cast<uint32_t>(positions_.size());
  state.count = static_cast<uint32_t>(positions.size());
  state.rule = nfa_.rule_of[positions[0]];
  for (Position p : positions) {
    state.final |= nfa_.final[p] != 0;
    state.has_bytes |= !nfa_.bytes.of(p).empty();
    state.has_calls |= !nfa_.calls.of(p).empty();
    state.mixed |= nfa_.mixed[p];
  }
  positions_.insert(positions_.end(), positions.begin(), positions.end());
  states_.push_back(state);
  state_steps_.resize(states_.size() * classes_, kUnset);
  plain_steps_.push_back(kUnset);
  return id;
}

// Calls of one rule from several positions are one call. On demand: a sequence of calls would
// otherwise recurse.
void Automaton::find_calls(StateId id) {
  if (!states_[id].has_calls || states_[id].call_count > 0) return;
  std::vector<Nfa::RuleEdge> edges;
  const State state = states_[id];
  for (uint32_t i = 0; i < state.count; ++i)
    for (const Nfa::RuleEdge& e : nfa_.calls.of(positions_[state.first + i])) edges.push_back(e);
  std::sort(edges.begin(), edges.end(),
            [](const auto& a, const auto& b) { return a.rule < b.rule; });
  std::vector<Call> calls;
  for (size_t i = 0; i < edges.size();) {
    std::vector<Position> after;
    RuleId rule = edges[i].rule;
    for (; i < edges.size() && edges[i].rule == rule; ++i) after.push_back(edges[i].to);
    calls.push_back({rule, intern_state(after)});
  }
  states_[id].first_call = static_cast<uint32_t>(calls_.size());
  states_[id].call_count = static_cast<uint32_t>(calls.size());
  calls_.insert(calls_.end(), calls.begin(), calls.end());
}

StateId Automaton::united(StateId a, StateId b) {
  if (a == b) return a;
  std::vector<Position> all;
  for (StateId id : {a, b}) {
    auto first = positions_.begin() + states_[id].first;
    all.insert(all.end(), first, first + states_[id].count);
  }
  return intern_state(all);
}

StateId Automaton::next_state(StateId id, uint32_t cls) {
  if (uint32_t known = state_steps_[id * classes_ + cls]; known != kUnset)
    return known == kUnset - 1 ? kNoState : known;
  uint8_t byte = nfa_.class_byte[cls];
  set_.clear();
  const State state = states_[id];
  for (uint32_t i = 0; i < state.count; ++i)
    for (const Nfa::ByteEdge& e : nfa_.bytes.of(positions_[state.first + i]))
      if (e.lo <= byte && byte <= e.hi) set_.push_back(e.to);
  StateId next = set_.empty() ? kNoState : intern_state(set_);
  state_steps_[id * classes_ + cls] = next == kNoState ? kUnset - 1 : next;
  return next;
}

// --- contexts

ContextId Automaton::intern_context(std::vector<Item>& entries) {
  sort_items(entries);
  auto fresh = static_cast<ContextId>(contexts_.size());
  ContextId id = context_table_.find_or_add(hash_items(entries, 1), fresh, [&](ContextId other) {
    const Context& c = contexts_[other];
    return c.count == entries.size() &&
           std::equal(entries.begin(), entries.end(), entries_.begin() + c.first);
  });
  if (id != fresh) return id;
  contexts_.push_back(
      {static_cast<uint32_t>(entries_.size()), static_cast<uint32_t>(entries.size()), kUnset});
  entries_.insert(entries_.end(), entries.begin(), entries.end());
  return id;
}

// --- configs

// States of one rule in one context are one state.
void Automaton::add_item(Item item) {
  for (Item& other : work_)
    if (other.context == item.context && states_[other.state].rule == states_[item.state].rule) {
      other.state = united(other.state, item.state);
      return;
    }
  work_.push_back(item);
  if (work_.size() > kMaxItems)
    fail(ErrorCode::kOutOfRange, "the grammar is too ambiguous: more than {} readings of one text",
         kMaxItems);
  if (work_.size() > 16) spend(work_.size() / 16);
}

void Automaton::add_entries(ContextId context) {
  returned_.push_back(context);
  const Context c = contexts_[context];
  for (uint32_t i = 0; i < c.count; ++i) {
    Item entry = entries_[c.first + i];
    if (entry.state == kEndOfText)
      closing_.accepting = true;
    else if (entry.state == kUnknown)
      closing_.returns = true;
    else
      add_item(entry);
  }
}

void Automaton::close_returns() {
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = 0; i < work_.size(); ++i) {
      ContextId context = work_[i].context;
      if (!states_[work_[i].state].final ||
          std::find(returned_.begin(), returned_.end(), context) != returned_.end())
        continue;
      add_entries(context);
      changed = true;
    }
  }
}

// In the order of ranks, so that all callers of a rule are known when its context is built.
void Automaton::close_calls() {
  pending_.clear();
  auto note = [&](Item item) {
    find_calls(item.state);
    const State& s = states_[item.state];
    for (uint32_t i = 0; i < s.call_count; ++i) {
      Call call = calls_[s.first_call + i];
      pending_.push_back({nfa_.rules[call.rule].rank, call.rule, {call.after, item.context}});
    }
  };
  auto later = [](const Pending& a, const Pending& b) { return a.rank > b.rank; };
  for (Item item : work_) note(item);
  std::make_heap(pending_.begin(), pending_.end(), later);
  while (!pending_.empty()) {
    RuleId rule = pending_.front().rule;
    call_entries_.clear();
    while (!pending_.empty() && pending_.front().rule == rule) {
      Item entry = pending_.front().entry;
      std::pop_heap(pending_.begin(), pending_.end(), later);
      pending_.pop_back();
      const State& after = states_[entry.state];
      bool last = after.final && !after.has_bytes && !after.has_calls;
      if (!last) {
        call_entries_.push_back(entry);
        continue;
      }
      const Context& c = contexts_[entry.context];
      call_entries_.insert(call_entries_.end(), entries_.begin() + c.first,
                           entries_.begin() + c.first + c.count);
      spend(c.count / 16);
    }
    if (rule_starts_[rule] == kNoState) {
      std::vector<Position> start{nfa_.rules[rule].start};
      rule_starts_[rule] = intern_state(start);
    }
    Item item{rule_starts_[rule], intern_context(call_entries_)};
    add_item(item);
    size_t before = pending_.size();
    note(item);
    for (size_t i = before + 1; i <= pending_.size(); ++i)
      std::push_heap(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(i), later);
  }
}

ConfigId Automaton::intern_config() {
  std::erase_if(work_, [&](const Item& item) { return !states_[item.state].has_bytes; });
  sort_items(work_);
  if (work_.empty() && !closing_.accepting && !closing_.returns) return kDeadConfig;
  uint64_t flags = 2 + (closing_.accepting ? 4 : 0) + (closing_.returns ? 8 : 0);
  auto fresh = static_cast<ConfigId>(configs_.size());
  ConfigId id = config_table_.find_or_add(hash_items(work_, flags), fresh, [&](ConfigId other) {
    const Config& c = configs_[other];
    return c.count == work_.size() && c.accepting == closing_.accepting &&
           c.returns == closing_.returns &&
           std::equal(work_.begin(), work_.end(), items_.begin() + c.first);
  });
  if (id != fresh) return id;
  spend(1 + work_.size() / 4);
  closing_.first = static_cast<uint32_t>(items_.size());
  closing_.count = static_cast<uint32_t>(work_.size());
  for (const Item& item : work_) closing_.mixed |= states_[item.state].mixed;
  items_.insert(items_.end(), work_.begin(), work_.end());
  configs_.push_back(closing_);
  steps_.resize(configs_.size() * classes_, kUnset);
  return id;
}

ConfigId Automaton::start_config() {
  work_.clear();
  closing_ = {};
  closing_.accepting = nfa_.rules[0].nullable;
  std::vector<Position> start{nfa_.rules[0].start};
  add_item({intern_state(start), kRootContext});
  close_calls();
  return intern_config();
}

ConfigId Automaton::item_config(Item item) {
  work_.clear();
  closing_ = {};
  add_item(item);
  return intern_config();
}

ConfigId Automaton::local_config(StateId state) { return item_config({state, kUnknownContext}); }

StateId Automaton::plain_step(StateId id) {
  if (StateId known = plain_steps_[id]; known != kUnset)
    return known == kUnset - 1 ? kNoState : known;
  set_.clear();
  const State s = states_[id];
  for (uint32_t i = 0; i < s.count; ++i)
    if (Position to = nfa_.plain_to[positions_[s.first + i]]; to != kNoPosition) set_.push_back(to);
  StateId next = set_.empty() ? kNoState : intern_state(set_);
  plain_steps_[id] = next == kNoState ? kUnset - 1 : next;
  return next;
}

size_t Automaton::plain_length(StateId state) {
  constexpr size_t kMost = 32;
  std::vector<StateId> path{state};
  while (path.size() <= kMost) {
    StateId next = plain_step(path.back());
    if (next == kNoState) break;
    if (std::find(path.begin(), path.end(), next) != path.end()) return SIZE_MAX;
    path.push_back(next);
  }
  return path.size() - 1;
}

ConfigId Automaton::return_config(ContextId context) {
  if (contexts_[context].after != kUnset) return contexts_[context].after;
  work_.clear();
  returned_.clear();
  closing_ = {};
  add_entries(context);
  close_returns();
  close_calls();
  return contexts_[context].after = intern_config();
}

ConfigId Automaton::next_config(ConfigId config, uint32_t cls) {
  work_.clear();
  returned_.clear();
  closing_ = {};
  Config c = configs_[config];
  for (uint32_t i = 0; i < c.count; ++i) {
    Item item = items_[c.first + i];
    StateId next = next_state(item.state, cls);
    if (next != kNoState) add_item({next, item.context});
  }
  close_returns();
  close_calls();
  ConfigId next = intern_config();
  return steps_[config * classes_ + cls] = next;
}

int Automaton::forced_byte(ConfigId id) {
  if (configs_[id].accepting) return -1;
  int found = -1;
  for (size_t cls = 0; cls < classes_; ++cls) {
    uint8_t byte = nfa_.class_byte[cls];
    if (step(id, byte) == kDeadConfig) continue;
    bool single = cls + 1 == classes_ ? byte == 255 : nfa_.class_byte[cls + 1] == byte + 1;
    if (found >= 0 || !single) return -1;
    found = byte;
  }
  return found;
}

}  // namespace tokamak::grammar
