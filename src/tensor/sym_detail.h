#pragma once
// Internals of symbolic expressions: terms and atoms, and integer arithmetic that throws on
// overflow.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tensor/sym.h"

namespace tokamak {

struct SymExpr::Atom {
  enum class Kind : uint8_t { kSymbol, kCeilDiv, kMin, kMax };
  Kind kind = Kind::kSymbol;
  int depth = 0;              // 0 for symbols
  int64_t divisor = 0;        // kCeilDiv
  std::string text;           // canonical; equal text = equal atom
  std::vector<SymExpr> args;  // empty for symbols
  static std::shared_ptr<const Atom> make(Kind kind, std::vector<SymExpr> args, int64_t divisor);
  SymExpr substitute(const std::map<std::string, SymExpr, std::less<>>& with) const;
};

struct SymExpr::Term {
  int64_t coefficient;
  std::vector<std::shared_ptr<const Atom>> atoms;  // sorted by text

  // Order of terms without their coefficients: highest degree first, then by text.
  static int compare(const Term& a, const Term& b) {
    if (a.atoms.size() != b.atoms.size()) return a.atoms.size() > b.atoms.size() ? -1 : 1;
    for (size_t i = 0; i < a.atoms.size(); ++i) {
      if (a.atoms[i] == b.atoms[i]) continue;
      if (int c = a.atoms[i]->text.compare(b.atoms[i]->text)) return c;
    }
    return 0;
  }
};

namespace sym {

[[noreturn]] inline void overflow() {
  fail(ErrorCode::kOutOfRange, "symbolic arithmetic leaves 64 bits");
}
inline int64_t checked_add(int64_t a, int64_t b) {
  int64_t r;
  if (__builtin_add_overflow(a, b, &r) || r == INT64_MIN) overflow();
  return r;
}
inline int64_t checked_mul(int64_t a, int64_t b) {
  int64_t r;
  if (__builtin_mul_overflow(a, b, &r) || r == INT64_MIN) overflow();
  return r;
}
inline int64_t ceil_div(int64_t a, int64_t b) {  // b >= 1
  int64_t q = a / b;
  return q + (a % b > 0);
}
inline int64_t floor_div(int64_t a, int64_t b) {  // b >= 1
  int64_t q = a / b;
  return q - (a % b < 0);
}

inline bool is_symbol_start(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}
inline bool is_symbol_char(char c) {
  return is_symbol_start(c) || (c >= '0' && c <= '9') || c == '.';
}
inline bool is_symbol_name(std::string_view name) {
  if (name.empty() || name.size() > 256 || !is_symbol_start(name[0])) return false;
  for (char c : name)
    if (!is_symbol_char(c)) return false;
  return name != "ceildiv" && name != "min" && name != "max";
}

}  // namespace sym
}  // namespace tokamak
