#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "graph/rule.h"

namespace tokamak {

const Value* RuleMatch::find(std::string_view name) const {
  for (const auto& [key, value] : names)
    if (key == name) return &value;
  return nullptr;
}

Value extent_value(const SymExpr& extent) {
  return extent.is_constant() ? Value(*extent.constant()) : Value(extent.text());
}

bool near_values(double a, double b) {
  return std::abs(a - b) <= 1e-6 * std::max(std::abs(a), std::abs(b));
}

bool is_commutative(const OpDef& op) {
  return op.name == "add" || op.name == "mul" || op.name == "maximum" || op.name == "minimum";
}

std::optional<Value> default_attr(const OpDef& op, std::string_view key) {
  std::string_view n = op.name;
  if (key == "keep" && n.starts_with("reduce_")) return Value(0);
  if (key == "axis" && n == "gather") return Value(0);
  if (key == "scale" && n == "rope") return Value(1.0);
  if (key == "format" && n == "quantize") return Value("q8a");
  if (n == "attend" && (key == "window" || key == "softcap" || key == "sinks" || key == "slopes"))
    return Value(0);
  if (n == "attend" && key == "value") return Value("v");
  if (n == "attend" && key == "key") return Value(Value::Array{"k"});
  if (n == "sdpa" && key == "causal") return Value(0);
  if (n == "attend_rows" && key == "window") return Value(0);
  return std::nullopt;
}

std::optional<double> splat_value(const Function& fn, Ref r) {
  const Node& node = fn.node(r.node);
  if (node.op->name != "constant") return std::nullopt;
  const ConstantDecl* c = fn.module().find_constant(node.attrs.at("name").as_string());
  if (!c || c->type.dtype != DType::kF32 || c->values.empty()) return std::nullopt;
  auto bits = std::bit_cast<uint64_t>(c->values[0]);
  for (double v : c->values)
    if (std::bit_cast<uint64_t>(v) != bits) return std::nullopt;
  return c->values[0];
}

std::vector<double> rotation_matrix(int64_t d, int64_t distance) {
  const auto n = static_cast<size_t>(d), s = static_cast<size_t>(std::abs(distance));
  const double sign = distance < 0 ? -1 : 1;
  std::vector<double> c(n * n, 0.0);
  for (size_t i = 0; i < n; ++i) {
    const bool first = s == 0 || i / s % 2 == 0;  // of its pair
    if (first && i + s < n) c[i * n + i + s] = sign;
    if (!first) c[i * n + i - s] = -sign;
  }
  return c;
}

namespace {

using Result = std::optional<Value>;

// The value that all elements of an i32 constant have.
Result splat_integer(const Function& fn, Ref r) {
  const Node& node = fn.node(r.node);
  if (node.op->name != "constant" || fn.tensor(r).dtype != DType::kI32) return std::nullopt;
  const std::vector<double>& v =
      fn.module().find_constant(node.attrs.at("name").as_string())->values;
  bool same = !v.empty() && std::all_of(v.begin(), v.end(), [&](double x) { return x == v[0]; });
  return same ? Result(Value(static_cast<int64_t>(v[0]))) : std::nullopt;
}

// Whether a permutation keeps the order of all axes but those of extent 1.
Result moves_ones(const Value& perm, const TensorType& type) {
  if (!perm.is_array() || perm.size() != static_cast<size_t>(type.rank())) return std::nullopt;
  int64_t last = -1;
  for (const Value& axis : perm.as_array()) {
    if (!axis.is_int() || axis.as_int() < 0 || axis.as_int() >= type.rank()) return std::nullopt;
    if (type.extent(static_cast<int>(axis.as_int())) == SymExpr(1)) continue;
    if (axis.as_int() < last) return Value(false);
    last = axis.as_int();
  }
  return Value(true);
}

// Whether a constant of one axis is a list written twice that is not itself written twice.
bool is_repeated(const Function& fn, Ref r) {
  const Node& node = fn.node(r.node);
  if (node.op->name != "constant" || fn.tensor(r).rank() != 1) return false;
  const std::vector<double>& v =
      fn.module().find_constant(node.attrs.at("name").as_string())->values;
  auto doubled = [&](size_t n) {
    return n % 2 == 0 && n > 0 && std::equal(v.data(), v.data() + n / 2, v.data() + n / 2);
  };
  return doubled(v.size()) && !doubled(v.size() / 2);
}

// x c rotates each pair (x[i], x[i + s]) by a quarter turn, to (-x[i + s], x[i]); with -s in the
// other direction. The pairs are d / 2 apart (rotate_half) or neighbours. 0: x c is x. nullopt: no
// such matrix.
Result rotation(const Function& fn, Ref r) {
  const Node& node = fn.node(r.node);
  if (node.op->name != "constant" || fn.tensor(r).rank() != 2) return std::nullopt;
  const ConstantDecl& c = *fn.module().find_constant(node.attrs.at("name").as_string());
  const int64_t d = c.type.extent(0).constant().value();
  if (d == 0 || c.type.extent(1) != SymExpr(d)) return std::nullopt;
  for (int64_t s : {int64_t{0}, d / 2, int64_t{1}}) {
    if (s > 0 && d % 2 != 0) continue;
    const double first = c.values[static_cast<size_t>(s * d)];  // what x[s] adds to result 0
    const int64_t distance = first < 0 ? s : -s;
    if (std::abs(first) == 1 && rotation_matrix(d, distance) == c.values) return Value(distance);
  }
  return std::nullopt;
}

std::optional<SymExpr> as_extent(const Value& v) {
  if (v.is_int()) return SymExpr(v.as_int());
  if (!v.is_string()) return std::nullopt;
  try {
    return SymExpr::parse(v.as_string());
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.as_double() == b.as_double();
  if (a.is_array() && b.is_array())
    return std::equal(a.as_array().begin(), a.as_array().end(), b.as_array().begin(),
                      b.as_array().end(), equal);
  return a == b;
}

class Evaluator {
 public:
  Evaluator(const RewriteRule& rule, const RuleMatch& match, const Function& fn,
            const UseCount& uses)
      : rule_(rule), match_(match), fn_(fn), uses_(uses) {}

  Result run(const RuleExpr& e) const {
    switch (e.kind) {
      case RuleExpr::Kind::kLiteral:
        return e.value;
      case RuleExpr::Kind::kName:
        if (const Value* v = match_.find(e.name)) return *v;
        return std::nullopt;
      case RuleExpr::Kind::kList:
        return list(e);
      case RuleExpr::Kind::kSplat:
        return std::nullopt;
      case RuleExpr::Kind::kCall:
        return call(e);
    }
    return std::nullopt;
  }

 private:
  Result list(const RuleExpr& e) const {
    Value out = Value::array();
    for (const RuleExpr& item : e.args) {
      if (item.kind == RuleExpr::Kind::kSplat) {
        const Value* v = match_.find(item.name);
        if (!v || !v->is_array()) return std::nullopt;
        for (const Value& x : v->as_array()) out.push(x);
      } else {
        Result v = run(item);
        if (!v) return std::nullopt;
        out.push(*v);
      }
    }
    return out;
  }

  // The tensor an argument names: a variable of the pattern, or root.
  std::optional<Ref> tensor(const RuleExpr& e) const {
    if (e.kind != RuleExpr::Kind::kName) return std::nullopt;
    size_t index = rule_.vars.size();
    if (e.name != "root")
      for (index = 0; index < rule_.vars.size(); ++index)
        if (rule_.vars[index].name == e.name) break;
    if (e.name != "root" && index == rule_.vars.size()) return std::nullopt;
    if (index >= match_.vars.size() || !match_.vars[index].valid()) return std::nullopt;
    Ref r = match_.vars[index];
    if (fn_.type(r).kind != Type::Kind::kTensor) return std::nullopt;
    return r;
  }

  Result call(const RuleExpr& e) const {
    if (Result r = on_tensor(e)) return r;
    const std::string& op = e.name;
    if (op == "and" || op == "or") {  // one operand may decide
      Result a = run(e.args.at(0)), b = run(e.args.at(1));
      for (const Result& r : {a, b})
        if (r && r->is_bool() && r->as_bool() == (op == "or")) return r;
      bool both = a && b && a->is_bool() && b->is_bool();
      return both ? a : std::nullopt;
    }
    if (op == "known" && e.args.size() == 1) {
      // The verifier knows nothing: a rule has to hold either way.
      Result a = uses_ ? run(e.args[0]) : std::nullopt;
      return Value(a && a->is_bool() && a->as_bool());
    }
    std::vector<Value> v;
    for (const RuleExpr& arg : e.args) {
      Result r = run(arg);
      if (!r) return std::nullopt;
      v.push_back(*r);
    }
    if (v.size() == 1) return unary(op, v[0]);
    if (v.size() == 2) return binary(op, v[0], v[1]);
    if (v.size() == 3) return on_list(op, v[0], v[1], v[2]);
    return std::nullopt;
  }

  Result on_tensor(const RuleExpr& e) const {
    if (e.args.empty()) return std::nullopt;
    if (e.name == "axis" && e.args.size() == 2) {
      auto r = tensor(e.args[1]);
      Result a = run(e.args[0]);
      if (!r || !a || !a->is_int()) return std::nullopt;
      return a->as_int() < 0 ? a->as_int() + fn_.tensor(*r).rank() : a->as_int();
    }
    if (e.name == "moves_ones" && e.args.size() == 2) {
      auto r = tensor(e.args[1]);
      Result p = run(e.args[0]);
      return r && p ? moves_ones(*p, fn_.tensor(*r)) : std::nullopt;
    }
    auto x = tensor(e.args[0]);
    if (!x) return std::nullopt;
    const TensorType& type = fn_.tensor(*x);
    if (e.name == "rank") return Value(int64_t{type.rank()});
    if (e.name == "dtype") return Value(dtype_name(type.dtype));
    if (e.name == "elements") return extent_value(type.elements());
    if (e.name == "uses") return uses_ ? Value(int64_t{uses_(*x)}) : Value(int64_t{1});
    if (e.name == "integer") return splat_integer(fn_, *x);
    if (e.name == "natural") return Value(is_natural(fn_, *x));
    if (e.name == "repeated") return Value(is_repeated(fn_, *x));
    if (e.name == "rotation") return rotation(fn_, *x);
    if (e.name == "value") {
      auto v = splat_value(fn_, *x);
      return v ? Result(Value(*v)) : std::nullopt;
    }
    if (e.name == "dims") return extents(type);
    if (e.name == "axes") {
      Value out = Value::array();
      for (const Dim& d : type.dims) out.push(Value(d.axis));
      return out;
    }
    if (e.name == "same_shape" && e.args.size() == 2) {
      auto y = tensor(e.args[1]);
      return y ? equal_values(extents(type), extents(fn_.tensor(*y))) : Result(Value(false));
    }
    return std::nullopt;
  }

  static Value extents(const TensorType& type) {
    Value out = Value::array();
    for (const Dim& d : type.dims) out.push(extent_value(d.extent));
    return out;
  }

  // An extent with symbols of the module; other strings are names.
  bool has_symbols(const Value& v) const {
    auto extent = v.is_string() ? as_extent(v) : std::nullopt;
    if (!extent || extent->is_constant()) return false;
    const auto& declared = fn_.module().symbols;
    for (const std::string& name : extent->symbols())
      if (std::none_of(declared.begin(), declared.end(),
                       [&](const SymbolDecl& s) { return s.name == name; }))
        return false;
    return true;
  }

  // Extents with symbols are equal or different only if they are for all values of the symbols.
  Result equal_values(const Value& a, const Value& b) const {
    if (a.is_array() && b.is_array()) {
      if (a.size() != b.size()) return Value(false);
      bool decided = true;
      for (size_t i = 0; i < a.size(); ++i) {
        Result same = equal_values(a.as_array()[i], b.as_array()[i]);
        if (same && !same->as_bool()) return same;
        decided &= same.has_value();
      }
      return decided ? Result(Value(true)) : std::nullopt;
    }
    if (!has_symbols(a) && !has_symbols(b)) return Value(equal(a, b));
    auto x = as_extent(a), y = as_extent(b);
    if (!x || !y) return Value(false);
    if (*x == *y) return Value(true);
    try {
      SymExpr by = *x - *y;
      const auto& symbols = fn_.module().symbols;
      if (by.lower(symbols) > 0 || by.upper(symbols) < 0) return Value(false);
    } catch (const Error&) {
    }
    return std::nullopt;
  }

  static Result unary(const std::string& op, const Value& a) {
    if (op == "not" && a.is_bool()) return !a.as_bool();
    if (op == "len" && a.is_array()) return Value(static_cast<int64_t>(a.size()));
    if (op == "neg" && a.is_int()) return -a.as_int();
    if (op == "is_identity" && a.is_array()) {
      for (size_t i = 0; i < a.size(); ++i)
        if (!equal(a.as_array()[i], Value(static_cast<int64_t>(i)))) return Value(false);
      return Value(true);
    }
    if (op == "swapped" && a.is_int() && a.as_int() >= 2) {  // exchanges the last two axes
      Value out = Value::array();
      for (int64_t i = 0; i + 2 < a.as_int(); ++i) out.push(i);
      out.push(a.as_int() - 1);
      out.push(a.as_int() - 2);
      return out;
    }
    if (op == "names" && a.is_int()) {
      Value out = Value::array();
      for (int64_t i = 0; i < a.as_int(); ++i) out.push(fmt::format("a{}", i));
      return out;
    }
    if (!a.is_number()) return std::nullopt;
    double x = a.as_double();
    int exponent = 0;
    if (op == "~") return a;
    if (op == "neg") return -x;
    if (op == "abs") return std::abs(x);
    if (op == "sqrt") return std::sqrt(x);
    if (op == "f32") return static_cast<double>(static_cast<float>(x));
    if (op == "finite") return std::isfinite(x);
    if (op == "pow2")
      return std::isfinite(x) && std::abs(std::frexp(x, &exponent)) == 0.5 &&
             std::abs(exponent) < 100;
    return std::nullopt;
  }

  Result binary(const std::string& op, const Value& a, const Value& b) const {
    if (op == "==" || op == "!=") {
      Result same = equal_values(a, b);
      return same ? Result(Value(same->as_bool() == (op == "=="))) : std::nullopt;
    }
    if (op == "compose" || op == "at" || op == "drop") return on_list(op, a, b, Value());
    if (op == "widens") return widens(a, b);
    if (op == "near" && a.is_number() && b.is_number())
      return near_values(a.as_double(), b.as_double());
    bool compares = op == "<" || op == "<=" || op == ">" || op == ">=";
    if (a.is_int() && b.is_int() && !compares) return integers(op, a.as_int(), b.as_int());
    if (a.is_number() && b.is_number()) return doubles(op, a.as_double(), b.as_double());
    auto x = as_extent(a), y = as_extent(b);
    if (!x || !y) return std::nullopt;
    try {
      if (op == "+") return extent_value(*x + *y);
      if (op == "-") return extent_value(*x - *y);
      if (op == "*") return extent_value(*x * *y);
      if (op == "/") return quotient(*x, *y);
      // True only when it holds for all values of the symbols.
      const auto& symbols = fn_.module().symbols;
      if (op == "<") return (*x - *y).upper(symbols) < 0;
      if (op == "<=") return (*x - *y).upper(symbols) <= 0;
      if (op == ">") return (*x - *y).lower(symbols) > 0;
      if (op == ">=") return (*x - *y).lower(symbols) >= 0;
    } catch (const Error&) {
    }
    return std::nullopt;
  }

  // Where one extent is a multiple of the other for all values of the symbols.
  static Result quotient(const SymExpr& x, const SymExpr& y) {
    std::map<std::string, int64_t, std::less<>> ones;
    for (const SymExpr& e : {x, y})
      for (const std::string& name : e.symbols()) ones[name] = 1;
    int64_t over = x.eval(ones), under = y.eval(ones);
    if (under == 0 || over % under != 0 || y * SymExpr(over / under) != x) return std::nullopt;
    return Value(over / under);
  }

  static Result integers(const std::string& op, int64_t a, int64_t b) {
    int64_t out = 0;
    bool overflow = false;
    if (op == "+")
      overflow = __builtin_add_overflow(a, b, &out);
    else if (op == "-")
      overflow = __builtin_sub_overflow(a, b, &out);
    else if (op == "*")
      overflow = __builtin_mul_overflow(a, b, &out);
    else if (op == "/" && b != 0 && a % b == 0)
      out = a / b;
    else
      return doubles(op, static_cast<double>(a), static_cast<double>(b));
    return overflow ? std::nullopt : Result(Value(out));
  }

  static Result doubles(const std::string& op, double a, double b) {
    if (op == "+") return a + b;
    if (op == "-") return a - b;
    if (op == "*") return a * b;
    if (op == "/") return a / b;
    if (op == "<") return a < b;
    if (op == "<=") return a <= b;
    if (op == ">") return a > b;
    if (op == ">=") return a >= b;
    return std::nullopt;
  }

  // Whether every value of one element type is a value of the other.
  static Result widens(const Value& from, const Value& to) {
    if (!from.is_string() || !to.is_string()) return std::nullopt;
    const std::string &a = from.as_string(), &b = to.as_string();
    return a == b || (b == "f32" && (a == "f16" || a == "bf16"));
  }

  static Result on_list(const std::string& op, const Value& a, const Value& b, const Value& c) {
    if (!a.is_array()) return std::nullopt;
    Value::Array items = a.as_array();
    if (op == "compose") {  // transpose(transpose(x; b); a)
      if (!b.is_array() || b.size() != items.size()) return std::nullopt;
      for (Value& v : items) {
        if (!v.is_int() || v.as_int() < 0 || static_cast<size_t>(v.as_int()) >= b.size())
          return std::nullopt;
        v = b.as_array()[static_cast<size_t>(v.as_int())];
      }
      return Value(std::move(items));
    }
    if (!b.is_int() || b.as_int() < 0) return std::nullopt;
    auto i = static_cast<size_t>(b.as_int());
    if (i >= items.size() + (op == "insert" ? 1 : 0)) return std::nullopt;
    auto at = items.begin() + static_cast<std::ptrdiff_t>(i);
    if (op == "at") return *at;
    if (op == "drop")
      items.erase(at);
    else if (op == "set")
      *at = c;
    else if (op == "insert")
      items.insert(at, c);
    else
      return std::nullopt;
    return Value(std::move(items));
  }

  const RewriteRule& rule_;
  const RuleMatch& match_;
  const Function& fn_;
  const UseCount& uses_;
};

}  // namespace

bool RuleMatch::bind(std::string_view name, const Value& value) {
  if (const Value* bound = find(name)) return equal(*bound, value);
  names.emplace_back(std::string(name), value);
  return true;
}

std::optional<Value> evaluate_expr(const RuleExpr& expr, const RewriteRule& rule,
                                   const RuleMatch& match, const Function& fn,
                                   const UseCount& uses) {
  return Evaluator(rule, match, fn, uses).run(expr);
}

}  // namespace tokamak
