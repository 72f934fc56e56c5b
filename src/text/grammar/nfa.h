#pragma once
// The automata of a grammar: one per rule, over bytes, with edges that call other rules.
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/grammar/ir.h"

namespace tokamak::grammar {

using Position = uint32_t;
inline constexpr Position kNoPosition = UINT32_MAX;

// Immutable. Every position can reach the end of its rule, and no rule calls itself before it has
// consumed a byte.
struct Nfa {
  struct ByteEdge {
    Position to;
    uint8_t lo, hi;
  };
  struct RuleEdge {
    Position to;
    RuleId rule;
  };
  struct Rule {
    std::string name;
    Position start = 0;
    uint32_t rank = 0;  // a rule that begins with a call of another has the lower rank
    bool nullable = false;
    bool unique = false;  // Ir::Rule::unique
  };
  // By position p: entries [first[p], first[p + 1]).
  template <class T>
  struct Lists {
    std::vector<uint32_t> first;
    std::vector<T> all;
    std::span<const T> of(Position p) const {
      return std::span(all).subspan(first[p], first[p + 1] - first[p]);
    }
  };
  Lists<ByteEdge> bytes;
  Lists<RuleEdge> calls;
  Lists<Position> empty;  // edges that consume nothing
  std::vector<uint8_t> final;
  std::vector<Position>
      plain_to;  // where every plain character leads (vocabulary.h), or kNoPosition
  // Symbols (token_shapes.h) of which some characters lead elsewhere than others.
  std::vector<uint8_t> mixed;
  std::vector<RuleId> rule_of;
  std::vector<Rule> rules;  // rule 0 is the root

  // Bytes that no edge tells apart are in one class.
  std::array<uint8_t, 256> class_of{};
  std::vector<uint8_t> class_byte;  // a byte of each class
  size_t positions() const { return final.size(); }
  size_t memory_bytes() const;
};

// Throws Error(kInvalidArgument) for a grammar that matches no text or is left-recursive, and
// Error(kOutOfRange) for one that is too large.
Nfa lower(const Ir& ir);

}  // namespace tokamak::grammar
