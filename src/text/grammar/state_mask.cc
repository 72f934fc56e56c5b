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

// Finds the tokens that may follow from a config. What is found goes to a Sink:
//   allow(id): the token may follow.
//   returns(id, offset): what follows the token's first bytes depends on the context.
//   part(trie, node): the same for all tokens below a node.
template <class Sink>
class TokenWalk {
 public:
  TokenWalk(Automaton& automaton, const Vocabulary& vocabulary, const WholeGroups& whole,
            ConfigId start, Sink& sink)
      : automaton_(automaton), vocabulary_(vocabulary), whole_(whole), start_(start), sink_(sink) {}

  void run() {
    const bool plain = whole_.plain > 0;
    if (plain && (automaton_.config(start_).mixed & kPlainCharacter) != 0) {
      for (size_t byte = 0; byte < 256; ++byte) by_bytes(static_cast<uint8_t>(byte));
      return;
    }
    const TokenShapes& shapes = plain ? vocabulary_.plain_shapes() : vocabulary_.word_shapes();
    for (uint32_t root : shapes.roots()) {
      if (by_shapes(shapes, root, plain ? whole_.plain : whole_.words)) continue;
      const TokenShapes::Node& node = shapes.node(root);
      if (node.symbol == 0) {
        by_bytes(node.byte);
        continue;
      }
      for (size_t byte = 0; byte < 256; ++byte)
        if (may_begin(node.symbol, static_cast<uint8_t>(byte)))
          by_bytes(static_cast<uint8_t>(byte));
    }
    for (int32_t id : shapes.others()) by_token(id, 0, start_);
  }

 private:
  // More are looked at byte by byte, in tries that hold what they have in common, and, if they
  // return, in their context.
  static constexpr size_t kFewTokens = 64, kFewReturns = 1024;

  // False: the characters of a symbol would have to be told apart in many tokens. What was found
  // until then holds.
  bool by_shapes(const TokenShapes& shapes, size_t root, size_t whole_groups) {
    path_.resize(std::max(path_.size(), shapes.deepest() + 1));
    path_[0] = start_;
    const size_t end = shapes.node(root).end;
    for (size_t i = root; i < end;) {
      const TokenShapes::Node& node = shapes.node(i);
      const ConfigId from = path_[node.depth];
      if ((automaton_.config(from).mixed & node.symbol) != 0) {
        auto all = shapes.tokens_from(i);
        if (all.size() > kFewTokens) return false;
        for (int32_t id : all) by_token(id, shapes.offset(vocabulary_.bytes(id), node.depth), from);
        i = node.end;
        continue;
      }
      const ConfigId next = automaton_.step(from, node.byte);
      if (next == kDeadConfig) {
        i = node.end;
        continue;
      }
      path_[node.depth + size_t{1}] = next;
      if (!node.symbols_only || length_group(node.depth + size_t{1}) > whole_groups)
        for (int32_t id : shapes.tokens(i)) sink_.allow(id);
      if (Sink::kReturns && automaton_.config(next).returns) {
        auto below = shapes.tokens_below(i);
        if (below.size() > (shapes.node(root).symbol == 0 ? kFewTokens : kFewReturns)) return false;
        for (int32_t id : below)
          sink_.returns(id, shapes.offset(vocabulary_.bytes(id), node.depth + size_t{1}));
      }
      ++i;
    }
    return true;
  }

  // Reads the token from this byte on.
  void by_token(int32_t id, size_t from, ConfigId config) {
    std::string_view text = vocabulary_.bytes(id);
    for (size_t i = from; i < text.size() && config != kDeadConfig; ++i) {
      if (Sink::kReturns && i > from && automaton_.config(config).returns) sink_.returns(id, i);
      config = automaton_.step(config, static_cast<uint8_t>(text[i]));
    }
    if (config != kDeadConfig) sink_.allow(id);
  }

  void by_bytes(uint8_t byte) {
    const ConfigId first = automaton_.step(start_, byte);
    if (first == kDeadConfig) return;
    for (Vocabulary::Root root : vocabulary_.roots(byte)) {
      if (whole_.have(root.trie)) continue;
      const Trie& trie = vocabulary_.trie(root.trie);
      auto visit = [&](size_t i, ConfigId config) {
        for (int32_t id = trie.token[i]; id >= 0; id = vocabulary_.next_same(id)) sink_.allow(id);
        if (!Sink::kReturns || !automaton_.config(config).returns || trie.end[i] == i + 1) return;
        sink_.part(root.trie, static_cast<uint32_t>(i));
      };
      visit(root.node, first);
      walk(automaton_, trie, root.node + size_t{1}, trie.end[root.node], 1, first, path_, visit);
    }
  }

  Automaton& automaton_;
  const Vocabulary& vocabulary_;
  const WholeGroups whole_;
  const ConfigId start_;
  Sink& sink_;
  std::vector<ConfigId> path_;
};

struct ToMask {
  static constexpr bool kReturns = false;
  std::span<uint32_t> mask;
  void allow(int32_t id) { set_bit(mask, id); }
  void returns(int32_t, size_t) {}
  void part(uint32_t, uint32_t) {}
};

struct ToStateMask {
  static constexpr bool kReturns = true;
  const Vocabulary& vocabulary;
  StateMask& mask;
  std::vector<Rest> rests;

  void allow(int32_t id) { mask.ids.push_back(id); }
  void returns(int32_t id, size_t offset) {
    rests.emplace_back(vocabulary.bytes(id).substr(offset), id);
  }
  void part(uint32_t index, uint32_t node) {
    const Trie& trie = vocabulary.trie(index);
    if (trie.end[node] - node > kLargePart) {
      mask.parts.push_back({index, node});
      return;
    }
    for (size_t i = node + size_t{1}; i < trie.end[node]; ++i)
      for (int32_t id = trie.token[i]; id >= 0; id = vocabulary.next_same(id))
        returns(id, trie.depth[node] + size_t{1});
  }
};

}  // namespace

void allow_item(Automaton& automaton, const Vocabulary& vocabulary, Automaton::Item item,
                std::span<uint32_t> mask) {
  WholeGroups whole = whole_groups(automaton, item.state);
  whole.allow(vocabulary, mask);
  ToMask sink{mask};
  TokenWalk(automaton, vocabulary, whole, automaton.item_config(item), sink).run();
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
  ToStateMask sink{vocabulary, mask, {}};
  TokenWalk(automaton, vocabulary, whole, start, sink).run();
  build_rests(sink.rests, mask);
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
  walk(automaton, state.rests, 0, state.rests.size(), 0, config, path, [&](size_t i, ConfigId) {
    if (state.rests.token[i] < 0) return;
    auto r = static_cast<size_t>(state.rests.token[i]);
    for (uint32_t k = state.rest_first[r]; k < state.rest_first[r + 1]; ++k)
      set_bit(mask, state.rest_tokens[k]);
  });
}

}  // namespace tokamak::grammar
