#pragma once
// Symbolic integers: tensor extents such as T, B, 2*T or ceildiv(T, 16). Canonical: two expressions that are the
// same polynomial compare equal and print equally.
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tokamak {

// A symbol's declaration: lo <= value <= hi and value % multiple == 0.
struct SymbolDecl {
  std::string name;
  int64_t lo = 1, hi = 1 << 20, multiple = 1;
  bool operator==(const SymbolDecl&) const = default;
};

class SymExpr {
 public:
  SymExpr(int64_t constant = 0);  // NOLINT: extents are mostly plain numbers
  static SymExpr symbol(std::string name);
  static SymExpr ceildiv(const SymExpr& a, int64_t b);
  static SymExpr min(const SymExpr& a, const SymExpr& b);
  static SymExpr max(const SymExpr& a, const SymExpr& b);
  static SymExpr parse(std::string_view text);  // throws Error(kInvalidArgument)

  SymExpr operator+(const SymExpr& o) const;
  SymExpr operator-(const SymExpr& o) const;
  SymExpr operator*(const SymExpr& o) const;
  bool operator==(const SymExpr& o) const;
  bool operator!=(const SymExpr& o) const { return !(*this == o); }

  bool is_constant() const;
  std::optional<int64_t> constant() const;
  std::string text() const;  // "2*T + 1"; parse(text()) == *this
  SymExpr substitute(const std::map<std::string, SymExpr, std::less<>>& with) const;
  std::vector<std::string> symbols() const;  // sorted, unique

  // Value for given symbol values; missing symbols throw Error(kInternal). Overflow throws.
  int64_t eval(const std::map<std::string, int64_t, std::less<>>& values) const;
  // Largest / smallest value over the declared ranges (interval arithmetic: a bound, not always attained).
  int64_t upper(std::span<const SymbolDecl> symbols) const;
  int64_t lower(std::span<const SymbolDecl> symbols) const;

 private:
  // sum of coefficient * product of atoms; an atom is a symbol or a ceildiv/min/max in canonical text.
  struct Atom;
  struct Term;
  std::vector<Term> terms_;
  friend class CompiledExpr;

 public:  // rule of five out of line, Term is incomplete here
  SymExpr(const SymExpr&);
  SymExpr(SymExpr&&) noexcept;
  SymExpr& operator=(const SymExpr&);
  SymExpr& operator=(SymExpr&&) noexcept;
  ~SymExpr();
};

// A SymExpr bound to positions in a value table, for the step loop: eval() never allocates.
class CompiledExpr {
 public:
  CompiledExpr() = default;
  CompiledExpr(const SymExpr& expr, std::span<const std::string> symbol_order);
  int64_t eval(std::span<const int64_t> values) const;

 private:
  struct Op {  // postfix program
    enum class Kind : uint8_t { kConst, kSymbol, kAdd, kMul, kCeilDiv, kMin, kMax } kind;
    int64_t value;
  };
  std::vector<Op> program_;
};

}  // namespace tokamak
