// Operators, with Python's semantics.
#include <algorithm>
#include <bit>
#include <cmath>

#include "text/jinja/interp.h"
#include "text/unicode.h"

namespace tokamak::jinja {
namespace {

const char* op_name(Op op) {
  static constexpr const char* kNames[] = {"+", "-", "*", "/", "//", "%", "**"};
  return kNames[static_cast<size_t>(op)];
}

[[noreturn]] void bad_operands(Op op, const Val& a, const Val& b) {
  raise(std::string("unsupported operand type(s) for ") + op_name(op) + ": '" + type_name(a) +
        "' and '" + type_name(b) + "'");
}

int64_t checked(bool overflow, int64_t value) {
  if (overflow) raise("integer overflow");
  return value;
}

double float_mod(double a, double b) {
  const double r = std::fmod(a, b);
  if (r == 0) return std::copysign(0.0, b);
  return (r < 0) != (b < 0) ? r + b : r;
}

// Computed from the remainder, as in Python: 1.0 // 0.1 is 9.
double float_floor_div(double a, double b) {
  const double whole = (a - float_mod(a, b)) / b;
  if (whole == 0) return std::copysign(0.0, a / b);
  const double down = std::floor(whole);
  return whole - down > 0.5 ? down + 1 : down;
}

Val float_pow(double a, double b) {
  if (a == 0 && b < 0) raise("0.0 cannot be raised to a negative power");
  if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b))
    raise("a negative number has no real fractional power");
  const double r = std::pow(a, b);
  if (std::isinf(r) && std::isfinite(a) && std::isfinite(b)) raise("the power is too large");
  return Val::real(r);
}

Val int_pow(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) raise("0.0 cannot be raised to a negative power");
    return Val::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  bool overflow = false;
  if (base == 0 || base == 1) return Val::integer(exponent == 0 ? 1 : base);
  if (base == -1) return Val::integer(exponent % 2 == 0 ? 1 : -1);
  for (int64_t i = 0; i < exponent && !overflow; ++i)
    overflow = __builtin_mul_overflow(result, base, &result);
  return Val::integer(checked(overflow, result));
}

// a / b rounded once, as in Python; a double cannot represent every integer.
double int_quotient(int64_t a, int64_t b) {
  auto size = [](int64_t v) {
    return v < 0 ? 0 - static_cast<uint64_t>(v) : static_cast<uint64_t>(v);
  };
  const uint64_t n = size(a), d = size(b);
  double result = 0;
  if (n == 0 || std::max(n, d) >> 53 == 0) {
    result = static_cast<double>(n) / static_cast<double>(d);
  } else {
    const int shift = 64 + std::countl_zero(n);
    const auto wide = static_cast<unsigned __int128>(n) << shift;
    auto quotient = wide / d;
    bool rest = wide % d != 0;
    int exponent = -shift;
    for (; quotient >> 64 != 0; ++exponent) {
      rest = rest || (quotient & 1) != 0;
      quotient >>= 1;
    }
    // More than 60 bits: the last one may be a sticky bit for all that follow.
    result =
        std::ldexp(static_cast<double>(static_cast<uint64_t>(quotient) | (rest ? 1 : 0)), exponent);
  }
  return (a < 0) != (b < 0) ? -result : result;
}

Val int_op(Op op, int64_t a, int64_t b) {
  int64_t r = 0;
  bool overflow = false;  // a separate statement: argument evaluation order is unspecified
  switch (op) {
    case Op::kAdd:
      overflow = __builtin_add_overflow(a, b, &r);
      return Val::integer(checked(overflow, r));
    case Op::kSub:
      overflow = __builtin_sub_overflow(a, b, &r);
      return Val::integer(checked(overflow, r));
    case Op::kMul:
      overflow = __builtin_mul_overflow(a, b, &r);
      return Val::integer(checked(overflow, r));
    case Op::kPow:
      return int_pow(a, b);
    default:
      break;
  }
  if (b == 0) raise("division by zero");
  if (op == Op::kDiv) return Val::real(int_quotient(a, b));
  if (b == -1)
    return Val::integer(op == Op::kMod ? 0 : checked(a == INT64_MIN, a == INT64_MIN ? 0 : -a));
  const int64_t remainder = a % b;
  const bool adjust = remainder != 0 && (remainder < 0) != (b < 0);
  if (op == Op::kMod) return Val::integer(adjust ? remainder + b : remainder);
  return Val::integer(a / b - (adjust ? 1 : 0));
}

