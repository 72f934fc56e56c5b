#include "tensor/sym.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "tensor/sym_detail.h"

namespace tokamak {

using sym::checked_add;
using sym::checked_mul;

SymExpr::SymExpr(const SymExpr&) = default;
SymExpr::SymExpr(SymExpr&&) noexcept = default;
SymExpr& SymExpr::operator=(const SymExpr&) = default;
SymExpr& SymExpr::operator=(SymExpr&&) noexcept = default;
SymExpr::~SymExpr() = default;

SymExpr::SymExpr(int64_t constant) {
  // The magnitude of the smallest integer does not fit; no extent is that large.
  if (constant == INT64_MIN) sym::overflow();
  if (constant != 0) terms_.push_back({constant, {}});
}

SymExpr SymExpr::of_atom(std::shared_ptr<const Atom> atom) {
  SymExpr e;
  e.terms_.push_back({1, {std::move(atom)}});
  return e;
}

SymExpr SymExpr::symbol(std::string name) {
  if (!sym::is_symbol_name(name)) {
    fail(ErrorCode::kInvalidArgument, "\"{}\" cannot name a symbol", name.substr(0, 80));
  }
  auto atom = std::make_shared<Atom>();
  atom->kind = Atom::Kind::kSymbol;
  atom->text = std::move(name);
  return of_atom(std::move(atom));
}

int SymExpr::depth() const {
  int d = 0;
  for (const Term& t : terms_)
    for (const auto& a : t.atoms) d = std::max(d, a->depth);
  return d;
}

// Sorts, merges equal products, drops zeros and enforces the bounds.
void SymExpr::normalize() {
  std::sort(terms_.begin(), terms_.end(),
            [](const Term& a, const Term& b) { return Term::compare(a, b) < 0; });
  size_t kept = 0;
  for (size_t i = 0; i < terms_.size();) {
    size_t j = i + 1;
    for (; j < terms_.size() && Term::compare(terms_[i], terms_[j]) == 0; ++j) {
      terms_[i].coefficient = checked_add(terms_[i].coefficient, terms_[j].coefficient);
    }
    if (terms_[i].coefficient != 0) {
      if (kept != i) terms_[kept] = std::move(terms_[i]);
      ++kept;
    }
    i = j;
  }
  terms_.erase(terms_.begin() + static_cast<std::ptrdiff_t>(kept), terms_.end());
  if (terms_.size() > kMaxTerms) {
    fail(ErrorCode::kOutOfRange, "symbolic expression of more than {} terms", kMaxTerms);
  }
  size_t text = 0;
  for (const Term& t : terms_) {
    if (t.atoms.size() > kMaxDegree) {
      fail(ErrorCode::kOutOfRange, "symbolic product of more than {} factors", kMaxDegree);
    }
    text += 24;
    for (const auto& a : t.atoms) text += a->text.size() + 1;
  }
  if (text > kMaxText) {
    fail(ErrorCode::kOutOfRange, "symbolic expression longer than {} bytes", kMaxText);
  }
}

SymExpr SymExpr::operator+(const SymExpr& o) const {
  SymExpr e = *this;
  e.terms_.insert(e.terms_.end(), o.terms_.begin(), o.terms_.end());
  e.normalize();
  return e;
}

SymExpr SymExpr::operator-(const SymExpr& o) const {
  SymExpr e = *this;
  for (Term t : o.terms_) {
    t.coefficient = -t.coefficient;
    e.terms_.push_back(std::move(t));
  }
  e.normalize();
  return e;
}

SymExpr SymExpr::operator*(const SymExpr& o) const {
  SymExpr e;
  for (const Term& a : terms_) {
    for (const Term& b : o.terms_) {
      Term t{checked_mul(a.coefficient, b.coefficient), {}};
      t.atoms.reserve(a.atoms.size() + b.atoms.size());
      std::merge(a.atoms.begin(), a.atoms.end(), b.atoms.begin(), b.atoms.end(),
                 std::back_inserter(t.atoms),
                 [](const auto& x, const auto& y) { return x->text < y->text; });
      e.terms_.push_back(std::move(t));
    }
  }
  e.normalize();
  return e;
}

bool SymExpr::operator==(const SymExpr& o) const {
  return std::equal(terms_.begin(), terms_.end(), o.terms_.begin(), o.terms_.end(),
                    [](const Term& a, const Term& b) {
                      return a.coefficient == b.coefficient && Term::compare(a, b) == 0;
                    });
}

bool SymExpr::is_constant() const {
  return terms_.empty() || (terms_.size() == 1 && terms_[0].atoms.empty());
}

std::optional<int64_t> SymExpr::constant() const {
  if (!is_constant()) return std::nullopt;
  return terms_.empty() ? 0 : terms_[0].coefficient;
}

SymExpr SymExpr::ceildiv(const SymExpr& a, int64_t b) {
  if (b < 1) fail(ErrorCode::kInvalidArgument, "ceildiv by {}: the divisor must be positive", b);
  if (auto c = a.constant()) return sym::ceil_div(*c, b);
  // ceildiv(b*x + y, b) = x + ceildiv(y, b), exactly, over the integers.
  SymExpr whole, rest;
  int64_t common = b;
  for (const Term& t : a.terms_) {
    if (t.coefficient % b == 0) {
      whole.terms_.push_back({t.coefficient / b, t.atoms});
    } else {
      rest.terms_.push_back(t);
      common = std::gcd(common, t.coefficient);
    }
  }
  if (rest.terms_.empty()) return whole;
  for (Term& t : rest.terms_) t.coefficient /= common;
  int64_t divisor = b / common;
  if (divisor == 1) return whole + rest;
  if (auto c = rest.constant()) return whole + sym::ceil_div(*c, divisor);
  const Term& only = rest.terms_[0];
  if (rest.terms_.size() == 1 && only.coefficient == 1 && only.atoms.size() == 1 &&
      only.atoms[0]->kind == Atom::Kind::kCeilDiv) {
    auto inner = only.atoms[0];  // ceildiv(ceildiv(x, p), q) = ceildiv(x, p*q)
    return whole + ceildiv(inner->args[0], checked_mul(inner->divisor, divisor));
  }
  return whole + of_atom(Atom::make(Atom::Kind::kCeilDiv, {rest}, divisor));
}

std::optional<int64_t> SymExpr::distance(const SymExpr& o) const {
  auto split = [](const SymExpr& e) {
    bool has = !e.terms_.empty() && e.terms_.back().atoms.empty();
    return std::pair(e.terms_.size() - has, has ? e.terms_.back().coefficient : 0);
  };
  auto [n, a] = split(*this);
  auto [m, b] = split(o);
  if (n != m) return std::nullopt;
  for (size_t i = 0; i < n; ++i) {
    if (terms_[i].coefficient != o.terms_[i].coefficient ||
        Term::compare(terms_[i], o.terms_[i]) != 0) {
      return std::nullopt;
    }
  }
  return checked_add(a, -b);
}

// Flattens nested min (max), keeps one of two arguments that differ by a constant, sorts by text.
SymExpr SymExpr::pick(bool smallest, const SymExpr& a, const SymExpr& b) {
  const Atom::Kind kind = smallest ? Atom::Kind::kMin : Atom::Kind::kMax;
  std::vector<SymExpr> args;
  auto add_one = [&](const SymExpr& e) {
    for (SymExpr& have : args) {
      if (auto d = have.distance(e)) {
        if (smallest ? *d > 0 : *d < 0) have = e;
        return;
      }
    }
    args.push_back(e);
  };
  for (const SymExpr* e : {&a, &b}) {
    const bool nested = e->terms_.size() == 1 && e->terms_[0].coefficient == 1 &&
                        e->terms_[0].atoms.size() == 1 && e->terms_[0].atoms[0]->kind == kind;
    if (!nested) {
      add_one(*e);
    } else {
      for (const SymExpr& inner : e->terms_[0].atoms[0]->args) add_one(inner);
    }
  }
  if (args.size() == 1) return args[0];
  if (args.size() > kMaxTerms) fail(ErrorCode::kOutOfRange, "min or max of too many arguments");
  std::vector<std::pair<std::string, SymExpr>> sorted;
  for (SymExpr& e : args) sorted.emplace_back(e.text(), std::move(e));
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& x, const auto& y) { return x.first < y.first; });
  args.clear();
  for (auto& s : sorted) args.push_back(std::move(s.second));
  return of_atom(Atom::make(kind, std::move(args), 0));
}

