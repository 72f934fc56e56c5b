#pragma once
// The text form's characters, names, numbers and values. Throws Error(kInvalidArgument, "line N:
// ...").
#include <cstdint>
#include <string>
#include <string_view>

#include "ops/op.h"

namespace tokamak {

// A cursor over text that outlives it. White space is skipped before every token; line ends only
// inside brackets (between open() and close()) and in skip_lines(). "//" starts a comment.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  size_t pos() const { return pos_; }
  [[noreturn]] void expected(std::string_view what);  // at the next token
  [[noreturn]] void error_at(size_t pos, std::string_view what) const;

  void skip_lines();  // to the next token, wherever it is
  bool at_end();      // of the text
  void end_of_line();

  bool peek(char c);
  bool take(char c);
  bool take_text(std::string_view mark);  // punctuation of several characters
  void need(char c);
  void open(char c);  // a bracket: line ends are white space until close()
  void close(char c);
  bool try_close(char c);

  bool at_name();
  std::string name();       // bare or quoted
  std::string_view word();  // bare only; empty when there is none
  void need_word(std::string_view w);
  std::string string();  // quoted
  int64_t integer();
  uint64_t index();  // decimal digits
  template <class T>
  T number();  // float or double; also nan, inf, -inf
  Value value(int depth = 0);
  Value object(int depth = 0);  // {key=value, ...}
  TensorType tensor_type();
  Type type();  // tensor, state<name> or view<name>

 private:
  void skip();
  std::string_view number_text();

  std::string_view text_;
  size_t pos_ = 0;
  int nesting_ = 0;
};

}  // namespace tokamak
