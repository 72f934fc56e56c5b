#pragma once
// The order in which the instructions of a row run. A reduction is known only after all columns
// have been read, so it ends a phase: phase p runs its row instructions, then iterates over the
// columns with its tile instructions, then finishes its reductions. Shared by all backends.
#include "loop/program.h"

namespace tokamak::loop {

struct Phases {
  struct Phase {
    std::vector<uint32_t> row;   // instructions with one number per row, in order
    std::vector<uint32_t> tile;  // loads used here, tile instructions, reductions that end here
  };
  std::vector<Phase> phases;
  std::vector<uint32_t> phase_of;  // where each instruction runs (loads: first)
  // A tile computed in one phase and read in a later one. Loads are not kept but read again.
  std::vector<bool> kept;
};
Phases make_phases(const Program& program);

// The same program with row axes merged into the columns where all indices allow it: whole tensors
// become one long row. Programs with reductions are returned unchanged.
Program merge_rows(const Program& program);

}  // namespace tokamak::loop
