#include "tensor/recipe.h"

#include <fmt/ranges.h>

namespace tokamak {

const char* recipe_step_name(RecipeStep::Kind kind) {
  using Kind = RecipeStep::Kind;
  switch (kind) {
    case Kind::kSliceRows:
      return "slice_rows";
    case Kind::kPermuteRows:
      return "permute_rows";
    case Kind::kTranspose:
      return "transpose";
    case Kind::kAddScalar:
      return "add";
    case Kind::kScale:
      return "scale";
    case Kind::kCast:
      return "cast";
    case Kind::kReshape:
      return "reshape";
    case Kind::kConcatRows:
      return "concat_rows";
    case Kind::kScaleColumns:
      return "scale_columns";
    case Kind::kJoinMxfp4:
      return "join_mxfp4";
    case Kind::kJoinGroups:
      return "join_groups";
    case Kind::kSortGroups:
      return "sort_groups";
    case Kind::kUnitRows:
      return "unit_rows";
    case Kind::kTernary:
      return "ternary";
  }
  return "?";
}

std::string recipe_to_text(const Recipe& recipe) {
  std::string text = fmt::format("{}", fmt::join(recipe.sources, " + "));
  for (const RecipeStep& s : recipe.steps) {
    using Kind = RecipeStep::Kind;
    text += fmt::format(" | {}", recipe_step_name(s.kind));
    switch (s.kind) {
      case Kind::kSliceRows:
        text += s.dims.empty() ? fmt::format("({}, {})", s.a, s.b)
                               : fmt::format("({}, {}, {})", s.a, s.b, s.dims[0]);
        break;
      case Kind::kPermuteRows:
        text += s.b == 0 ? fmt::format("({})", s.a) : fmt::format("({}, {})", s.a, s.b);
        break;
      case Kind::kAddScalar:
      case Kind::kScale:
        text += fmt::format("({})", s.value);
        break;
      case Kind::kCast:
        text += fmt::format("({})", dtype_name(s.dtype));
        break;
      case Kind::kReshape:
        text += fmt::format("({})", fmt::join(s.dims, ", "));
        break;
      case Kind::kScaleColumns:
        text += s.value == 0 ? fmt::format("({})", s.tensor)
                             : fmt::format("({} + {})", s.tensor, s.value);
        break;
      case Kind::kJoinMxfp4:
        text += fmt::format("({})", s.tensor);
        break;
      case Kind::kJoinGroups:
        text += fmt::format("({}, {})", dtype_name(s.dtype), fmt::join(s.dims, ", "));
        break;
      case Kind::kSortGroups:
        text += fmt::format("({})", s.a);
        break;
      case Kind::kTranspose:
      case Kind::kConcatRows:
      case Kind::kUnitRows:
      case Kind::kTernary:
        break;
    }
  }
  return text;
}

}  // namespace tokamak
