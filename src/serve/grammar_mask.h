#pragma once
// A grammar as the token mask of a request.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "serve/answer_mask.h"
#include "text/grammar/matcher.h"
#include "text/tokenizer.h"

namespace tokamak {

enum class Thinking : uint8_t {
  kNone,
  kMaybe,  // if the answer begins with the opening tag
  kOpen,   // the prompt ends with the opening tag
};

struct GrammarMaskOptions {
  std::shared_ptr<const grammar::Grammar> grammar;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<int32_t> end_ids;  // end the answer; allowed where the grammar may end
  int32_t choices = 1;
  // The answer does not end before it has this many tokens, unless the grammar allows nothing else.
  int32_t min_tokens = 0;
  // The grammar applies after the closing tag and the white space that follows it. Until then only
  // the end is forbidden.
  Thinking thinking = Thinking::kNone;
  std::string open_tag = "<think>", close_tag = "</think>";
};

struct GrammarProgress {
  enum class Phase : uint8_t { kBegin, kThinking, kGap, kText };
  Phase phase;
  std::string tail = {};  // the last bytes of the thinking, where the closing tag may have begun
  size_t gap = 0;         // tokens of white space after the thinking
  std::vector<int32_t> ids = {};  // tokens read so far
  size_t before = 0;              // number of them before the grammar's text
  grammar::Matcher matcher;
};

// Owner: one request; one thread at a time.
class GrammarMask final : public AnswerMask<GrammarProgress> {
 public:
  explicit GrammarMask(GrammarMaskOptions options);
  void force(int32_t choice, std::span<const int32_t> answer,
             std::vector<int32_t>& forced) override;

 private:
  using Progress = GrammarProgress;
  using Phase = Progress::Phase;
  Progress start() const override;
  bool read(Progress& p, int32_t id) const override;
  void think(Progress& p, int32_t id) const;
  void fill(Progress& p, std::span<uint32_t> allowed) const override;
  bool ends_answer(const Progress& p, int32_t id) const override;
  bool rewind(Progress& p, size_t count) const override;

  const GrammarMaskOptions options_;
  const int32_t open_id_;                // the opening tag, or -1
  std::vector<int32_t> gap_ids_;         // line breaks
  std::vector<uint32_t> thinking_mask_;  // all tokens but the ends; empty: there is no thinking
};

// The ids that end a constrained answer: the model's own, and those of `stop_ids` that have no
// text. Throws Error(kUnsupported) if there is none.
std::vector<int32_t> grammar_end_ids(const Tokenizer& tokenizer,
                                     const std::vector<int32_t>& stop_ids);

}  // namespace tokamak
