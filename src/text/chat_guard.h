#pragma once
// Keeps the content of chat messages from becoming control tokens: "<|im_end|>" written by a user
// is text, the same characters written by the chat template are the token.
#include <string>
#include <string_view>
#include <vector>

#include "base/value.h"
#include "text/tokenizer.h"

namespace tokamak {

// Puts marks into the strings of context's "messages" and "tools" (Tokenizer::guard) and returns
// the mark. They pass through the template unchanged. Linear time.
std::string guard_chat(Value& context, const Tokenizer& tokenizer);

std::string without_guard(std::string_view text, std::string_view guard);

// The ids of a rendered chat. The template has already added its special tokens.
inline std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, std::string_view text,
                                        std::string_view guard) {
  return tokenizer.encode(text, {.add_special = false, .parse_special = true, .guard = guard});
}

}  // namespace tokamak
