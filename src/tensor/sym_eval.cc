// Values and bounds of symbolic expressions: eval, upper, lower and the compiled form.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "tensor/sym_detail.h"

namespace tokamak {

using sym::checked_add;
using sym::checked_mul;

int64_t SymExpr::eval(const std::map<std::string, int64_t, std::less<>>& values) const {
  int64_t sum = 0;
  for (const Term& t : terms_) {
    int64_t product = t.coefficient;
    for (const auto& a : t.atoms) {
      int64_t v;
      if (a->kind == Atom::Kind::kSymbol) {
        auto found = values.find(a->text);
        if (found == values.end()) {
          fail(ErrorCode::kInternal, "no value for symbol {}", a->text);
        }
        v = found->second;
      } else {
        v = a->args[0].eval(values);
        if (a->kind == Atom::Kind::kCeilDiv) v = sym::ceil_div(v, a->divisor);
        for (size_t i = 1; i < a->args.size(); ++i) {
          int64_t w = a->args[i].eval(values);
          v = a->kind == Atom::Kind::kMin ? std::min(v, w) : std::max(v, w);
        }
      }
      product = checked_mul(product, v);
    }
    sum = checked_add(sum, product);
  }
  return sum;
}

SymExpr::Range SymExpr::range(std::span<const SymbolDecl> symbols) const {
  Range sum{0, 0};
  for (const Term& t : terms_) {
    Range product{t.coefficient, t.coefficient};
    for (const auto& a : t.atoms) {
      Range r{};
      if (a->kind == Atom::Kind::kSymbol) {
        auto decl = std::find_if(symbols.begin(), symbols.end(),
                                 [&](const SymbolDecl& d) { return d.name == a->text; });
        if (decl == symbols.end()) {
          fail(ErrorCode::kInvalidArgument, "symbol {} is not declared", a->text);
        }
        const int64_t m = std::max<int64_t>(decl->multiple, 1);
        r = {checked_mul(sym::ceil_div(decl->lo, m), m),
             checked_mul(sym::floor_div(decl->hi, m), m)};
      } else {
        r = a->args[0].range(symbols);
        if (a->kind == Atom::Kind::kCeilDiv) {
          r = {sym::ceil_div(r.lo, a->divisor), sym::ceil_div(r.hi, a->divisor)};
        }
        for (size_t i = 1; i < a->args.size(); ++i) {
          Range o = a->args[i].range(symbols);
          r = a->kind == Atom::Kind::kMin ? Range{std::min(r.lo, o.lo), std::min(r.hi, o.hi)}
                                          : Range{std::max(r.lo, o.lo), std::max(r.hi, o.hi)};
        }
      }
      const int64_t corners[] = {checked_mul(product.lo, r.lo), checked_mul(product.lo, r.hi),
                                 checked_mul(product.hi, r.lo), checked_mul(product.hi, r.hi)};
      auto [lo, hi] = std::minmax_element(std::begin(corners), std::end(corners));
      product = {*lo, *hi};
    }
    sum = {checked_add(sum.lo, product.lo), checked_add(sum.hi, product.hi)};
  }
  return sum;
}

int64_t SymExpr::upper(std::span<const SymbolDecl> symbols) const { return range(symbols).hi; }
int64_t SymExpr::lower(std::span<const SymbolDecl> symbols) const { return range(symbols).lo; }

// --- CompiledExpr --------------------------------------------------------------------------------

CompiledExpr::CompiledExpr(const SymExpr& expr, std::span<const std::string> symbol_order) {
  emit(expr, symbol_order);
  size_t depth = 0, deepest = 0;
  for (const Op& op : program_) {
    using Kind = Op::Kind;
    if (op.kind == Kind::kConst || op.kind == Kind::kSymbol) {
      deepest = std::max(deepest, ++depth);
    } else if (op.kind != Kind::kCeilDiv) {
      --depth;
    }
  }
  // Each level of nesting holds a sum, a product and a min/max in the making: kMaxDepth bounds it.
  TK_CHECK(depth == 1 && deepest <= kStack, "expression needs {} stack places", deepest);
}

void CompiledExpr::emit(const SymExpr& expr, std::span<const std::string> symbol_order) {
  using Kind = Op::Kind;
  if (expr.terms_.empty()) program_.push_back({Kind::kConst, 0});
  for (size_t i = 0; i < expr.terms_.size(); ++i) {
    const SymExpr::Term& t = expr.terms_[i];
    bool first = true;
    if (t.coefficient != 1 || t.atoms.empty()) {
      program_.push_back({Kind::kConst, t.coefficient});
      first = false;
    }
    for (const auto& a : t.atoms) {
      emit_atom(*a, symbol_order);
      if (!first) program_.push_back({Kind::kMul, 0});
      first = false;
    }
    if (i > 0) program_.push_back({Kind::kAdd, 0});
  }
}

void CompiledExpr::emit_atom(const SymExpr::Atom& atom, std::span<const std::string> symbol_order) {
  using Kind = Op::Kind;
  using AtomKind = SymExpr::Atom::Kind;
  if (atom.kind == AtomKind::kSymbol) {
    auto found = std::find(symbol_order.begin(), symbol_order.end(), atom.text);
    if (found == symbol_order.end()) {
      fail(ErrorCode::kInternal, "symbol {} has no place in the value table", atom.text);
    }
    program_.push_back({Kind::kSymbol, found - symbol_order.begin()});
    return;
  }
  emit(atom.args[0], symbol_order);
  if (atom.kind == AtomKind::kCeilDiv) program_.push_back({Kind::kCeilDiv, atom.divisor});
  for (size_t i = 1; i < atom.args.size(); ++i) {
    emit(atom.args[i], symbol_order);
    program_.push_back({atom.kind == AtomKind::kMin ? Kind::kMin : Kind::kMax, 0});
  }
}

int64_t CompiledExpr::eval(std::span<const int64_t> values) const {
  using Kind = Op::Kind;
  if (program_.empty()) return 0;
  std::array<int64_t, kStack> stack;
  size_t top = 0;  // places in use
  for (const Op& op : program_) {
    switch (op.kind) {
      case Kind::kConst:
        stack[top++] = op.value;
        break;
      case Kind::kSymbol:
        TK_CHECK(static_cast<size_t>(op.value) < values.size(), "value table too short");
        stack[top++] = values[static_cast<size_t>(op.value)];
        break;
      case Kind::kAdd:
        --top;
        stack[top - 1] = checked_add(stack[top - 1], stack[top]);
        break;
      case Kind::kMul:
        --top;
        stack[top - 1] = checked_mul(stack[top - 1], stack[top]);
        break;
      case Kind::kCeilDiv:
        stack[top - 1] = sym::ceil_div(stack[top - 1], op.value);
        break;
      case Kind::kMin:
        --top;
        stack[top - 1] = std::min(stack[top - 1], stack[top]);
        break;
      case Kind::kMax:
        --top;
        stack[top - 1] = std::max(stack[top - 1], stack[top]);
        break;
    }
  }
  return stack[0];
}

}  // namespace tokamak
