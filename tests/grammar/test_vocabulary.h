#pragma once
// Vocabularies for tests: every byte, and texts that cross the borders of rules.
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/matcher.h"

namespace tokamak::grammar {

inline std::shared_ptr<const Vocabulary> byte_vocabulary() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  return std::make_shared<Vocabulary>(tokens);
}

// All bytes, random texts over `letters`, and some twice.
inline std::shared_ptr<const Vocabulary> random_vocabulary(std::string_view letters, size_t count,
                                                           uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<std::string> tokens{""};
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  while (tokens.size() < count) {
    std::string text;
    for (size_t length = 1 + rng() % 9; text.size() < length;)
      text += letters[rng() % letters.size()];
    tokens.push_back(text);
    if (rng() % 16 == 0) tokens.push_back(text);
  }
  return std::make_shared<Vocabulary>(tokens);
}

inline bool has_bit(const std::vector<uint32_t>& mask, int32_t id) {
  return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
}

}  // namespace tokamak::grammar
