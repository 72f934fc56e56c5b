#include "tensor/recipe_run.h"

#include <algorithm>

#include <fmt/ranges.h>

namespace tokamak {

int64_t recipe_elements(const std::string& weight, std::span<const int64_t> dims) {
  int64_t n = 1;
  for (int64_t d : dims)
    if (d < 0 || __builtin_mul_overflow(n, d, &n))
      fail(ErrorCode::kCorrupt, "weight {}: an extent of {} is not valid", weight, d);
  return n;
}

RecipeMove plan_move(const std::string& weight, const RecipeStep& step,
                     const std::vector<int64_t>& dims) {
  RecipeMove out{dims};
  if (step.kind == RecipeStep::Kind::kTranspose) {
    if (dims.size() != 2 && dims.size() != 3)
      fail(ErrorCode::kCorrupt, "weight {}: transpose needs two axes, or a stack of such", weight);
    std::swap(out.dims[dims.size() - 2], out.dims.back());
    return out;
  }
  const int64_t rows = dims.empty() ? 0 : dims[0];
  if (!dims.empty()) out.unit = recipe_elements(weight, std::span(dims).subspan(1));
  if (step.kind == RecipeStep::Kind::kSliceRows) {
    int64_t period = step.dims.empty() ? std::max<int64_t>(1, rows) : step.dims[0];
    if (dims.empty() || step.a < 0 || step.b < step.a || step.b > period || period < 1 ||
        rows % period != 0)
      fail(ErrorCode::kCorrupt, "weight {}: rows [{}, {}) of {}", weight, step.a, step.b, rows);
    out.dims[0] = rows / period * (step.b - step.a);
    return out;
  }
  bool whole = !dims.empty() && step.a >= 1 && rows % step.a == 0;
  int64_t size = whole ? rows / step.a : 0, rotated = step.b == 0 ? size : step.b;
  if (!whole || rotated < 0 || rotated > size || rotated % 2 != 0)
    fail(ErrorCode::kCorrupt, "weight {}: {} rows are not {} heads of pairs", weight, rows, step.a);
  return out;
}

void concat_extents(const std::string& weight, std::vector<int64_t>& dims,
                    const std::vector<int64_t>& more) {
  if (dims.empty() || dims.size() != more.size() ||
      !std::equal(dims.begin() + 1, dims.end(), more.begin() + 1))
    fail(ErrorCode::kCorrupt, "weight {}: [{}] and [{}] cannot be concatenated", weight,
         fmt::join(dims, ", "), fmt::join(more, ", "));
  dims[0] += more[0];
}

}  // namespace tokamak
