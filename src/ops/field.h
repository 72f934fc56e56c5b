#pragma once
// Integers modulo the prime 2^61 - 1. Two expressions built from +, -, *, / that agree here on
// random values agree over the rationals, except with a probability of about degree / 2^61. This
// checks rewrites exactly: no rounding error can hide a mistake.
#include <cmath>
#include <cstdint>

#include "base/error.h"

namespace tokamak {

class Field {
 public:
  static constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;

  constexpr Field() = default;
  constexpr Field(int64_t value)  // NOLINT: integers are elements of the field
      : value_(value >= 0 ? static_cast<uint64_t>(value) % kPrime
                          : kPrime - 1 - static_cast<uint64_t>(-(value + 1)) % kPrime) {}

  // A finite double is an integer times a power of two, so it has an exact image.
  static Field from_double(double value) {
    TK_CHECK(std::isfinite(value), "{} has no image in the finite field", value);
    int exponent = 0;
    auto mantissa = static_cast<int64_t>(std::ldexp(std::frexp(value, &exponent), 53));
    Field power = Field(2).power(static_cast<uint64_t>(std::abs(exponent - 53)));
    return exponent >= 53 ? Field(mantissa) * power : Field(mantissa) / power;
  }

  constexpr uint64_t value() const { return value_; }

  friend constexpr Field operator+(Field a, Field b) { return reduce(a.value_ + b.value_); }
  friend constexpr Field operator-(Field a, Field b) {
    return reduce(a.value_ + (kPrime - b.value_));
  }
  friend constexpr Field operator-(Field a) { return Field() - a; }
  friend constexpr Field operator*(Field a, Field b) {
    unsigned __int128 product = static_cast<unsigned __int128>(a.value_) * b.value_;
    // 2^61 is 1 modulo the prime: the high part is added to the low part.
    return reduce(static_cast<uint64_t>(product & kPrime) + static_cast<uint64_t>(product >> 61));
  }
  friend Field operator/(Field a, Field b) {
    TK_CHECK(b.value_ != 0, "division by zero in the finite field");
    return a * b.power(kPrime - 2);  // Fermat: b^(p-2) is the inverse of b
  }
  Field& operator+=(Field o) { return *this = *this + o; }
  Field& operator*=(Field o) { return *this = *this * o; }
  constexpr bool operator==(const Field&) const = default;

  constexpr Field power(uint64_t exponent) const {
    Field result(1), base = *this;
    for (; exponent > 0; exponent >>= 1, base = base * base)
      if (exponent & 1) result = result * base;
    return result;
  }

 private:
  static constexpr Field reduce(uint64_t value) {  // value < 2^62
    Field f;
    f.value_ = value >= kPrime ? value - kPrime : value;
    return f;
  }
  uint64_t value_ = 0;
};

}  // namespace tokamak
