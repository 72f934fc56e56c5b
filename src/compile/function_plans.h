#pragma once
// The plans of each function of a model: which shapes get one, under which guards, and what they
// have in common.
#include <string>
#include <vector>

#include "compile/planner/planner.h"

namespace tokamak {

// The options as the mode and the backend need them.
CompileOptions options_for(CompileOptions options, const Backend& backend);

// A set with the sizes and tables of the model, without plans.
PlanSet new_plan_set(const Module& module, const ModelConfig& config, const Backend& backend,
                     const CompileOptions& options);

// The plans of step, decode and verify<k> for each k of the options (not of encoders), and other
// functions, in this order.
std::vector<PlanRequest> plan_requests(const std::vector<Function*>& functions,
                                       const CompileOptions& options);

}  // namespace tokamak
