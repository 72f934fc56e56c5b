#pragma once
// Finds added tokens in text.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/tokenizer_spec.h"
#include "text/byte_trie.h"

namespace tokamak {

// Immutable, thread-safe. The tokens must outlive it.
class AddedTokens {
 public:
  struct Part {
    size_t begin = 0, end = 0;
    int32_t id = -1;  // -1: text
  };
  // spell: maps a token's content to its form in the searched text.
  void build(const std::vector<const AddedToken*>& tokens,
             const std::function<std::string(const std::string&)>& spell);
  bool empty() const { return trie_.empty(); }

  // Splits text into added tokens (leftmost, longest) and the text between them. Without
  // parse_special,
  // special tokens are text.
  void split(std::string_view text, bool parse_special, std::vector<Part>& parts) const;

  // Appends text to out with the mark after the first character of every special token in it, and
  // of the beginning of a token at its end. The mark must not occur in the text.
  void guard(std::string_view text, std::string_view mark, std::string& out) const;

 private:
  struct Candidate {
    int32_t token = -1;
    size_t end = 0;
  };
  Candidate longest_at(std::string_view text, size_t pos) const;
  bool may_be_special(std::string_view text, size_t pos) const;

  std::vector<const AddedToken*> tokens_;
  std::vector<std::string> spelled_;
  ByteTrie trie_;
  bool first_byte_[256] = {};
};

}  // namespace tokamak
