#pragma once
// A suffix automaton over token texts: it knows every sequence of tokens that occurred in them and
// how often.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tokamak {

// Grows by one token at a time in amortised constant time; about 150 bytes per token. The strings
// that end at the same places of the texts share a state; its link is the state of their longest
// suffix that also ends elsewhere. Plain data, one thread.
class SuffixAutomaton {
 public:
  SuffixAutomaton();
  static constexpr int32_t kRoot = 0;

  void begin_text() { last_ = kRoot; }
  void append(int32_t token);
  int64_t tokens() const { return tokens_; }

  // The state of the text so far, and of its longest suffix that also occurred before.
  int32_t last() const { return last_; }
  int32_t link(int32_t state) const { return states_[static_cast<size_t>(state)].link; }
  int32_t length(int32_t state) const { return states_[static_cast<size_t>(state)].length; }
  int32_t next(int32_t state, int32_t token) const;  // -1: the token never followed

  // The longest suffix of `ids` that occurred in the texts.
  struct Match {
    int32_t state = kRoot, length = 0;
  };
  Match match(std::span<const int32_t> ids) const;

  // The token that followed a state most often; of equals, the one that was first seen last.
  struct Follower {
    int32_t token = -1, state = -1;
    double share = 0;  // of all occurrences that were followed by a token
  };
  Follower likeliest(int32_t state) const;
  // The `most` tokens that followed a state most often, those first.
  void followers(int32_t state, size_t most, std::vector<Follower>& out) const;

 private:
  struct State {
    int32_t length = 0, link = -1, edge = -1, count = 0;
  };
  struct Edge {
    int32_t from, token, to, next;
  };
  int32_t add_state(int32_t length, int32_t link);
  int32_t find_edge(int32_t from, int32_t token) const;  // -1: none
  void add_edge(int32_t from, int32_t token, int32_t to);
  void grow();
  int32_t split(int32_t from, int32_t token, int32_t to);  // the state of from's strings + token
  size_t home(int32_t from, int32_t token) const;

  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<int32_t> table_;  // edge by hash of (from, token); -1: free
  int32_t last_ = kRoot;
  int64_t tokens_ = 0;
};

}  // namespace tokamak
