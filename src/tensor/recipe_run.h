#pragma once
// The steps of weight recipes, for any form of the values: the bytes of a model file
// (backend/common/weights.h) and the scalars of an interpreter (graph/evaluate.h). The order of
// steps, their effect on extents and which elements go where are written here only.
#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "tensor/recipe.h"

namespace tokamak {

// The product of the extents; Error(kCorrupt) when it is negative or overflows.
int64_t recipe_elements(const std::string& weight, std::span<const int64_t> dims);

// A step that only moves elements: slice_rows, permute_rows or transpose.
struct RecipeMove {
  std::vector<int64_t> dims;  // after it
  int64_t unit = 1;           // elements that stay together
};
// Error(kCorrupt) naming the weight when the step does not fit the extents.
RecipeMove plan_move(const std::string& weight, const RecipeStep& step,
                     const std::vector<int64_t>& dims);
// Extents with the rows of another source added.
void concat_extents(const std::string& weight, std::vector<int64_t>& dims,
                    const std::vector<int64_t>& more);

// Calls copy(to, from, count), in units, for a step that plan_move() accepts; `dims`: before it.
template <class Copy>
void each_move(const RecipeStep& step, const std::vector<int64_t>& dims, Copy&& copy) {
  if (step.kind == RecipeStep::Kind::kSliceRows) {
    int64_t period = step.dims.empty() ? dims[0] : step.dims[0], count = step.b - step.a, to = 0;
    for (int64_t row = 0; row < dims[0]; row += period, to += count) copy(to, row + step.a, count);
  } else if (step.kind == RecipeStep::Kind::kPermuteRows) {
    int64_t size = dims[0] / step.a, rotated = step.b == 0 ? size : step.b, half = rotated / 2;
    for (int64_t head = 0; head < dims[0]; head += size) {
      for (int64_t part = 0; part < 2; ++part)
        for (int64_t j = 0; j < half; ++j) copy(head + part * half + j, head + 2 * j + part, 1);
      if (rotated < size) copy(head + rotated, head + rotated, size - rotated);
    }
  } else {
    int64_t rows = dims[dims.size() - 2], columns = dims.back(), all = 1;
    for (int64_t d : dims) all *= d;
    for (int64_t at = 0; at < all; at += rows * columns)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) copy(at + c * rows + r, at + r * columns + c, 1);
  }
}

// add, scale and scale_columns: `number` makes a scalar of a step's value; `factors`: those of
// scale_columns, one per column.
template <class S, class Number>
void change_values(const RecipeStep& step, std::span<S> values, std::span<const S> factors,
                   Number&& number) {
  const S value = number(step.value);
  if (step.kind == RecipeStep::Kind::kAddScalar)
    for (S& x : values) x = x + value;
  if (step.kind == RecipeStep::Kind::kScale)
    for (S& x : values) x = x * value;
  if (step.kind == RecipeStep::Kind::kScaleColumns)
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = values[i] * (factors[i % factors.size()] + value);
}

// Divides each row by its length, of numbers that have roots.
template <class S>
void make_unit_rows(std::span<S> values, int64_t width) {
  constexpr double kShortest = 1e-12;
  for (size_t row = 0, n = static_cast<size_t>(width); row < values.size(); row += n) {
    double sum = 0;
    for (S x : values.subspan(row, n)) sum += static_cast<double>(x) * static_cast<double>(x);
    const S length = static_cast<S>(std::max(std::sqrt(sum), kShortest));
    for (S& x : values.subspan(row, n)) x = x / length;
  }
}

// Rounds to multiples of the mean magnitude, at most one.
template <class S>
void make_ternary(std::span<S> values) {
  constexpr double kLeast = 1e-5;
  double sum = 0;
  for (S x : values) sum += std::fabs(static_cast<double>(x));
  const S inverse =
      S(1) / static_cast<S>(std::max(sum / static_cast<double>(values.size()), kLeast));
  for (S& x : values) x = std::clamp(std::nearbyint(x * inverse), S(-1), S(1)) / inverse;
}

// Runs a recipe. Tensor: `name` (of the weight), `dims`, and
//   take(source)       a source as it is
//   concat(sources)    rows of all sources
//   move(step, move)   by each_move(); `dims` are still those before it
//   change(step)       by change_values()
//   unit_rows(), ternary()
//   reshape(step)      the same elements; `dims` are still those before it
//   cast(dtype), join_mxfp4(step), sort_groups(step)
//   join_groups(sources, step)
template <class Tensor>
void run_recipe(const Recipe& recipe, Tensor& t) {
  using Kind = RecipeStep::Kind;
  std::span<const RecipeStep> steps = recipe.steps;
  if (!steps.empty() && steps[0].kind == Kind::kConcatRows) {
    t.concat(recipe.sources);
    steps = steps.subspan(1);
  } else if (!steps.empty() && steps[0].kind == Kind::kJoinGroups) {
    t.join_groups(recipe.sources, steps[0]);
    steps = steps.subspan(1);
  } else if (recipe.sources.size() == 1) {
    t.take(recipe.sources[0]);
  } else {
    fail(ErrorCode::kCorrupt, "weight {}: {} sources need concat_rows first", t.name,
         recipe.sources.size());
  }
  for (const RecipeStep& step : steps) switch (step.kind) {
      case Kind::kSliceRows:
      case Kind::kPermuteRows:
      case Kind::kTranspose: {
        RecipeMove move = plan_move(t.name, step, t.dims);
        t.move(step, move);
        t.dims = std::move(move.dims);
        break;
      }
      case Kind::kReshape:
        if (recipe_elements(t.name, step.dims) != recipe_elements(t.name, t.dims))
          fail(ErrorCode::kCorrupt, "weight {}: reshape changes the number of elements", t.name);
        t.reshape(step);
        t.dims = step.dims;
        break;
      case Kind::kAddScalar:
      case Kind::kScale:
      case Kind::kScaleColumns:
        t.change(step);
        break;
      case Kind::kUnitRows:
        if (t.dims.empty() || t.dims.back() == 0)
          fail(ErrorCode::kCorrupt, "weight {}: unit_rows of no rows", t.name);
        t.unit_rows();
        break;
      case Kind::kTernary:
        t.ternary();
        break;
      case Kind::kCast:
        t.cast(step.dtype);
        break;
      case Kind::kJoinMxfp4:
        t.join_mxfp4(step);
        break;
      case Kind::kSortGroups:
        t.sort_groups(step);
        break;
      case Kind::kConcatRows:
      case Kind::kJoinGroups:
        fail(ErrorCode::kCorrupt, "weight {}: {} must be the first step", t.name,
             recipe_step_name(step.kind));
    }
}

}  // namespace tokamak
