#pragma once
// The memory of the process that is not the engine's: for the ledger and for metrics.
#include <cstdint>

namespace tokamak {

struct ProcessMemory {
  uint64_t program = 0;  // resident code and data of the program and its libraries
  uint64_t heap = 0;     // tokenizers, plans, requests; also the engine's small objects
  uint64_t stacks = 0;
};

// Reads /proc/self/maps and the page table of these parts: a fraction of a millisecond. Zeros where
// the system has no such files.
ProcessMemory process_memory();

uint64_t resident_bytes();  // of the whole process; 0: not known

}  // namespace tokamak
