#pragma once
// The tokens of a model as byte strings, in the order that mask computation needs.
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/token_shapes.h"

namespace tokamak {
class Tokenizer;
}

namespace tokamak::grammar {

// A tree of byte strings in depth-first order: the descendants of node i are [i + 1, end[i]).
struct Trie {
  std::vector<uint8_t> byte;
  std::vector<uint16_t> depth;  // of the node; 0: the first byte
  std::vector<uint32_t> end;
  std::vector<int32_t> token;  // that ends here; -1: none
  size_t deepest = 0;          // the longest text
  size_t size() const { return byte.size(); }
  // Texts in ascending order, without duplicates. Empty texts are ignored.
  void add(std::string_view text, int32_t id);
  void finish();

 private:
  std::vector<uint32_t> path_;
};

// Plain characters: those that JSON strings may hold without an escape. Words consist of ASCII
// letters and digits only. Tokens of plain characters are grouped by their number, and so are
// words, because most grammars allow all of a group or none.
inline constexpr size_t kLengthGroups = 19;
size_t length_group(size_t characters);  // 1 .. kLengthGroups
size_t longest_of_group(size_t group);   // characters; SIZE_MAX for the last group

// Immutable and thread-safe. About 40 bytes per byte of the vocabulary.
class Vocabulary {
 public:
  // Tokens by id; an empty text is a token that no grammar allows. So is one longer than
  // kMaxTokenBytes.
  explicit Vocabulary(const std::vector<std::string>& tokens);
  // The text of a control token begins with kControlByte, so that only grammars that name the token
  // allow it. Those that end an answer have no text.
  explicit Vocabulary(const Tokenizer& tokenizer);

  size_t size() const { return offsets_.size() - 1; }
  size_t words() const { return (size() + 31) / 32; }
  std::string_view bytes(int32_t id) const {
    auto i = static_cast<size_t>(id);
    return std::string_view(text_).substr(offsets_[i], offsets_[i + 1] - offsets_[i]);
  }
  // Trie 0 has the tokens with other characters, then come the groups of plain ones that are no
  // words, then those of words.
  static constexpr size_t kTries = 1 + 2 * kLengthGroups;
  const Trie& trie(size_t index) const { return tries_[index]; }
  // The nodes of all tries that begin with the byte.
  struct Root {
    uint32_t trie, node;
  };
  std::span<const Root> roots(uint8_t byte) const { return roots_[byte]; }
  // All tokens, with characters of words or plain characters as symbols.
  const TokenShapes& word_shapes() const { return *word_shapes_; }
  const TokenShapes& plain_shapes() const { return *plain_shapes_; }
  // All plain tokens, words among them, or all words of the groups 1 .. group.
  std::span<const uint32_t> plain_mask(size_t group) const { return plain_masks_[group - 1]; }
  std::span<const uint32_t> word_mask(size_t group) const { return word_masks_[group - 1]; }
  // All tokens, in the order of their bytes; the ones without text come first.
  std::span<const int32_t> sorted() const { return sorted_; }
  // Tokens with a quote, ", and those with several.
  std::span<const int32_t> quotes() const { return quotes_; }
  std::span<const int32_t> several_quotes() const { return several_quotes_; }
  // The next token with the same text; -1: none.
  int32_t next_same(int32_t id) const { return next_same_[static_cast<size_t>(id)]; }

 private:
  void build();
  std::string text_;
  std::vector<uint32_t> offsets_;
  std::vector<int32_t> sorted_, next_same_, quotes_, several_quotes_;
  std::vector<Trie> tries_;
  std::array<std::vector<Root>, 256> roots_;
  std::optional<TokenShapes> word_shapes_, plain_shapes_;
  std::vector<std::vector<uint32_t>> plain_masks_, word_masks_;
};

inline constexpr size_t kMaxTokenBytes = 4096;
inline constexpr char kControlByte = '\xFF';  // which is not part of any UTF-8 text

inline void set_bit(std::span<uint32_t> mask, int32_t id) {
  mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
}
inline void clear_bit(std::span<uint32_t> mask, int32_t id) {
  mask[static_cast<size_t>(id) / 32] &= ~(1u << (id % 32));
}

}  // namespace tokamak::grammar
