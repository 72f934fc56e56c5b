#pragma once
// Symbolic integers: tensor extents such as T, B, 2*T or ceildiv(T, 16). Canonical: two expressions
// that are the same polynomial compare equal and print equally.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
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

// A sum of coefficient * product of atoms; an atom is a symbol, or a ceildiv/min/max of
// expressions, compared by its canonical text. Value type; atoms are immutable and shared, so a
// copy is cheap. Bounded: an expression with too many terms, too long a text, too deep a nesting or
// an overflowing coefficient throws Error(kOutOfRange).
class SymExpr {
 public:
  static constexpr size_t kMaxTerms = 64;   // also arguments of one min or max
  static constexpr size_t kMaxDegree = 8;   // atoms in one product
  static constexpr size_t kMaxText = 4096;  // bytes of canonical text, and of text to be parsed
  static constexpr int kMaxDepth = 12;      // ceildiv/min/max inside each other, and parentheses

  SymExpr(int64_t constant = 0);            // NOLINT: extents are mostly plain numbers
  static SymExpr symbol(std::string name);  // [A-Za-z_][A-Za-z0-9_.]*, not a function's name
  static SymExpr ceildiv(const SymExpr& a, int64_t b);  // b >= 1; rounds towards +infinity
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

  // Value for given symbol values; missing symbols throw Error(kInternal). Overflow throws
  // Error(kOutOfRange).
  int64_t eval(const std::map<std::string, int64_t, std::less<>>& values) const;
  // Largest / smallest value over the declared ranges (interval arithmetic: a bound, not always
  // attained). Undeclared symbols throw Error(kInvalidArgument), overflow Error(kOutOfRange).
  int64_t upper(std::span<const SymbolDecl> symbols) const;
  int64_t lower(std::span<const SymbolDecl> symbols) const;

 private:
  struct Atom;
  struct Term;
  struct Range {
    int64_t lo, hi;
  };
  class Parser;
  friend class CompiledExpr;

  static SymExpr of_atom(std::shared_ptr<const Atom> atom);
  static SymExpr pick(bool smallest, const SymExpr& a, const SymExpr& b);
  std::optional<int64_t> distance(const SymExpr& o) const;  // *this - o where that is a constant
  void normalize();
  Range range(std::span<const SymbolDecl> symbols) const;
  int depth() const;
  void collect_symbols(std::vector<std::string>& out) const;

  std::vector<Term>
      terms_;  // highest degree first, then by text; the constant last; no zero coefficients

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
  CompiledExpr() = default;  // evaluates to 0
  // Symbols outside `symbol_order` throw Error(kInternal).
  CompiledExpr(const SymExpr& expr, std::span<const std::string> symbol_order);
  int64_t eval(std::span<const int64_t> values) const;  // overflow throws Error(kOutOfRange)

 private:
  static constexpr size_t kStack = 64;
  struct Op {  // postfix program
    enum class Kind : uint8_t { kConst, kSymbol, kAdd, kMul, kCeilDiv, kMin, kMax } kind;
    int64_t value;
  };
  void emit(const SymExpr& expr, std::span<const std::string> symbol_order);
  void emit_atom(const SymExpr::Atom& atom, std::span<const std::string> symbol_order);
  std::vector<Op> program_;
};

}  // namespace tokamak
