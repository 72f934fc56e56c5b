#pragma once
// What the parsers of grammars written as text have in common: position, messages, names of rules,
// numbers and alternatives.
#include <string>
#include <string_view>

#include "text/grammar/ir.h"

namespace tokamak::grammar {

class RuleParser {
 public:
  virtual ~RuleParser() = default;

 protected:
  explicit RuleParser(std::string_view text) : text_(text) {}

  bool end() const { return pos_ >= text_.size(); }
  char peek(size_t ahead = 0) const {
    return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : 0;
  }
  bool at(std::string_view word) const { return text_.substr(pos_, word.size()) == word; }
  bool take(std::string_view word) {
    if (!at(word)) return false;
    pos_ += word.size();
    return true;
  }
  [[noreturn]] void error(std::string_view what) const;  // with line and column

  virtual bool is_name(char c) const;
  std::string name();
  uint32_t number();
  char32_t hex(int digits);  // of an escaped character

  // Comments and white space.
  virtual void skip(bool newlines) = 0;
  virtual ExprId sequence() = 0;
  ExprId alternatives();  // sequences with | between them
  // Throws Error(kInvalidArgument) for a rule that has a body.
  void define(const std::string& name, ExprId body);
  void check_all_defined() const;

  std::string_view text_;
  size_t pos_ = 0;
  int depth_ = 0;  // of alternatives(); above 1 line ends are white space
  Ir ir_;

 private:
  bool next_alternative();
};

}  // namespace tokamak::grammar
