#pragma once
// Which shapes get their own plans.
#include <vector>

#include "compile/compiler.h"

namespace tokamak {

// A range of the bucketed symbol (T, or B of decode and verify), as in GuardRange.
struct ShapeRange {
  int64_t lo, hi, pad, multiple = 1;
};
// The plans of a function, most specific first. `tiers`: the sizes of Shapes::kAuto.
std::vector<ShapeRange> shape_ranges(const CompileOptions& options, std::vector<int64_t> tiers,
                                     int64_t max);

// Eager plans: every value gets its own memory, nothing is reused.
void spread_values(PlanSet& set, Plan& plan);

}  // namespace tokamak
