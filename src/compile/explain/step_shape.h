#pragma once
// The shape that `explain` looks at, and a step of that shape.
#include <map>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/step.h"

namespace tokamak {

struct StepShape {
  int64_t sequences = 1;     // B
  int64_t tokens = 1;        // T, of all sequences together
  int64_t kv_len = 0;        // S: tokens of each sequence, those of the step included
  int64_t logit_rows = 0;    // R
  bool kv_len_given = true;  // false: S is a default and may be cut to the context
};

// From items like "B=8": decode has B and S, verify<k> too, step also T and R. What is left out
// gets a default. Throws Error(kInvalidArgument) naming the item, or what does not go together.
StepShape parse_shape(std::string_view function, const std::vector<std::string>& items);
// A default S that is longer than the model's context becomes that.
void fit_context(StepShape& shape, int64_t context);
int64_t rows_per_sequence(std::string_view function);  // 1: decode; k + 1: verify<k>; 0: any number

// Rows of a sequence are its last tokens; ids differ while the vocabulary allows it; KV blocks are
// contiguous.
StepInputs make_step(const PlanSet& set, std::string_view function, const StepShape& shape);
// An input of the step by its name; empty when there is none.
const std::vector<int32_t>& step_values(const StepInputs& step, std::string_view name);
std::vector<int64_t> blocks_for(const PlanSet& set, const StepShape& shape);  // per group

// The plan that runs the step. Throws Error(kOutOfRange) naming the limit when none does.
size_t plan_for(const PlanSet& set, std::string_view function, const StepShape& shape);

// A step as its plan sees it: in a bucket with rows of padding behind its own.
using SymbolMap = std::map<std::string, int64_t, std::less<>>;
struct BoundStep {
  size_t plan;
  StepInputs step;
  SymbolMap symbols;  // extents of every call can be evaluated with them
};
BoundStep bind_step(const PlanSet& set, std::string_view function, const StepShape& shape);

}  // namespace tokamak
