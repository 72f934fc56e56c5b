#pragma once
// What this machine's cores and caches do, measured with the backend's own kernels.
#include "plan/machine.h"

namespace tokamak {

struct CpuMeasurement {
  Machine machine;  // named after the instruction set and the number of threads
  // Processor time that the threads got while all of them worked, of what was there. Well below 1:
  // other programs ran, and the figures are too low.
  double share = 1;
};

// Data caches of core 0 as the system lists them, the usual sizes where it does not; then memory,
// with capacity 0. Bandwidths are not set.
std::vector<MachineLevel> cache_levels();

// Bytes per second of reading `footprint` bytes, split over the threads, again and again for about
// `seconds`: memory when it is far larger than the caches, else the cache it fits in.
double read_speed(int threads, double footprint, double seconds);

// Takes about `seconds`; each figure is the best of several tries.
CpuMeasurement measure_cpu(int threads, double seconds);

}  // namespace tokamak
