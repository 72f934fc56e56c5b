#pragma once
// Which shapes get plans of their own.
#include <vector>

#include "compile/compiler.h"

namespace tokamak {

// A range of the bucketed symbol (T, or B of decode and verify), as GuardRange has it.
struct ShapeRange {
  int64_t lo, hi, pad, multiple = 1;
};
// The plans of a function, most specific first. `tiers`: the sizes of Shapes::kAuto.
std::vector<ShapeRange> shape_ranges(const CompileOptions& options, std::vector<int64_t> tiers,
                                     int64_t max);

// Eager plans: every value gets a place of its own, nothing is reused.
void spread_values(PlanSet& set, Plan& plan);

}  // namespace tokamak
