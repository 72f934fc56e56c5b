#pragma once
// Is a step well formed for this PlanSet? Everything that is used as an index is checked before it
// is used.
#include <cstdint>
#include <span>
#include <vector>

#include "plan/plan.h"
#include "plan/step.h"

namespace tokamak {

// Owned by an Executable, used by its thread. All checks throw Error(kInternal, "step: ...") for
// the first thing that is wrong. No allocation; O(tokens + block table entries).
class StepChecker {
 public:
  enum class Level : uint8_t {
    kSafe,    // what kernels rely on
    kStrict,  // also what the engine promises: slots in order, one writer per block, own rows
  };
  // `vocab`: 0: the PlanSet's.
  StepChecker(const PlanSet& plans, std::vector<int64_t> blocks, int64_t max_rows,
              Level level = Level::kSafe, int64_t vocab = 0);

  // The parts of a step that belong to no phase: copies, moves, resets, and the sizes of phases.
  void check_step(const StepInputs& step) const;
  // One phase, as a step of its own; `earlier_outputs` of the same step come before it.
  void check_phase(const StepInputs& phase, int64_t earlier_outputs);
  // Blocks named by a transfer; `bytes` is what it has, `block_bytes` the size of a block.
  void check_blocks(uint32_t group, std::span<const int32_t> blocks, uint64_t bytes,
                    uint64_t block_bytes) const;

 private:
  void check_sizes(const StepInputs& step, int64_t tokens, int64_t sequences,
                   int64_t outputs) const;
  bool strict() const { return level_ == Level::kStrict; }
  void check_tokens(const StepInputs& step, int64_t earlier_outputs) const;
  void check_sequences(const StepInputs& step);
  void check_order(const StepInputs& step, size_t sequence) const;
  void check_outputs(const StepInputs& step) const;
  void check_parent(const StepInputs& step, size_t output) const;
  static void check_guide(const StepInputs& step, size_t output);
  void check_table(const StepInputs& step, size_t group);
  void check_writers(const StepInputs& step, size_t group);

  std::vector<GroupEntry> groups_;
  std::vector<int64_t> blocks_;
  int64_t max_rows_, vocab_;
  Level level_;
  std::vector<bool> grows_;         // per group: has states
  uint64_t stamp_ = 0;              // number of the phase being checked
  std::vector<uint64_t> row_seen_;  // stamp of the phase that last used the row
  // kStrict, per group and block: stamp and sequence of the last writer.
  std::vector<std::vector<uint64_t>> writers_;
};

}  // namespace tokamak