Val float_op(Op op, double a, double b) {
  switch (op) {
    case Op::kAdd:
      return Val::real(a + b);
    case Op::kSub:
      return Val::real(a - b);
    case Op::kMul:
      return Val::real(a * b);
    case Op::kPow:
      return float_pow(a, b);
    default:
      break;
  }
  if (b == 0) raise("float division by zero");
  if (op == Op::kDiv) return Val::real(a / b);
  if (op == Op::kMod) return Val::real(float_mod(a, b));
  return Val::real(float_floor_div(a, b));
}

}  // namespace

Val Interp::binary(Op op, const Val& a, const Val& b) {
  if (a.is_undefined()) raise_undefined(a);
  if (op == Op::kMod && a.is_string())
    return str(percent_format(*this, *a.text(), b), a.text()->markup);
  if (b.is_undefined()) raise_undefined(b);
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return float_op(op, a.as_double(), b.as_double());
    return int_op(op, a.as_int(), b.as_int());
  }
  if (op == Op::kAdd) return add(a, b);
  if (op == Op::kMul) return multiply(a, b);
  bad_operands(op, a, b);
}

Val Interp::add(const Val& a, const Val& b) {
  if (a.is_string() && b.is_string()) {
    heap_.check_room(a.str().size() + b.str().size());
    const bool left = a.text()->markup, right = b.text()->markup;
    if (left || right)
      return heap_.string(
          (left ? a.str() : html_escape(a.str())) + (right ? b.str() : html_escape(b.str())), true);
    return str(a.str() + b.str());
  }
  if (a.is_plain_sequence() && b.is_plain_sequence() && a.kind() == b.kind()) {
    spend((a.items()->values.size() + b.items()->values.size()) / 8);
    std::vector<Val> all = a.items()->values;
    all.insert(all.end(), b.items()->values.begin(), b.items()->values.end());
    return heap_.list(std::move(all), a.is_tuple());
  }
  if (a.is_string() || b.is_string()) {
    const Val& other = a.is_string() ? b : a;
    raise(a.is_string()
              ? std::string("can only concatenate str (not \"") + type_name(other) + "\") to str"
              : std::string("unsupported operand type(s) for +: '") + type_name(a) + "' and 'str'");
  }
  bad_operands(Op::kAdd, a, b);
}

Val Interp::multiply(const Val& a, const Val& b) {
  const Val& sequence = a.is_integral() ? b : a;
  const Val& times = a.is_integral() ? a : b;
  if (!times.is_integral() || !(sequence.is_string() || sequence.is_plain_sequence()))
    bad_operands(Op::kMul, a, b);
  const auto count = static_cast<size_t>(std::max<int64_t>(0, times.as_int()));
  const size_t size =
      sequence.is_string() ? sequence.str().size() : sequence.items()->values.size() * sizeof(Val);
  size_t total = 0;
  if (__builtin_mul_overflow(size, count, &total)) raise("a repeated value is too large");
  heap_.check_room(total);
  spend_bytes(total);
  if (sequence.is_string()) {
    std::string out;
    out.reserve(total);
    for (size_t i = 0; size > 0 && i < count; ++i) out += sequence.str();
    return str(std::move(out));
  }
  std::vector<Val> out;
  for (size_t i = 0; size > 0 && i < count; ++i)
    out.insert(out.end(), sequence.items()->values.begin(), sequence.items()->values.end());
  return heap_.list(std::move(out), sequence.is_tuple());
}

