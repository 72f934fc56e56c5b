#pragma once
// Which plans an executable chose, as plain numbers: what `/metrics` and `bench --json` show.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace tokamak {

// Counters only grow. Copied by value between threads; a copy allocates nothing.
struct DispatchStats {
  static constexpr size_t kPlans = 64;                    // the most a PlanSet has
  std::shared_ptr<const std::vector<std::string>> names;  // plan_name() of each plan
  std::array<int64_t, kPlans> steps{};                    // by plan
  int64_t fallbacks = 0;    // steps that ran in a more general plan than their function or bucket
  int64_t rows = 0;         // tokens of all steps, without padding
  int64_t padded_rows = 0;  // rows computed for nobody
  int64_t compiles = 0;     // plans made by the process after loading: stays 0
};

// Plans that this process has made, from any thread; whoever makes one says so.
void count_compile();
int64_t compile_count();

std::string plan_name(const Plan& plan);  // "step T<=64", "decode B=5..8 padded to 8"

}  // namespace tokamak
