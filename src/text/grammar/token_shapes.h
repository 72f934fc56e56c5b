#pragma once
// Groups tokens that differ only in characters that a grammar treats alike.
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tokamak::grammar {

// Classes of characters; one member stands for all of them.
enum Symbol : uint8_t { kLower = 1, kUpper = 2, kDigit = 4, kPlainCharacter = 8 };

// Texts in which characters are replaced by symbols, as a trie. Most grammars treat all characters
// of a symbol alike, and so one walk from a node is one for all of its tokens. Characters after a
// quote, and one after a backslash, are never replaced: there a string ends, or escapes begin.
// Immutable.
class TokenShapes {
 public:
  enum class Kind : uint8_t {
    kWords,  // lower case, upper case and digits
    kPlain,  // plain characters (vocabulary.h)
  };
  // `tokens`: those that have a text.
  TokenShapes(Kind kind, std::span<const int32_t> tokens,
              const std::function<std::string_view(int32_t)>& bytes);

  struct Node {
    uint32_t end = 0;           // its descendants are (node, end)
    uint32_t first_token = 0;   // of the node and its descendants, which follow it
    uint16_t depth = 0;         // 0: the first character
    uint8_t symbol = 0;         // 0: the byte itself
    uint8_t byte = 0;           // one of the symbol's characters, or the byte
    bool symbols_only = false;  // from the root on
  };
  std::span<const uint32_t> roots() const { return roots_; }
  const Node& node(size_t i) const { return nodes_[i]; }
  size_t deepest() const { return deepest_; }
  // Tokens that end at the node.
  std::span<const int32_t> tokens(size_t node) const { return between(node, node + 1); }
  // Tokens that end below the node.
  std::span<const int32_t> tokens_below(size_t node) const {
    return between(node + 1, nodes_[node].end);
  }
  // Tokens that end at or below the node.
  std::span<const int32_t> tokens_from(size_t node) const {
    return between(node, nodes_[node].end);
  }
  // Bytes of the token's first `count` characters, counted as in the trie.
  size_t offset(std::string_view text, size_t count) const;
  // Tokens that are not in the trie, because they hold bytes that stand for symbols in it.
  std::span<const int32_t> others() const { return others_; }

 private:
  std::span<const int32_t> between(size_t from, size_t to) const {
    return std::span(tokens_).subspan(nodes_[from].first_token,
                                      nodes_[to].first_token - nodes_[from].first_token);
  }
  std::string shape(std::string_view text) const;

  const Kind kind_;
  std::vector<Node> nodes_;  // and one past the last
  std::vector<int32_t> tokens_, others_;
  std::vector<uint32_t> roots_;
  size_t deepest_ = 0;
};

// The first and last byte that a symbol of words stands for.
std::pair<uint8_t, uint8_t> symbol_bytes(uint8_t symbol);
// A character of the symbol may begin with the byte.
bool may_begin(uint8_t symbol, uint8_t byte);
// A character that JSON strings may hold without an escape.
bool is_plain(char32_t c);

}  // namespace tokamak::grammar