SymExpr SymExpr::min(const SymExpr& a, const SymExpr& b) { return pick(true, a, b); }
SymExpr SymExpr::max(const SymExpr& a, const SymExpr& b) { return pick(false, a, b); }

SymExpr SymExpr::substitute(const std::map<std::string, SymExpr, std::less<>>& with) const {
  SymExpr sum;
  for (const Term& t : terms_) {
    SymExpr product = t.coefficient;
    for (const auto& a : t.atoms) product = product * a->substitute(with);
    sum = sum + product;
  }
  return sum;
}

void SymExpr::collect_symbols(std::vector<std::string>& out) const {
  for (const Term& t : terms_) {
    for (const auto& a : t.atoms) {
      if (a->kind == Atom::Kind::kSymbol) out.push_back(a->text);
      for (const SymExpr& arg : a->args) arg.collect_symbols(out);
    }
  }
}

std::vector<std::string> SymExpr::symbols() const {
  std::vector<std::string> names;
  collect_symbols(names);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::shared_ptr<const SymExpr::Atom> SymExpr::Atom::make(Kind kind, std::vector<SymExpr> args,
                                                         int64_t divisor) {
  auto atom = std::make_shared<Atom>();
  atom->kind = kind;
  atom->divisor = divisor;
  atom->text = kind == Kind::kCeilDiv ? "ceildiv(" : kind == Kind::kMin ? "min(" : "max(";
  for (size_t i = 0; i < args.size(); ++i) {
    if (i > 0) atom->text += ", ";
    atom->text += args[i].text();
    atom->depth = std::max(atom->depth, args[i].depth() + 1);
  }
  if (kind == Kind::kCeilDiv) atom->text += fmt::format(", {}", divisor);
  atom->text += ')';
  atom->args = std::move(args);
  if (atom->depth > kMaxDepth || atom->text.size() > kMaxText) {
    fail(ErrorCode::kOutOfRange, "symbolic expression nested too deeply or too long");
  }
  return atom;
}

SymExpr SymExpr::Atom::substitute(const std::map<std::string, SymExpr, std::less<>>& with) const {
  if (kind == Kind::kSymbol) {
    auto found = with.find(text);
    return found == with.end() ? SymExpr::symbol(text) : found->second;
  }
  SymExpr e = args[0].substitute(with);
  if (kind == Kind::kCeilDiv) return ceildiv(e, divisor);
  for (size_t i = 1; i < args.size(); ++i) {
    e = pick(kind == Kind::kMin, e, args[i].substitute(with));
  }
  return e;
}

}  // namespace tokamak
