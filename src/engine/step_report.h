#pragma once
// What a step was planned to take, and what it took.
#include <cstdint>

#include "base/clock.h"

namespace tokamak {

struct StepReport {
  Nanos ended = 0, duration = 0;
  double predicted = 0;  // seconds; 0: it has no prompts, or there is no target
  double limit = 0;      // seconds; 0: it does not have both prompts and decodes
  int64_t decodes = 0;   // sequences
  int64_t chunks = 0, prompt_tokens = 0;
  double depth = 0;  // sum of the positions at which its chunks start
};

}  // namespace tokamak
