#pragma once
// A case in the form a backend takes: a PlanSet with the op and its producers, weights and steps.
#include <memory>

#include "backend/backend.h"
#include "ops/cases.h"

namespace tokamak::testing {

struct CasePlan {
  PlanSet plans;
  WeightTable weights;
  std::vector<StepInputs> steps;  // the last one is measured
  LoadOptions options;
  bool supported = true;        // the backend has kernels for every call
  double flops = 0, bytes = 0;  // of one run of the op in the last step
};

// `repeat`: number of calls of the op under test in the plan.
CasePlan build_case(const OpCase& c, const Backend& backend, int repeat = 1);

// Runs the steps; returns the rows of all steps in order.
std::vector<float> run_case(const CasePlan& plan, Backend& backend);

}  // namespace tokamak::testing
