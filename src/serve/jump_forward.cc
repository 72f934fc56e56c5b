#include "serve/jump_forward.h"

#include <algorithm>
#include <string>

namespace tokamak {
namespace {

constexpr size_t kMostBytes = 512;    // in one jump
constexpr size_t kContextTokens = 8;  // before it: enough for the tokenizer's rules of words

bool inside_character(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

// The text of the last tokens, from the start of a character.
std::string context_of(const grammar::Matcher& matcher, const Tokenizer& tokenizer) {
  auto tokens = matcher.tokens();
  tokens = tokens.last(std::min(tokens.size(), kContextTokens));
  std::string text;
  for (int32_t id : tokens) text += tokenizer.piece_bytes(id);
  size_t first = 0;
  while (first < text.size() && inside_character(text[first])) ++first;
  return text.substr(first);
}

// The last of `ids` that have exactly the bytes of `text`; none if no token begins with it.
std::vector<int32_t> tail_of(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                             std::string_view text) {
  size_t first = ids.size();
  while (first > 0 && !text.empty()) {
    std::string bytes = tokenizer.piece_bytes(ids[first - 1]);
    if (bytes.empty() || !text.ends_with(bytes)) return {};
    text.remove_suffix(bytes.size());
    --first;
  }
  if (!text.empty()) return {};
  return {ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end()};
}

}  // namespace

void append_forced_tokens(grammar::Matcher& matcher, const Tokenizer& tokenizer,
                          std::vector<int32_t>& forced) {
  std::string text = matcher.forced(kMostBytes);
  size_t sure = matcher.first_crossing(text);
  if (sure == 0) return;
  EncodeOptions plain{.add_special = false, .parse_special = false};
  std::string before = context_of(matcher, tokenizer);
  std::vector<int32_t> ids = tail_of(tokenizer, tokenizer.encode(before + text, plain), text);
  if (ids.empty() && !before.empty()) ids = tail_of(tokenizer, tokenizer.encode(text, plain), text);
  for (int32_t id : ids) {
    size_t bytes = tokenizer.piece_bytes(id).size();
    if (bytes > sure || tokenizer.is_special(id) || tokenizer.is_eog(id)) return;
    sure -= bytes;
    forced.push_back(id);
  }
}

}  // namespace tokamak
