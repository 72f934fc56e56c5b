#include "text/grammar/json_number.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "text/grammar/regex_parser.h"

namespace tokamak::grammar {
namespace {

constexpr int kMaxExponent = 330;
constexpr uint32_t kMaxDivisor = 2000, kMaxDivisorDigits = 8;

enum Order { kLess, kEqual, kGreater };

// Compares numbers without a sign with a bound while their digits are read.
class MagnitudeFsm {
 public:
  // wanted: by Order.
  MagnitudeFsm(const Decimal& bound, bool less, bool equal, bool greater)
      : bound_(bound), wanted_{less, equal, greater} {}

  CharFsm build() {
    size_t length = bound_.whole.size();
    start_ = fsm_.add_state();
    for (Order o : {kLess, kGreater}) {
      decided_[o] = fsm_.add_state(wanted_[o]);
      fsm_.add_edge(decided_[o], {{'.', '.'}, {'0', '9'}}, decided_[o]);
    }
    add_fraction();
    // after[i][o]: i digits of the whole part were read, in this order to the bound's first i.
    std::vector<std::array<uint32_t, 3>> after(length + 1);
    for (size_t i = 0; i <= length; ++i)
      for (Order o : {kLess, kEqual, kGreater}) {
        bool all = i == length;
        Order order = all ? (o == kEqual && !bound_.fraction.empty() ? kLess : o) : kLess;
        after[i][o] = i == 0 ? start_ : fsm_.add_state(wanted_[order]);
      }
    for (size_t i = 0; i <= length; ++i)
      for (Order o : {kLess, kEqual, kGreater}) {
        if (i == 0 && o != kEqual) continue;
        connect(after, i, o);
      }
    return std::move(fsm_);
  }

 private:
  void connect(const std::vector<std::array<uint32_t, 3>>& after, size_t i, Order o) {
    uint32_t from = after[i][o];
    if (i > 0) {
      bool all = i == bound_.whole.size();
      uint32_t point = !all ? decided_[kLess] : o == kEqual ? fraction_ : decided_[o];
      fsm_.add_edge(from, {{'.', '.'}}, point);
    }
    for (char32_t d = '0'; d <= '9'; ++d) {
      uint32_t to = decided_[kGreater];  // longer than the bound
      if (i < bound_.whole.size()) {
        auto b = static_cast<char32_t>(bound_.whole[i]);
        to = after[i + 1][o != kEqual ? o : d < b ? kLess : d > b ? kGreater : kEqual];
      }
      fsm_.add_edge(from, {{d, d}}, to);
    }
  }

  // The digits after the point, equal so far.
  void add_fraction() {
    uint32_t at = fraction_ = fsm_.add_state();
    for (char digit : bound_.fraction) {
      auto b = static_cast<char32_t>(digit);
      uint32_t next = fsm_.add_state();
      fsm_.final[at] = wanted_[kLess];
      if (b > '0') fsm_.add_edge(at, {{'0', b - 1}}, decided_[kLess]);
      fsm_.add_edge(at, {{b, b}}, next);
      if (b < '9') fsm_.add_edge(at, {{b + 1, '9'}}, decided_[kGreater]);
      at = next;
    }
    fsm_.final[at] = wanted_[kEqual];
    fsm_.add_edge(at, {{'0', '0'}}, at);
    fsm_.add_edge(at, {{'1', '9'}}, decided_[kGreater]);
  }

