#pragma once
// A token mask of fixed lists: allowed_token_ids and bad_words, with or without a grammar.
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/client.h"
#include "text/tokenizer.h"

namespace tokamak {

struct TokenFilterOptions {
  std::vector<int32_t> allowed;              // empty: all tokens
  std::vector<std::vector<int32_t>> banned;  // sequences that the answer must not contain
  std::shared_ptr<TokenMask> grammar;        // may be nullptr
  int64_t vocab = 0;
};

// The grammar takes precedence: where the lists leave none of its tokens, they are ignored.
// Owner: one request; one thread at a time.
class TokenFilter final : public TokenMask {
 public:
  explicit TokenFilter(TokenFilterOptions options);
  void allow(int32_t choice, std::span<const int32_t> answer, std::span<const int32_t> drafts,
             std::span<uint32_t> allowed) override;

 private:
  const TokenFilterOptions options_;
  std::vector<uint32_t> base_;    // allowed tokens without those that are banned by themselves
  std::vector<uint32_t> format_;  // what the grammar allows, in one call
};

// The token sequences of a text that must not occur: as the first word of an answer, and after a
// space. As in vLLM, other ways to write it in tokens are not covered. Throws
// Error(kInvalidArgument) if the text is empty.
std::vector<std::vector<int32_t>> banned_sequences(const Tokenizer& tokenizer,
                                                   const std::string& text);

}  // namespace tokamak
