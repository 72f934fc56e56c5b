#pragma once
// The shape to explain, and a step of that shape.
#include <map>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/step.h"

namespace tokamak {

struct StepShape {
  int64_t sequences = 1;     // B
  int64_t tokens = 1;        // T, of all sequences together
  int64_t kv_len = 0;        // S: tokens of each sequence, including those of the step
  int64_t logit_rows = 0;    // R
  bool kv_len_given = true;  // false: S is a default and may be reduced to the context
};

// From items like "B=8": decode and verify<k> have B and S, step also T and R. Missing items get a
// default. Throws Error(kInvalidArgument) naming the invalid item or the inconsistent ones.
StepShape parse_shape(std::string_view function, const std::vector<std::string>& items);
// Limits a default S to the model's context.
void fit_context(StepShape& shape, int64_t context);
int64_t rows_per_sequence(std::string_view function);  // 1: decode; k + 1: verify<k>; 0: any number

// The rows of a sequence are its last tokens; ids are distinct if the vocabulary allows it; KV
// blocks are contiguous.
StepInputs make_step(const PlanSet& set, std::string_view function, const StepShape& shape);
// An input of the step by name; empty if there is none.
const std::vector<int32_t>& step_values(const StepInputs& step, std::string_view name);
std::vector<int64_t> blocks_for(const PlanSet& set, const StepShape& shape);  // per group

// The plan that runs the step. Throws Error(kOutOfRange) naming the limit if there is none.
size_t plan_for(const PlanSet& set, std::string_view function, const StepShape& shape);

// A step as its plan sees it: in a bucket, followed by padding rows.
using SymbolMap = std::map<std::string, int64_t, std::less<>>;
struct BoundStep {
  size_t plan;
  StepInputs step;
  SymbolMap symbols;  // used to evaluate the extents of every call
};
BoundStep bind_step(const PlanSet& set, std::string_view function, const StepShape& shape);

}  // namespace tokamak
