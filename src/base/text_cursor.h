#pragma once
// The base of parsers of one-line texts (types, extents, kernel patterns, formulas): a position in
// a text that outlives it. Spaces and tabs before a token are skipped.
#include <cstddef>
#include <string_view>

namespace tokamak {

class TextCursor {
 protected:
  explicit TextCursor(std::string_view text, size_t pos = 0) : text_(text), pos_(pos) {}

  void skip() {
    while (pos_ < text_.size() && (text_[pos_] == ' ' || text_[pos_] == '\t')) ++pos_;
  }
  bool at_end() {
    skip();
    return pos_ >= text_.size();
  }
  bool peek(char c) { return !at_end() && text_[pos_] == c; }
  bool take(char c) {
    const bool here = peek(c);
    pos_ += here;
    return here;
  }
  // Letters, digits and '_'; empty: the next token is another one.
  std::string_view word() {
    skip();
    const size_t begin = pos_;
    while (pos_ < text_.size() && is_word_char(text_[pos_])) ++pos_;
    return text_.substr(begin, pos_ - begin);
  }

  std::string_view text_;
  size_t pos_;

 private:
  static bool is_word_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  }
};

}  // namespace tokamak
