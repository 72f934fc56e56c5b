#pragma once
// Which functions and shapes get plans of their own.
#include <vector>

#include "backend/backend.h"
#include "compile/compiler.h"
#include "graph/graph.h"

namespace tokamak {

// A range of the bucketed symbol (T, or B of decode and verify), as in GuardRange.
struct ShapeRange {
  int64_t lo, hi, pad, multiple = 1;
};
// The plans of a function, most specific first. `tiers`: the sizes of Shapes::kAuto.
std::vector<ShapeRange> shape_ranges(const CompileOptions& options, std::vector<int64_t> tiers,
                                     int64_t max);

// One guard per plan, most specific first. With draft trees every plan reads the mask, whose width
// is the symbol M.
using Guards = std::vector<std::vector<GuardRange>>;
Guards step_guards(const CompileOptions& options);
Guards decode_guards(const CompileOptions& options);
Guards exit_guards(CompileOptions options);
Guards verify_guards(const CompileOptions& options, int drafts);

// For a function that is not derived from step: one plan for all values of the symbols of its
// inputs.
std::vector<GuardRange> function_guard(const Function& function);

// Eager plans: every value has a place of its own in the arena; none is reused.
void spread_values(PlanSet& set);

}  // namespace tokamak
