#pragma once
// Runs a function before and after passes on random inputs, state included, and compares.
#include <map>
#include <string>
#include <vector>

#include "compile/pass.h"
#include "graph/evaluate.h"

namespace tokamak {

struct CheckOptions {
  uint64_t seed = 1;
  int runs = 4;
  PassClass cls =
      PassClass::kReal;  // exact: bit for bit; real: within the error bound of each value
  // Both sides at float64, where rounding does not flip comparisons; what is not finite before is
  // not compared.
  bool wide = false;
};

struct CheckReport {
  bool same = true, bits = true;  // within what the class allows; bit for bit
  double error = 0;               // largest absolute difference of two values
  double of_bound = 0;            // largest difference divided by its error bound
  double nmse = 0;                // worst over results and planes
  std::string where;              // result or plane of the largest difference
  int runs = 0;                   // random inputs that were compared
  std::string message;            // why it is not the same
};

// Both by the reference meaning at float32. The functions may belong to different modules that
// declare the same inputs, states and model-file tensors.
CheckReport check_functions(const Function& before, const Function& after,
                            const CheckOptions& options);

// For each result and plane ("kv.0.k") the exact value of each element, and the error that float32
// rounding in both functions explains (graph/sensitivity.h).
struct ErrorBounds {
  std::map<std::string, std::vector<double>> exact, error;
};
// `roundings`: factor on the rounding error of each node.
ErrorBounds error_bounds(const Function& before, const Function& after,
                         const EvalInputs<double>& inputs, double roundings);

// Adds the differences between two runs to the report. `bounds` is used for class real.
void compare_runs(const EvalResults<float>& before, const EvalResults<float>& after,
                  const ErrorBounds& bounds, const CheckOptions& options, CheckReport& report);

// The least strict class among the passes.
PassClass class_of(const std::vector<const Pass*>& passes);

// Finds what breaks a function: the pass, and inside a pass of rewrite rules the first wrong
// firing. The oracle is the reference interpreter; the number of checks is logarithmic.
struct Culprit {
  bool found = false;
  std::string pass, firing;  // firing: "rule silu at %7 (mul)"; empty when the pass has no rules
  int checks = 0;
};
Culprit bisect(const Module& module, const std::string& function, const PassContext& context,
               const CheckOptions& options);

}  // namespace tokamak