bool Interp::contains(const Val& container, const Val& item) {
  switch (container.kind()) {
    case Kind::kUndefined:
      return false;
    case Kind::kString:
      if (!item.is_string())
        raise(std::string("'in <string>' requires string as left operand, not ") + type_name(item));
      spend_bytes(container.str().size());
      return container.str().find(item.str()) != std::string::npos;
    case Kind::kList:
    case Kind::kTuple:
      spend(container.items()->values.size());
      if (container.is_generator() && std::exchange(container.items()->consumed, true))
        return false;
      for (const Val& v : container.items()->values)
        if (equal(v, item)) return true;
      return false;
    case Kind::kDict:
      return container.dict()->find(item) != nullptr;
    default:
      raise(std::string("argument of type '") + type_name(container) + "' is not iterable");
  }
}

Val Interp::slice(const Val& object, const Val& start, const Val& stop, const Val& step_value) {
  if (object.is_undefined()) raise_undefined(object);
  const bool range = object.is_list() && object.items()->flavor == Flavor::kRange;
  if (!object.is_string() && !object.is_plain_sequence() && !range && !object.is_generator())
    raise(std::string("'") + type_name(object) + "' object is not subscriptable");
  const auto bound = [](const Val& v, const char* what) { return int_arg(v, what); };
  const int64_t step = step_value.is_none() ? 1 : bound(step_value, "slice step");
  if (step == 0) raise("slice step cannot be zero");
  const auto size = static_cast<int64_t>(object.is_string() ? object.text()->chars
                                                            : object.items()->values.size());
  const auto clip = [&](const Val& v, int64_t fallback) {
    if (v.is_none()) return fallback;
    int64_t i = bound(v, "slice index");
    if (i < 0) i = std::max<int64_t>(i + size, step < 0 ? -1 : 0);
    return std::min(i, step < 0 ? size - 1 : size);
  };
  const int64_t from = clip(start, step < 0 ? size - 1 : 0), to = clip(stop, step < 0 ? -1 : size);
  std::vector<int64_t> picks;
  const bool plain = step == 1;
  if (!plain)
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step) {
      picks.push_back(i);
      if (step > 0 ? step > to - i : -step > i - to) break;
    }
  spend(picks.size() / 8);
  if (object.is_sequence()) {
    const auto& values = object.items()->values;
    std::vector<Val> out;
    if (plain && from < to) out.assign(values.begin() + from, values.begin() + to);
    for (int64_t i : picks) out.push_back(values[static_cast<size_t>(i)]);
    if (!range) return heap_.list(std::move(out), object.is_tuple());
    const List& whole = *object.items();
    const Val part = heap_.flavored(std::move(out), Flavor::kRange);
    part.items()->start = whole.start + from * whole.step;
    part.items()->stop = whole.start + to * whole.step;
    part.items()->step = whole.step * step;
    return part;
  }
  const std::string& text = object.str();
  if (object.text()->ascii() && plain)
    return str(from < to ? text.substr(static_cast<size_t>(from), static_cast<size_t>(to - from))
                         : "");
  spend_bytes(text.size());
  const std::u32string chars = utf8_to_u32(text);
  std::u32string out;
  if (plain && from < to)
    out = chars.substr(static_cast<size_t>(from), static_cast<size_t>(to - from));
  for (int64_t i : picks) out += chars[static_cast<size_t>(i)];
  return str(u32_to_utf8(out));
}

int64_t int_arg(const Val& v, const char* what) {
  if (v.is_integral()) return v.as_int();
  if (v.is_undefined()) raise_undefined(v);
  raise(std::string(what) + " must be an integer, not " + type_name(v));
}

const std::string& str_arg(const Val& v, const char* what) {
  if (v.is_string()) return v.str();
  if (v.is_undefined()) raise_undefined(v);
  raise(std::string(what) + " must be a string, not " + type_name(v));
}

}  // namespace tokamak::jinja
