#pragma once
// Finite automata over characters: what regular expressions and the rules of JSON strings and
// numbers become before they are part of a grammar.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/code_set.h"
#include "text/grammar/ir.h"

namespace tokamak::grammar {

// Nondeterministic; state 0 is the first. Functions that build one throw Error(kOutOfRange) beyond
// kMaxFsmStates.
struct CharFsm {
  struct Edge {
    char32_t lo, hi;
    uint32_t to;
  };
  std::vector<std::vector<Edge>> edges;
  std::vector<std::vector<uint32_t>> empty;  // edges that consume nothing
  std::vector<uint8_t> final;

  uint32_t add_state(bool is_final = false);
  void add_edge(uint32_t from, const CodeSet& set, uint32_t to);
  size_t size() const { return edges.size(); }
  bool matches(std::u32string_view text) const;
  bool matches(std::string_view utf8) const;  // false if it is not valid UTF-8
};
inline constexpr size_t kMaxFsmStates = 20'000, kMaxFsmEdges = 200'000;

CharFsm fsm_of_texts(const std::vector<std::string>& texts);  // any of them
CharFsm fsm_of_length(uint32_t min, uint32_t max);            // max may be kUnbounded
CharFsm fsm_without(std::string_view text);                   // all texts that do not contain it
CharFsm without_empty(const CharFsm& fsm);
CharFsm deterministic(const CharFsm& fsm);
CharFsm complement(const CharFsm& fsm);  // all other texts
CharFsm intersect(const CharFsm& a, const CharFsm& b);
CharFsm unite(const CharFsm& a, const CharFsm& b);
bool is_empty(const CharFsm& fsm);    // matches no text
bool is_endless(const CharFsm& fsm);  // every beginning of a text is that of a longer one, too

// As an expression over the raw text.
ExprId expr_of(Ir& ir, const CharFsm& fsm);
// As an expression over the text inside a JSON string: quotes, backslashes and control characters
// are escaped, nothing else is. Python's strings may have single quotes.
ExprId json_expr_of(Ir& ir, const CharFsm& fsm, char quote = '"');

}  // namespace tokamak::grammar
