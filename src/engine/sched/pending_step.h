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
  int32_t drafts = 0;     // drafted tokens: the last ones of `count`
  bool prompt = false;    // of several tokens that were known and not computed
  bool chooses = false;   // the last row (with drafts: every row) chooses a token
  bool guides = false;    // of a shadow: the next entry is its leader's, which chooses
  int32_t first_out = 0;  // index into StepInputs::out_rows: scores first, then choices
  int32_t scores = 0;
  bool pools = false;  // after the scores: the vector of the prompt

  // The outputs that choose, one for each of the last 1 + drafts rows.
  int32_t first_choice() const { return first_out + scores; }
};

// Owned by EngineCore's ring of steps, reused.
struct PendingStep {
  Ticket ticket = 0;
  Nanos submitted = 0;
  bool masks_sent = false;  // the driver has been asked for the masks of its outputs
  double limit = 0;         // seconds it should take; 0: none, or not both decodes and prompts
  double predicted = 0;     // seconds; 0: no prompts
  std::vector<StepEntry> entries;
  StepInputs inputs;
  // Phases that choose drafts come first; the last phase has one sequence per entry.
  int32_t draft_sequences = 0, draft_outputs = 0;
  std::vector<size_t> owners;  // per sequence of the inputs: its entry

  size_t sequence_of(size_t entry) const { return static_cast<size_t>(draft_sequences) + entry; }
};

// The result has a row of the same width for every output, if any entry wants one (pool.cc).
bool vectors_complete(const PendingStep& step, const StepResult& result);
// The hidden state of an output row; draft outputs have none.
std::span<const float> hidden_row(const PendingStep& step, const StepResult& result, int32_t row);

}  // namespace tokamak
