#pragma once
// Is a StepInputs well formed for this PlanSet? Every index is checked before anything uses it.
#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "plan/step.h"

namespace tokamak {

// Owned by an Executable, used by its thread. No allocation after warm-up; O(tokens + table
// entries).
class StepChecker {
 public:
  StepChecker(const PlanSet& plans, std::vector<int64_t> blocks, int64_t max_rows, int64_t vocab);
  // Throws Error(kInternal, "step: ...") on the first thing that is wrong.
  void check(const StepInputs& step);

 private:
  void check_tokens(const StepInputs& step) const;
  void check_rows(const StepInputs& step);
  void check_samples(const StepInputs& step) const;
  void check_tables(const StepInputs& step);

  std::vector<GroupEntry> groups_;
  std::vector<int64_t> blocks_;
  int64_t max_rows_, vocab_;
  uint64_t stamp_ = 0;
  std::vector<uint64_t> row_seen_;  // step in which the row was last used
  std::vector<std::vector<uint64_t>>
      block_written_;  // per group: step and sequence of the last writer
};

}  // namespace tokamak
