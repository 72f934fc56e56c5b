#pragma once
// Suffix decoding: proposes what most often followed the longest repeated suffix, in the sequence
// itself and in earlier answers.
#include <map>
#include <string>
#include <unordered_map>

#include "engine/draft/drafter.h"
#include "engine/draft/suffix_automaton.h"

namespace tokamak {

struct SuffixOptions {
  int32_t depth = 24;      // longest suffix that is looked up in earlier answers
  double factor = 1.0;     // a match of n tokens proposes at most factor * n
  double min_share = 0.1;  // a proposal ends when its estimated probability is less
  int64_t answers = 10000, answer_tokens = 1 << 18;  // earlier answers that are kept; 0: none
};

// An automaton per running sequence (prompt and answer), and for each salt two of earlier answers:
// when the younger one is full, it replaces the older one. At most `answer_tokens` tokens of
// answers are kept, with about 150 bytes each.
class SuffixDrafter final : public Drafter {
 public:
  explicit SuffixDrafter(const SuffixOptions& options) : options_(options) {}
  void propose(std::span<DraftRequest> requests) override;
  void finish(uint64_t sequence, std::string_view salt, std::span<const int32_t> ids,
              int32_t prompt_length) override;
  int32_t strengths() const override { return kMostDraftStrengths; }
  int64_t kept_tokens() const;  // of earlier answers

 private:
  struct Answers {
    SuffixAutomaton young, old;
    int64_t count = 0;  // answers in `young`
    uint64_t used = 0;
  };
  struct Proposal {
    std::vector<DraftToken> tokens;
    int32_t match = 0;
    double score = 0;  // expected number of accepted tokens
    const SuffixAutomaton* text = nullptr;
    std::vector<int32_t> states;  // before each token
  };
  void follow(const SuffixAutomaton& text, SuffixAutomaton::Match from, int32_t most);
  void add_branches(DraftRequest& request);
  void drop_oldest();

  SuffixOptions options_;
  std::unordered_map<uint64_t, SuffixAutomaton> running_;
  std::map<std::string, Answers, std::less<>> answers_;  // by salt
  uint64_t clock_ = 0;
  Proposal best_, now_;
  std::vector<SuffixAutomaton::Follower> followers_;
  std::vector<int32_t> path_;
};

}  // namespace tokamak
