#pragma once
// Which instruction-set levels this machine can run, from what the hardware reports (never from the
// CPU's name).
#include <string>
#include <vector>

#include "backend/cpu/kernel_table.h"

namespace tokamak::cpu {

// All levels that can run here, slowest first; `scalar` is always there.
std::vector<const KernelTable*> available_tables();

// The best level, or the one TOKAMAK_ISA names. Throws Error(kInvalidArgument) when that one cannot
// run here.
const KernelTable* choose_table();

// What the system calls this processor.
std::string processor_name();
// Backend::measured_on() of the cpu backend with this many threads.
std::string measured_on(int threads);

}  // namespace tokamak::cpu
