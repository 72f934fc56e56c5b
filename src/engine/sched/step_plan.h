#pragma once
// A step between reserve and commit.
#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "engine/sequence.h"

namespace tokamak {

// The part of one sequence in a step: slots start .. start+count-1.
struct StepEntry {
  Sequence* sequence = nullptr;
  uint32_t epoch = 0;
  int32_t start = 0, count = 0;
  int32_t drafts = 0;     // the last so many of `count` are drafted tokens
  bool chooses = false;   // the last row (with drafts: every row) chooses a token
  int32_t first_out = 0;  // index into StepInputs::out_rows: scores first, then choices
  int32_t scores = 0;
};

// Owned by EngineCore's ring of steps, reused.
struct Step {
  Ticket ticket = 0;
  Nanos submitted = 0;
  std::vector<StepEntry> entries;
  StepInputs inputs;
};

}  // namespace tokamak