  const Decimal& bound_;
  const bool wanted_[3];
  CharFsm fsm_;
  uint32_t start_ = 0, fraction_ = 0, decided_[3] = {};
};

CharFsm with_minus(const CharFsm& magnitude) {
  CharFsm minus;
  minus.add_state();
  minus.add_edge(0, {{'-', '-'}}, minus.add_state());
  minus.empty[1].push_back(2);
  for (uint32_t s = 0; s < magnitude.size(); ++s) {
    minus.add_state(magnitude.final[s] != 0);
    for (CharFsm::Edge e : magnitude.edges[s]) minus.edges.back().push_back({e.lo, e.hi, e.to + 2});
  }
  return minus;
}

// Numbers at least (or at most) the bound.
CharFsm bounded(const Decimal& bound, bool at_least, bool exclusive) {
  Decimal zero;
  auto magnitude = [&](const Decimal& b, bool greater) {
    return MagnitudeFsm(b, !greater, !exclusive, greater).build();
  };
  CharFsm any = MagnitudeFsm(zero, true, true, true).build();
  CharFsm none = MagnitudeFsm(zero, false, false, false).build();
  Decimal size = bound;
  size.negative = false;
  if (bound.is_zero()) {  // -0 is 0
    CharFsm zeros = exclusive ? none : MagnitudeFsm(zero, false, true, false).build();
    CharFsm side = magnitude(zero, true);
    return at_least ? unite(side, with_minus(zeros)) : unite(zeros, with_minus(side));
  }
  if (at_least)
    return bound.negative ? unite(any, with_minus(magnitude(size, false))) : magnitude(size, true);
  return bound.negative ? with_minus(magnitude(size, true))
                        : unite(magnitude(size, false), with_minus(any));
}

// Numbers with at most `digits` digits after the point that are n * 10^-digits times an integer.
CharFsm multiples(uint32_t n, uint32_t digits) {
  CharFsm out;
  uint64_t scale[kMaxDivisorDigits + 1] = {1};
  for (uint32_t i = 1; i <= digits; ++i) scale[i] = scale[i - 1] * 10;
  out.add_state();
  auto state = [&](uint32_t read, uint32_t rest) { return 1 + read * n + rest; };
  // read 0: before the point; k + 1: k digits after it
  for (uint32_t read = 0; read < digits + 2; ++read)
    for (uint32_t rest = 0; rest < n; ++rest) {
      uint32_t missing = digits - (read == 0 ? 0 : read - 1);
      out.add_state(read != 1 && rest * scale[missing] % n == 0);
    }
  out.add_edge(0, {{'-', '-'}}, 0);
  for (uint32_t read = 0; read < digits + 2; ++read)
    for (uint32_t rest = 0; rest < n; ++rest) {
      if (read == 0 && digits > 0) out.add_edge(state(0, rest), {{'.', '.'}}, state(1, rest));
      if (read == digits + 1) continue;
      for (char32_t d = 0; d < 10; ++d)
        out.add_edge(state(read, rest), {{'0' + d, '0' + d}},
                     state(read == 0 ? 0 : read + 1, (rest * 10 + d) % n));
    }
  for (char32_t d = 0; d < 10; ++d) out.add_edge(0, {{'0' + d, '0' + d}}, state(0, d % n));
  return out;
}

CharFsm multiples_of(const Decimal& divisor) {
  if (divisor.negative || divisor.is_zero())
    fail(ErrorCode::kInvalidArgument, "must be greater than 0");
  std::string digits = divisor.whole + divisor.fraction;
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size() - 1));
  auto places = static_cast<uint32_t>(divisor.fraction.size());
  if (digits.size() > 5 || places > kMaxDivisorDigits ||
      static_cast<uint32_t>(std::stoi(digits)) > kMaxDivisor)
    fail(ErrorCode::kInvalidArgument, "has too many digits; divisors up to {} are supported",
         kMaxDivisor);
  return multiples(static_cast<uint32_t>(std::stoi(digits)), places);
}

}  // namespace

Decimal decimal_of(const Value& number) {
  std::string text = dump_json(number);
  Decimal out;
  size_t pos = 0;
  if (text[pos] == '-') out.negative = true, ++pos;
  size_t e = text.find_first_of("eE", pos);
  int exponent = e == std::string::npos ? 0 : std::stoi(text.substr(e + 1));
  if (exponent > kMaxExponent || exponent < -kMaxExponent)
    fail(ErrorCode::kInvalidArgument, "the number {} has too many digits", text);
  std::string mantissa = text.substr(pos, e == std::string::npos ? e : e - pos);
  size_t point = std::min(mantissa.find('.'), mantissa.size());
  std::string digits = mantissa.substr(0, point);
  if (point < mantissa.size()) digits += mantissa.substr(point + 1);
  long whole = static_cast<long>(point) + exponent;
  if (whole < 0) digits.insert(0, static_cast<size_t>(-whole), '0'), whole = 0;
  if (static_cast<size_t>(whole) > digits.size()) digits.resize(static_cast<size_t>(whole), '0');
  out.whole = digits.substr(0, static_cast<size_t>(whole));
  out.fraction = digits.substr(static_cast<size_t>(whole));
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  if (out.whole.empty()) out.whole = "0";
  out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  if (out.is_zero()) out.negative = false;
  return out;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  int order = a.whole.size() != b.whole.size() ? (a.whole.size() < b.whole.size() ? -1 : 1)
              : a.whole != b.whole             ? (a.whole < b.whole ? -1 : 1)
              : a.fraction != b.fraction       ? (a.fraction < b.fraction ? -1 : 1)
                                               : 0;
  return a.negative ? -order : order;
}

CharFsm number_fsm(const NumberBounds& bounds, bool integers, bool fractions) {
  // At most 15 digits with a point: more would not survive as a double, and could then be on the
  // wrong side of a bound.
  CharFsm whole = parse_regex("-?(0|[1-9][0-9]*)", RegexUse::kWhole);
  CharFsm pointed = intersect(
      parse_regex(integers ? "-?(0|[1-9][0-9]*)\\.[0-9]+" : "-?(0|[1-9][0-9]*)\\.[0-9]*[1-9]",
                  RegexUse::kWhole),
      fsm_of_length(3, 16));
  CharFsm out = deterministic(!fractions ? whole : integers ? unite(whole, pointed) : pointed);
  auto restrict_to = [&](const CharFsm& fsm) { out = deterministic(intersect(out, fsm)); };
  if (bounds.min) restrict_to(bounded(*bounds.min, true, bounds.above_min));
  if (bounds.max) restrict_to(bounded(*bounds.max, false, bounds.below_max));
  for (const Decimal& divisor : bounds.multiples_of) restrict_to(multiples_of(divisor));
  return out;
}

}  // namespace tokamak::grammar
