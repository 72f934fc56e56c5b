#pragma once
// Lookahead decoding: guesses of the next tokens are improved by every step (Jacobi iteration), and
// the n-grams that arise are kept in a pool and proposed where they fit.
#include <unordered_map>

#include "engine/draft/drafter.h"

namespace tokamak {

struct LookaheadOptions {
  int32_t window = 8;      // guesses that a step improves
  int32_t ngram = 3;       // tokens of an n-gram, at least 2
  int32_t candidates = 4;  // n-grams that are kept for a first token
};

// A proposal is a chain: the tokens of an n-gram that begins with the last token, if the pool has
// one, then the guesses for the positions after it. Other n-grams are branches, if allowed. The
// step says what the model chooses after each of them. What it chooses after wrong ones are the
// guesses of the next step; together with the tokens before them they are n-grams. Those of the
// text itself are in the pool too.
class LookaheadDrafter final : public Drafter {
 public:
  explicit LookaheadDrafter(const LookaheadOptions& options) : options_(options) {}
  void propose(std::span<DraftRequest> requests) override;
  void verified(uint64_t sequence, std::span<const DraftToken> drafts,
                std::span<const int32_t> choices, int32_t accepted) override;
  void finish(uint64_t sequence, std::string_view salt, std::span<const int32_t> ids,
              int32_t prompt_length) override;
  int32_t strengths() const override { return 2; }  // guesses only; an n-gram first

 private:
  struct Text {
    // By first token: the n - 1 tokens that follow it, latest last; all n-grams in one list.
    std::unordered_map<int32_t, std::vector<int32_t>> pool;
    std::vector<int32_t> window;  // guesses for the positions after the committed tokens
    size_t read = 0;              // tokens of the text that are in the pool
  };
  void add_ngram(Text& text, std::span<const int32_t> tokens) const;
  void read_text(Text& text, std::span<const int32_t> ids) const;
  void propose(DraftRequest& request, const Text& text) const;

  LookaheadOptions options_;
  std::unordered_map<uint64_t, Text> texts_;
  std::vector<int32_t> ngram_, chain_;
};

}  // namespace tokamak
