#pragma once
// Documents as passages of a size that an embedding model reads.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tokamak {

struct Passage {
  int64_t line = 1;  // of the document, where it begins
  std::string text;
};

// Paragraphs (separated by empty lines) are joined while the passage has at most `most` bytes; a
// longer paragraph is cut after a sentence, or else between words. Passages do not overlap. Invalid
// UTF-8 is kept as it is; no passage ends inside a character.
std::vector<Passage> split_passages(std::string_view document, size_t most);

}  // namespace tokamak
