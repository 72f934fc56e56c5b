#include "text/grammar/state_mask.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

namespace tokamak::grammar {
namespace {

constexpr size_t kLargePart = 48;        // nodes of a part of a trie that is not copied
constexpr size_t kMaxPlainConfigs = 64;  // visited to find out which plain tokens are allowed

// Calls visit(node, config) for the nodes of [begin, end) that can be reached from `start`, the
// config before nodes of depth `depth`. `path` is scratch space.
template <class Visit>
void walk(Automaton& automaton, const Trie& trie, size_t begin, size_t end, size_t depth,
          ConfigId start, std::vector<ConfigId>& path, Visit&& visit) {
  path.resize(trie.deepest + 1);
  path[0] = start;
  for (size_t i = begin; i < end;) {
    size_t d = trie.depth[i] - depth;
    ConfigId next = automaton.step(path[d], trie.byte[i]);
    if (next == kDeadConfig) {
      i = trie.end[i];
      continue;
    }
    path[d + 1] = next;
    visit(i, next);
    ++i;
  }
}

// The same for a whole trie. Its roots are far from each other in memory, and most of them cannot
// be reached.
template <class Visit>
void walk(Automaton& automaton, const Trie& trie, ConfigId start, std::vector<ConfigId>& path,
          Visit&& visit) {
  for (size_t r = 0; r < trie.roots.size(); ++r) {
    ConfigId next = automaton.step(start, trie.root_bytes[r]);
    if (next == kDeadConfig) continue;
    size_t node = trie.roots[r];
    visit(node, next);
    walk(automaton, trie, node + 1, trie.end[node], 1, next, path, visit);
  }
}

struct CharacterBytes {  // of characters of one kind
  uint8_t count;
  std::pair<uint8_t, uint8_t> ranges[4];
};
constexpr std::pair<uint8_t, uint8_t> kTail{0x80, 0xBF};
constexpr CharacterBytes kPlain[] = {
    {1, {{0x20, 0x21}}},
    {1, {{0x23, 0x5B}}},
    {1, {{0x5D, 0x7F}}},
    {2, {{0xC2, 0xDF}, kTail}},
    {3, {{0xE0, 0xE0}, {0xA0, 0xBF}, kTail}},
    {3, {{0xE1, 0xEC}, kTail, kTail}},
    {3, {{0xED, 0xED}, {0x80, 0x9F}, kTail}},
    {3, {{0xEE, 0xEF}, kTail, kTail}},
    {4, {{0xF0, 0xF0}, {0x90, 0xBF}, kTail, kTail}},
    {4, {{0xF1, 0xF3}, kTail, kTail, kTail}},
    {4, {{0xF4, 0xF4}, {0x80, 0x8F}, kTail, kTail}},
};
constexpr CharacterBytes kWord[] = {{1, {{'0', '9'}}}, {1, {{'A', 'Z'}}}, {1, {{'a', 'z'}}}};

// Finds how many characters of these kinds a config allows, whatever they are.
class Reach {
 public:
  Reach(Automaton& automaton, std::span<const CharacterBytes> kinds)
      : automaton_(automaton), kinds_(kinds) {}

  size_t longest(ConfigId start) {
    std::vector<ConfigId> known{start};
    for (size_t length = 0, at = 0; length < 32; ++length) {
      size_t level_end = known.size();
      for (; at < level_end; ++at) {
        next_.clear();
        for (const CharacterBytes& kind : kinds_)
          if (!follow(kind, 0, known[at])) return length;
        for (ConfigId next : next_)
          if (std::find(known.begin(), known.end(), next) == known.end()) known.push_back(next);
      }
      if (known.size() == level_end) return SIZE_MAX;  // nothing new: any number
      if (known.size() > kMaxPlainConfigs) return length + 1;
    }
    return 32;
  }

