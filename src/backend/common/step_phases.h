#pragma once
// Phases of a step, each as a step of its own.
#include <cstdint>

#include "plan/step.h"

namespace tokamak {

inline size_t phase_count(const StepInputs& step) {
  return step.phases.empty() ? 1 : step.phases.size();
}

// Owned by an Executable, used by its thread. No allocation after warm-up.
class PhaseCutter {
 public:
  // Phases are cut in order, from 0 on; the sizes of the step's vectors have been checked. The
  // result is valid until the next call; it is the step itself when that has no phases.
  const StepInputs& cut(const StepInputs& step, size_t phase);
  // The place of the last phase in the step's outputs and sequences.
  int32_t first_output() const { return first_output_; }
  int32_t first_sequence() const { return first_sequence_; }

 private:
  int32_t first_token_ = 0, first_output_ = 0, first_sequence_ = 0;
  StepInputs slice_;
};

}  // namespace tokamak
