#pragma once
// The mode max-autotune: where several kernels could run a part of a plan, steps are run with each
// of the best few, and the plan gets the fastest. Bits do not change: all of them have the numeric
// class and the weight layout of the predicted choice.
#include <vector>

#include "compile/planner/planner.h"

namespace tokamak {

// Backend and weights outlive what it returns.
TrialLoader trial_loader(Backend& backend, const WeightSource& weights);

// Sets PlanRequest::forced to what ran fastest. `empty`: the set without plans. Does nothing where
// the options cannot load trials. Measures step, decode and verify<k> of models with a KV cache.
void tune_requests(std::vector<PlanRequest>& requests, const PlanSet& empty, const Backend& backend,
                   const Machine& machine, const CompileOptions& options);

}  // namespace tokamak
