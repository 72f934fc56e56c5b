#pragma once
// Finds marks such as "<think>" in text that arrives in pieces.
#include <algorithm>
#include <span>
#include <string_view>

namespace tokamak {

inline constexpr std::string_view kBlank = " \t\r\n";

// The number of bytes at the end of text that could begin mark.
inline size_t overlap(std::string_view text, std::string_view mark) {
  if (mark.empty()) return 0;
  size_t n = std::min(text.size(), mark.size() - 1);
  while (n > 0 && !text.ends_with(mark.substr(0, n))) --n;
  return n;
}

inline size_t overlap(std::string_view text, std::span<const std::string_view> marks) {
  size_t n = 0;
  for (std::string_view mark : marks) n = std::max(n, overlap(text, mark));
  return n;
}

struct FoundMark {
  size_t at = std::string_view::npos;
  std::string_view mark;
};

// The first mark in the text; of several at one place the longest.
inline FoundMark find_mark(std::string_view text, std::span<const std::string_view> marks) {
  FoundMark found;
  for (std::string_view mark : marks) {
    size_t at = mark.empty() ? std::string_view::npos : text.find(mark);
    if (at < found.at ||
        (at == found.at && at != std::string_view::npos && mark.size() > found.mark.size()))
      found = {at, mark};
  }
  return found;
}

inline size_t first_solid(std::string_view text) {
  return std::min(text.find_first_not_of(kBlank), text.size());
}

inline std::string_view trimmed(std::string_view text) {
  text.remove_prefix(first_solid(text));
  return text.substr(0, text.find_last_not_of(kBlank) + 1);
}

}  // namespace tokamak
