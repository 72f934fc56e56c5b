// Text form of symbolic expressions:
//   expr = ["-"] product {("+" | "-") product}; product = factor {"*" factor}
//   factor = integer | symbol | "(" expr ")" | "-" factor | ceildiv "(" expr "," integer ")"
//          | (min | max) "(" expr {"," expr} ")"
#include "base/error.h"
#include "base/text_cursor.h"
#include "tensor/sym_detail.h"

namespace tokamak {

std::string SymExpr::text() const {
  if (terms_.empty()) return "0";
  std::string out;
  for (const Term& t : terms_) {
    const bool negative = t.coefficient < 0;
    if (!out.empty()) {
      out += negative ? " - " : " + ";
    } else if (negative) {
      out += '-';
    }
    const int64_t magnitude = negative ? -t.coefficient : t.coefficient;
    bool first = true;
    if (magnitude != 1 || t.atoms.empty()) {
      out += std::to_string(magnitude);
      first = false;
    }
    for (const auto& a : t.atoms) {
      if (!first) out += '*';
      out += a->text;
      first = false;
    }
  }
  return out;
}

class SymExpr::Parser : private TextCursor {
 public:
  explicit Parser(std::string_view text) : TextCursor(text) {}

  SymExpr whole() {
    if (text_.size() > kMaxText) error("an expression of at most 4096 bytes");
    SymExpr e = sum(0);
    if (!at_end()) error("an operator or the end");
    return e;
  }

 private:
  [[noreturn]] void error(std::string_view expected) const {
    fail(ErrorCode::kInvalidArgument, "expression \"{}\", byte {}: expected {}",
         text_.substr(0, 80), pos_, expected);
  }
  void need(char c) {
    if (!take(c)) error(std::string("'") + c + "'");
  }

  SymExpr sum(int depth) {
    if (depth > 2 * kMaxDepth) error("less nesting");
    SymExpr e = product(depth);
    for (;;) {
      if (take('+')) {
        e = e + product(depth);
      } else if (take('-')) {
        e = e - product(depth);
      } else {
        return e;
      }
    }
  }

  SymExpr product(int depth) {
    SymExpr e = factor(depth);
    while (take('*')) e = e * factor(depth);
    return e;
  }

  SymExpr factor(int depth) {
    bool negative = false;
    while (take('-')) negative = !negative;
    SymExpr e = unsigned_factor(depth);
    return negative ? SymExpr() - e : e;
  }

  SymExpr unsigned_factor(int depth) {
    if (take('(')) {
      SymExpr e = sum(depth + 1);
      need(')');
      return e;
    }
    skip();
    if (pos_ < text_.size() && text_[pos_] >= '0' && text_[pos_] <= '9') return integer();
    const size_t begin = pos_;
    if (pos_ < text_.size() && sym::is_symbol_start(text_[pos_])) {
      while (pos_ < text_.size() && sym::is_symbol_char(text_[pos_])) ++pos_;
    }
    std::string_view name = text_.substr(begin, pos_ - begin);
    if (name.empty()) error("a number, a symbol or '('");
    if (name == "ceildiv" || name == "min" || name == "max") return call(name, depth + 1);
    return symbol(std::string(name));
  }

  SymExpr call(std::string_view name, int depth) {
    need('(');
    SymExpr e = sum(depth);
    if (name == "ceildiv") {
      need(',');
      skip();
      const int64_t divisor = integer();
      if (divisor < 1) error("a positive divisor");
      e = ceildiv(e, divisor);
    } else {
      while (take(',')) {
        SymExpr next = sum(depth);
        e = name == "min" ? min(e, next) : max(e, next);
      }
    }
    need(')');
    return e;
  }

  int64_t integer() {
    const size_t begin = pos_;
    int64_t value = 0;
    for (; pos_ < text_.size() && text_[pos_] >= '0' && text_[pos_] <= '9'; ++pos_) {
      value = sym::checked_add(sym::checked_mul(value, 10), text_[pos_] - '0');
    }
    if (pos_ == begin) error("a number");
    return value;
  }
};

SymExpr SymExpr::parse(std::string_view text) {
  try {
    return Parser(text).whole();
  } catch (const Error& e) {
    if (e.code() == ErrorCode::kInvalidArgument) throw;
    fail(ErrorCode::kInvalidArgument, "expression \"{}\": {}", text.substr(0, 80), e.what());
  }
}

}  // namespace tokamak
