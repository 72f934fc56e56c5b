#pragma once
// Expressions to automata, before anything is trimmed.
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "text/grammar/nfa.h"

namespace tokamak::grammar {

// Owner: lower(); one thread.
class NfaBuilder {
 public:
  explicit NfaBuilder(const Ir& ir) : ir_(ir) {}
  void build();  // the root and the rules that it reaches
  // The automaton of a rule of the IR; nullptr: it has none of its own, as it is short or not used.
  const RuleId* automaton_of(RuleId rule) const {
    auto it = reached_.find(rule);
    return it == reached_.end() ? nullptr : &it->second;
  }

  template <class T>
  struct Edge {
    Position from;
    T edge;
  };
  std::vector<Edge<Nfa::ByteEdge>> bytes;
  std::vector<Edge<Nfa::RuleEdge>> calls;
  std::vector<Edge<Position>> empty;
  std::vector<uint8_t> final;
  std::vector<Position> plain_to;
  std::vector<uint8_t> mixed;  // Nfa::mixed, of plain characters
  std::vector<RuleId> rule_of;
  std::vector<Nfa::Rule> rules;  // in the order in which they were reached

 private:
  Position position();
  [[noreturn]] void too_large(std::string_view what) const;
  void add_byte(Position from, Position to, uint8_t byte);
  void connect(Position from, Position to) { empty.push_back({from, to}); }
  RuleId reach(RuleId rule);
  bool inlined(RuleId rule) const;

  // Adds what matches the expression after `from`; returns the position after it.
  Position add(ExprId id, Position from);
  Position add(const Bytes& e, Position from);
  Position add(const OneOf& e, Position from);
  Position add(const Class& e, Position from);
  Position add(const Seq& e, Position from);
  Position add(const Alt& e, Position from);
  Position add(const Repeat& e, Position from);
  Position add(const Ref& e, Position from);
  Position add(const Graph& e, Position from);
  using Tails = std::map<std::vector<std::pair<uint8_t, uint8_t>>, Position>;
  void add_set(const CodeSet& set, Position from, Position to);
  void add_range(CodeRange range, Position from, Position to, Tails& tails);

  const Ir& ir_;
  std::map<RuleId, RuleId> reached_;  // rule of the IR -> rule of the automata
  std::vector<RuleId> waiting_;
  RuleId current_ = 0;
  size_t work_ = 0;
};

}  // namespace tokamak::grammar
