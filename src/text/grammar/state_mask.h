#pragma once
// The tokens that a state allows, as far as the state alone decides it.
#include <cstdint>
#include <vector>

#include "text/grammar/automaton.h"
#include "text/grammar/vocabulary.h"

namespace tokamak::grammar {

// A token is allowed, is not, or *returns*: the rule of the state ends inside of it, and the rest
// depends on the context. Immutable.
struct StateMask {
  // All plain tokens and all words of groups up to these are allowed (vocabulary.h).
  size_t plain_group = 0, word_group = 0;
  std::vector<int32_t> ids;    // allowed too, if few
  std::vector<uint32_t> bits;  // or many
  // What is left of tokens that return: large parts of the vocabulary's tries, and the rest as a
  // trie of its own.
  struct Part {
    uint32_t trie, node;
  };
  std::vector<Part> parts;
  Trie rests;
  std::vector<int32_t> rest_tokens;  // of rests.token r: [rest_first[r], rest_first[r + 1])
  std::vector<uint32_t> rest_first;

  size_t bytes() const;
  void allow(const Vocabulary& vocabulary, std::span<uint32_t> mask) const;
};

StateMask state_mask(Automaton& automaton, const Vocabulary& vocabulary, StateId state);

// Adds the tokens that one item of a config allows, without a StateMask.
void allow_item(Automaton& automaton, const Vocabulary& vocabulary, Automaton::Item item,
                std::span<uint32_t> mask);

// Adds the tokens that return from a state with this mask and may go on in `config`.
void allow_returns(Automaton& automaton, const Vocabulary& vocabulary, const StateMask& state,
                   ConfigId config, std::span<uint32_t> mask);

}  // namespace tokamak::grammar
