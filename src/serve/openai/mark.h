#pragma once
// Finds a tag such as "<think>" in text that arrives in pieces.
#include <algorithm>
#include <string_view>

namespace tokamak::openai {

// The number of bytes at the end of text that could begin mark.
inline size_t overlap(std::string_view text, std::string_view mark) {
  size_t n = std::min(text.size(), mark.size() - 1);
  while (n > 0 && !text.ends_with(mark.substr(0, n))) --n;
  return n;
}

}  // namespace tokamak::openai
