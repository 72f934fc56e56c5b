#pragma once
// How often an executable ran each plan, as shown by `/metrics` and `bench --json`.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace tokamak {

// Counters only grow. Copied by value between threads; a copy allocates nothing.
struct DispatchStats {
  static constexpr size_t kPlans = 64;                    // the most that a PlanSet has
  std::shared_ptr<const std::vector<std::string>> names;  // plan_name() of each plan
  std::array<int64_t, kPlans> steps{};                    // by plan
  int64_t fallbacks = 0;    // steps that ran in a more general plan than their function or bucket
  int64_t rows = 0;         // tokens of all steps, without padding
  int64_t padded_rows = 0;  // rows of padding
  int64_t compiles = 0;     // plans that the process made after loading: stays 0
  int64_t graphs = 0;       // steps that a GPU replayed as a graph
  int64_t captures = 0;     // graphs that were made during steps
};

// The number of plans that this process has made. Thread-safe; the planner counts each plan.
void count_compile();
int64_t compile_count();

std::string plan_name(const Plan& plan);  // "step T<=64", "decode B=5..8 padded to 8"

}  // namespace tokamak
