#pragma once
// A pushdown automaton over bytes that is made deterministic while it runs.
//
// A *state* is a set of positions of one rule. A *context* says what follows a rule that was
// called: a set of (state to return to, its own context). A *config* is all that can be going on
// after some text: a set of (state, context). Calls of one rule at one byte share a context, so
// ambiguity does not multiply configs; a call at the end of a rule reuses the caller's context, so
// that lists written as recursion need no depth.
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "text/grammar/intern.h"
#include "text/grammar/nfa.h"

namespace tokamak::grammar {

using StateId = uint32_t;
using ContextId = uint32_t;
using ConfigId = uint32_t;
inline constexpr ConfigId kDeadConfig = 0;

// Owner: a grammar; one thread at a time. All ids live as long as the automaton. Stepping a known
// config costs a few nanoseconds, a new one about a microsecond.
class Automaton {
 public:
  explicit Automaton(const Nfa& nfa);

  struct Item {
    StateId state;
    ContextId context;
    bool operator==(const Item&) const = default;
  };
  struct Config {
    uint32_t first = 0, count = 0;  // items
    bool accepting = false;         // the text may end here
    bool returns = false;           // may leave the state of local_config
    uint8_t mixed = 0;              // Nfa::mixed of its positions
  };

  ConfigId start_config();
  // From this state, in a context that is not known. What the state calls is not part of it: a
  // config has items of its own for that.
  ConfigId local_config(StateId state);
  // The config of one item, without the rules that it calls.
  ConfigId item_config(Item item);
  // A lower bound on the number of arbitrary plain characters (vocabulary.h) that may follow in
  // this state. SIZE_MAX: no limit.
  size_t plain_length(StateId state);
  // After the rule that was called in this context has ended.
  ConfigId return_config(ContextId context);
  ConfigId step(ConfigId config, uint8_t byte) {
    uint32_t& next = steps_[config * classes_ + nfa_.class_of[byte]];
    return next != kUnset ? next : (next_config(config, nfa_.class_of[byte]));
  }
  const Config& config(ConfigId id) const { return configs_[id]; }
  std::span<const Item> items(ConfigId id) const {
    return std::span(items_).subspan(configs_[id].first, configs_[id].count);
  }
  // A rule of strings that must differ is being read.
  bool in_unique(ConfigId config) const {
    auto all = items(config);
    return std::any_of(all.begin(), all.end(), [&](const Item& item) {
      return nfa_.rules[states_[item.state].rule].unique;
    });
  }
  // The only byte that may follow, or -1.
  int forced_byte(ConfigId config);

  const Nfa& nfa() const { return nfa_; }
  size_t states() const { return states_.size(); }
  size_t bytes() const;
  // How many configs and states may be created until the next call; then Error(kOutOfRange).
  void set_budget(size_t budget) { budget_ = budget; }

 private:
  static constexpr uint32_t kUnset = UINT32_MAX, kNoState = UINT32_MAX;
  // In place of the state of a context's entry.
  static constexpr StateId kEndOfText = UINT32_MAX - 1, kUnknown = UINT32_MAX - 2;

  struct Call {
    RuleId rule;
    StateId after;
  };
  struct State {
    uint32_t first = 0, count = 0;            // positions
    uint32_t first_call = 0, call_count = 0;  // in calls_
    RuleId rule = 0;
    bool final = false, has_bytes = false, has_calls = false;
    uint8_t mixed = 0;
  };
  struct Context {
    uint32_t first = 0, count = 0;  // entries
    ConfigId after = kUnset;
  };
  struct Pending {
    uint32_t rank;
    RuleId rule;
    Item entry;
  };

  StateId intern_state(std::vector<Position>& positions);  // adds what follows without a byte
  StateId united(StateId a, StateId b);
  StateId next_state(StateId state, uint32_t cls);
  StateId plain_step(StateId state);  // after any plain character; kNoState: not the same for all
  void find_calls(StateId id);
  ContextId intern_context(std::vector<Item>& entries);
  ConfigId next_config(ConfigId config, uint32_t cls);
  ConfigId intern_config();  // of work_ and the flags of closing_
  void spend(size_t amount);

  // Closing work_: what returns, then what is called.
  void add_item(Item item);
  void add_entries(ContextId context);
  void close_returns();
  void close_calls();

  const Nfa& nfa_;
  const size_t classes_;
  size_t budget_ = SIZE_MAX;

  std::vector<State> states_;
  std::vector<Position> positions_;
  std::vector<Call> calls_;
  std::vector<uint32_t> state_steps_;  // [states, classes]
  std::vector<StateId> plain_steps_;   // by state, of plain_step()
  InternTable state_table_;
  std::vector<StateId> rule_starts_;

  std::vector<Context> contexts_;
  std::vector<Item> entries_;
  InternTable context_table_;

  std::vector<Config> configs_;
  std::vector<Item> items_;
  std::vector<uint32_t> steps_;  // [configs, classes]
  InternTable config_table_;

  // Scratch space.
  std::vector<Item> work_, call_entries_;
  std::vector<ContextId> returned_;
  std::vector<Pending> pending_;
  std::vector<Position> set_;
  std::vector<uint32_t> seen_;  // by position
  uint32_t mark_ = 0;
  Config closing_;
};

}  // namespace tokamak::grammar