 private:
  // A config that only returns allows no character by itself.
  bool follow(const CharacterBytes& kind, uint8_t at, ConfigId config) {
    if (automaton_.config(config).count == 0) return false;
    const Nfa& nfa = automaton_.nfa();
    auto [lo, hi] = kind.ranges[at];
    for (size_t cls = nfa.class_of[lo]; cls <= nfa.class_of[hi]; ++cls) {
      uint8_t byte = std::max(lo, nfa.class_byte[cls]);
      ConfigId next = automaton_.step(config, byte);
      if (next == kDeadConfig) return false;
      if (at + 1 < kind.count) {
        if (!follow(kind, static_cast<uint8_t>(at + 1), next)) return false;
      } else if (std::find(next_.begin(), next_.end(), next) == next_.end()) {
        next_.push_back(next);
      }
    }
    return true;
  }
  Automaton& automaton_;
  const std::span<const CharacterBytes> kinds_;
  std::vector<ConfigId> next_;
};

// What is left of a token after its first bytes. Its first eight bytes decide most comparisons.
struct Rest {
  Rest(std::string_view rest, int32_t token) : text(rest), id(token) {
    for (size_t i = 0; i < 8; ++i)
      first = first << 8 | (i < rest.size() ? static_cast<uint8_t>(rest[i]) : 0);
  }
  bool operator<(const Rest& o) const { return first != o.first ? first < o.first : text < o.text; }
  uint64_t first = 0;
  std::string_view text;
  int32_t id;
};

void collect_rests(const Vocabulary& vocabulary, const Trie& trie, size_t node,
                   std::vector<Rest>& rests) {
  size_t base = trie.depth[node] + size_t{1};
  for (size_t i = node + 1; i < trie.end[node]; ++i)
    for (int32_t id = trie.token[i]; id >= 0; id = vocabulary.next_same(id))
      rests.emplace_back(vocabulary.bytes(id).substr(base), id);
}

void build_rests(std::vector<Rest>& rests, StateMask& mask) {
  std::sort(rests.begin(), rests.end());
  for (size_t i = 0; i < rests.size(); ++i) {
    if (i == 0 || rests[i].text != rests[i - 1].text) {
      mask.rests.add(rests[i].text, static_cast<int32_t>(mask.rest_first.size()));
      mask.rest_first.push_back(static_cast<uint32_t>(i));
    }
    mask.rest_tokens.push_back(rests[i].id);
  }
  mask.rest_first.push_back(static_cast<uint32_t>(rests.size()));
  mask.rests.finish();
}

// The groups of tokens that a state allows as a whole.
struct WholeGroups {
  size_t plain = 0, words = 0;  // the last of them; 0: none
  bool have(size_t trie) const {
    return trie > kLengthGroups ? trie - kLengthGroups <= words : trie > 0 && trie <= plain;
  }
  void allow(const Vocabulary& vocabulary, std::span<uint32_t> mask) const {
    auto unite = [&](std::span<const uint32_t> other) {
      for (size_t i = 0; i < other.size(); ++i) mask[i] |= other[i];
    };
    if (plain > 0) unite(vocabulary.plain_mask(plain));
    if (words > plain) unite(vocabulary.word_mask(words));
  }
};

WholeGroups whole_groups(Automaton& automaton, StateId state) {
  auto last_group = [](size_t longest) {
    size_t group = 0;
    while (group < kLengthGroups && longest_of_group(group + 1) <= longest) ++group;
    return group;
  };
  ConfigId local = automaton.local_config(state);
  size_t longest = automaton.plain_length(state);
  if (longest == 0) longest = Reach(automaton, kPlain).longest(local);
  WholeGroups out;
  out.plain = out.words = last_group(longest);
  if (out.plain == 0) out.words = last_group(Reach(automaton, kWord).longest(local));
  return out;
}

}  // namespace

void allow_item(Automaton& automaton, const Vocabulary& vocabulary, Automaton::Item item,
                std::span<uint32_t> mask) {
  WholeGroups whole = whole_groups(automaton, item.state);
  whole.allow(vocabulary, mask);
  ConfigId start = automaton.item_config(item);
  std::vector<ConfigId> path;
  for (size_t index = 0; index < Vocabulary::kTries; ++index) {
    if (whole.have(index)) continue;
    const Trie& trie = vocabulary.trie(index);
    walk(automaton, trie, start, path, [&](size_t i, ConfigId) {
      for (int32_t id = trie.token[i]; id >= 0; id = vocabulary.next_same(id)) set_bit(mask, id);
    });
  }
}

size_t StateMask::bytes() const {
  return sizeof(*this) + (ids.size() + bits.size() + rest_tokens.size() + rest_first.size()) * 4 +
         parts.size() * sizeof(Part) + rests.size() * 11;
}

void StateMask::allow(const Vocabulary& vocabulary, std::span<uint32_t> mask) const {
  WholeGroups{plain_group, word_group}.allow(vocabulary, mask);
  for (size_t i = 0; i < bits.size(); ++i) mask[i] |= bits[i];
  for (int32_t id : ids) set_bit(mask, id);
}

StateMask state_mask(Automaton& automaton, const Vocabulary& vocabulary, StateId state) {
  StateMask mask;
  ConfigId start = automaton.local_config(state);
  WholeGroups whole = whole_groups(automaton, state);
  mask.plain_group = whole.plain;
  mask.word_group = whole.words;
  std::vector<Rest> rests;
  std::vector<ConfigId> path;
  for (size_t index = 0; index < Vocabulary::kTries; ++index) {
    if (whole.have(index)) continue;
    const Trie& trie = vocabulary.trie(index);
    walk(automaton, trie, start, path, [&](size_t i, ConfigId config) {
      const Automaton::Config& c = automaton.config(config);
      if (trie.token[i] >= 0)
        for (int32_t id = trie.token[i]; id >= 0; id = vocabulary.next_same(id))
          mask.ids.push_back(id);
      if (!c.returns || trie.end[i] == i + 1) return;
      if (trie.end[i] - i > kLargePart)
        mask.parts.push_back({static_cast<uint32_t>(index), static_cast<uint32_t>(i)});
      else
        collect_rests(vocabulary, trie, i, rests);
    });
  }
  build_rests(rests, mask);
  if (mask.ids.size() > vocabulary.words()) {
    mask.bits.resize(vocabulary.words());
    for (int32_t id : mask.ids) set_bit(mask.bits, id);
    mask.ids.clear();
  }
  mask.ids.shrink_to_fit();
  return mask;
}

void allow_returns(Automaton& automaton, const Vocabulary& vocabulary, const StateMask& state,
                   ConfigId config, std::span<uint32_t> mask) {
  if (automaton.config(config).count == 0) return;
  std::vector<ConfigId> path;
  for (const StateMask::Part& part : state.parts) {
    const Trie& trie = vocabulary.trie(part.trie);
    walk(automaton, trie, part.node + 1, trie.end[part.node], trie.depth[part.node] + size_t{1},
         config, path, [&](size_t i, ConfigId) {
           for (int32_t id = trie.token[i]; id >= 0; id = vocabulary.next_same(id))
             set_bit(mask, id);
         });
  }
  walk(automaton, state.rests, config, path, [&](size_t i, ConfigId) {
    if (state.rests.token[i] < 0) return;
    auto r = static_cast<size_t>(state.rests.token[i]);
    for (uint32_t k = state.rest_first[r]; k < state.rest_first[r + 1]; ++k)
      set_bit(mask, state.rest_tokens[k]);
  });
}

}  // namespace tokamak::grammar
