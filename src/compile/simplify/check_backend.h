#pragma once
// The same comparison with the optimised function run by a backend's own kernels.
#include "compile/simplify/check.h"
#include "graph/evaluate.h"

namespace tokamak {

// `before` by the reference meaning, `after` planned and run by the backend with concrete extents;
// inputs that a step does not have become weights and constants. States start empty (zero); the
// states of the step are compared through an attention that reads them. Error(kUnsupported) when
// the backend has no kernel for a node.
CheckReport check_on_backend(const Function& before, const Function& after, Backend& backend,
                             const CheckOptions& options);

// One f32 result of a function with constant extents, planned and run by the backend.
std::vector<float> run_on_backend(const Function& function, const EvalInputs<float>& inputs,
                                  const std::string& result, Backend& backend);

// Both planned and run by the backend; bit for bit, for exact passes.
CheckReport compare_on_backend(const Function& before, const Function& after, Backend& backend,
                               const CheckOptions& options);

}  // namespace tokamak
