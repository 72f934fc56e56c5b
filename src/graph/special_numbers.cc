#include "graph/special_numbers.h"

#include <cmath>
#include <numbers>

namespace tokamak {

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

std::vector<double> inverted_numbers(const std::set<double>& numbers) {
  std::vector<double> out;
  for (double a : numbers)
    for (double v :
         {std::asin(a), std::numbers::pi - std::asin(a), std::acos(a), -std::acos(a), std::atanh(a),
          std::log(a), std::exp(a), 1 / a, 1 / (a * a), std::log(a / (1 - a))}) {
      if (!std::isfinite(v)) continue;
      auto near = static_cast<float>(v);
      for (float f : {near, std::nextafterf(near, -INFINITY), std::nextafterf(near, INFINITY)})
        out.push_back(static_cast<double>(f));
    }
  return out;
}

}  // namespace tokamak
