#pragma once
// What the tests of lowering share: bodies cut out of graphs, and comparing results bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <span>

#include "base/error.h"
#include "compile/lower/lower.h"
#include "graph/evaluate.h"

namespace tokamak::testing {

struct BodyCase {
  const char* name;
  const char* text;  // statements of the body; D is replaced by the number of columns
};
std::span<const BodyCase> body_cases();

inline Module body_module(const BodyCase& c, int64_t columns) {
  std::string text = c.text;
  for (size_t at; (at = text.find('D')) != std::string::npos;)
    text.replace(at, 1, std::to_string(columns));
  return parse_module(
      "module m format 1\nsymbol T in 1..4096\nsymbol S in 1..4096\n"
      "constant half : f32[] = [0.5]\nfunc body {\n" +
      text + "}\n");
}

// -1: the same bits (every NaN is like every other); otherwise the first difference.
inline int64_t first_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return 0;
  for (size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], 4) != 0 && !(std::isnan(a[i]) && std::isnan(b[i])))
      return static_cast<int64_t>(i);
  return -1;
}

}  // namespace tokamak::testing
