#pragma once
// A token mask that ends a model's thoughts after a number of tokens.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/client.h"
#include "serve/grammar_mask.h"
#include "text/tokenizer.h"

namespace tokamak {

struct ThoughtBudgetOptions {
  int32_t tokens = 0;  // of thoughts, without the marks
  std::shared_ptr<const Tokenizer> tokenizer;
  int32_t choices = 1;
  Thinking thinking = Thinking::kMaybe;  // not kNone
  std::string open_tag = "<think>", close_tag = "</think>";
  std::string forced;                // what ends the thoughts; it begins with the closing tag
  bool again = false;                // thoughts may begin anywhere in the answer, more than once
  std::shared_ptr<TokenMask> inner;  // of the rest of the answer; may be nullptr
};

// Owner: one request; one thread at a time. Inside of thoughts that have used up the budget only
// the next token of the forced text is allowed. A character whose bytes are incomplete is finished
// first.
class ThoughtBudget final : public TokenMask {
 public:
  explicit ThoughtBudget(ThoughtBudgetOptions options);
  void allow(int32_t choice, std::span<const int32_t> answer, std::span<const int32_t> drafts,
             std::span<uint32_t> allowed) override;
  void force(int32_t choice, std::span<const int32_t> answer,
             std::vector<int32_t>& forced) override;

 private:
  enum class Phase : uint8_t { kBefore, kThinking, kForced, kAfter };
  struct Progress {
    Phase phase = Phase::kBefore;
    std::string tail = {};  // bytes that may be the beginning of a tag
    std::string cut = {};   // bytes of an incomplete character
    int32_t thoughts = 0;   // tokens
    size_t forced = 0;      // tokens of the forced text that were read
    std::vector<int32_t> ids = {};
  };
  Progress start() const;
  void read(Progress& p, int32_t id) const;
  void follow(Progress& p, std::span<const int32_t> answer) const;
  const Progress& after_drafts(const Progress& p, std::span<const int32_t> drafts);
  bool spent(const Progress& p) const;          // the next token must be of the forced text
  size_t begun(const std::string& tail) const;  // tokens of the forced text that it consists of

  const ThoughtBudgetOptions options_;
  const std::vector<int32_t> end_;  // the tokens of the forced text
  std::vector<Progress> choices_;
  Progress ahead_;  // after the answer and drafts of the row before
};

}  // namespace tokamak
