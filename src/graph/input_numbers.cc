#include "graph/input_numbers.h"

#include <cmath>
#include <limits>
#include <numbers>

#include "tensor/block_formats.h"

namespace tokamak {

float round_to(DType dtype, double value) {
  auto v = static_cast<float>(value);
  if (dtype == DType::kF16) return f16_to_f32(f32_to_f16(v));
  if (dtype == DType::kBF16) return bf16_to_f32(f32_to_bf16(v));
  return v;
}

std::vector<double> combined_numbers(const std::set<double>& numbers) {
  std::vector<double> out;
  for (double a : numbers) {
    double root = std::sqrt(std::abs(a));
    for (double v : {a, -a, 2 * a, a / 2, root, -root, a * (1 + 1e-6), a * (1 - 1e-6)})
      out.push_back(v);
    for (double b : numbers)
      if (a != b)
        for (double v : {a / b, a - b, a * b, std::fmod(a, b)})
          if (std::isfinite(v)) out.push_back(v);
  }
  return out;
}

namespace {

// Where an increasing function has the value y.
template <class F>
double solve(F f, double y, double lo, double hi) {
  for (int step = 0; step < 80; ++step) {
    double middle = lo + (hi - lo) / 2;
    (f(middle) < y ? lo : hi) = middle;
  }
  return hi;
}

}  // namespace

std::vector<double> inverted_numbers(const std::set<double>& numbers) {
  std::vector<double> out;
  for (double a : numbers)
    for (double v : {std::asin(a), std::numbers::pi - std::asin(a), std::acos(a), -std::acos(a),
                     std::atanh(a), std::log(a), std::exp(a), 1 / a, 1 / (a * a),
                     std::log(a / (1 - a)), solve([](double x) { return std::erf(x); }, a, -6, 6),
                     solve([](double x) { return x / (1 + std::exp(-x)); }, a, -1.2, 100),
                     solve([](double x) { return x / 2 * std::erfc(-x / std::numbers::sqrt2); }, a,
                           -0.7, 100)}) {
      if (!std::isfinite(v)) continue;
      auto near = static_cast<float>(v);
      for (float f : {near, std::nextafterf(near, -INFINITY), std::nextafterf(near, INFINITY)})
        out.push_back(static_cast<double>(f));
    }
  return out;
}

double random_value(Rng& rng, Values kind) {
  static constexpr double kSpecial[] = {0.0,
                                        -0.0,
                                        std::numeric_limits<double>::infinity(),
                                        -std::numeric_limits<double>::infinity(),
                                        std::numeric_limits<double>::quiet_NaN(),
                                        1e-45,
                                        -1e-40,
                                        3.4028234e38,
                                        -3.4028234e38,
                                        1.0,
                                        -1.0,
                                        0.5,
                                        65504.0,
                                        1e-8};
  switch (kind) {
    case Values::kNormal:
      return rng.normal();
    case Values::kLarge:
      return rng.normal() * 1e4;
    case Values::kTiny:
      return rng.normal() * 1e-4;
    case Values::kMedium:
      // In f32 the exponentials of some of these are infinite, those of their negatives are not 0.
      if (rng.below(8) == 0) return (rng.below(2) ? 1 : -1) * rng.uniform(85, 105);
      [[fallthrough]];
    case Values::kClose:
      return rng.normal() * 15;
    case Values::kMixed:
      return rng.below(6) == 0 ? 0.0 : rng.normal() * std::pow(10.0, rng.uniform(-4, 4));
    case Values::kEach:
    case Values::kEachNasty:
    case Values::kNasty:
      // Zeros, infinities and NaN most of all.
      if (rng.below(2) == 0) return kSpecial[rng.below(rng.below(2) ? 5 : std::size(kSpecial))];
      return rng.normal() * std::pow(2.0, static_cast<double>(rng.below(60)) - 30);
  }
  return 0;
}

}  // namespace tokamak
