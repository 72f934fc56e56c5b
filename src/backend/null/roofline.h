#pragma once
// How long a step takes on a machine: the clock of the null backend. It uses peak operations
// (i8_ops), the bandwidth of memory and launch_seconds.
#include <vector>

#include "plan/machine.h"
#include "plan/plan.h"
#include "plan/step.h"

namespace tokamak {

// Time of a step: fixed cost + max(arithmetic, memory traffic). A step reads all weights once and
// does two operations per weight and token; a sequence reads the KV of its context once, and every
// token attends to all of it.
class Roofline {
 public:
  Roofline(const PlanSet& plans, const Machine& machine);
  double seconds(const StepInputs& step) const;

 private:
  struct Group {
    int64_t window;
    double bytes_per_token, elements_per_token;  // per_sequence: of the sequence
    bool per_sequence = false;
  };
  Machine machine_;
  double weight_bytes_ = 0, weight_elements_ = 0;
  std::vector<Group> groups_;
};

}  // namespace tokamak
