#pragma once
// What this machine's cores and caches do, measured with the backend's own kernels.
#include <cstdint>
#include <string>
#include <vector>

namespace tokamak {

struct CpuMeasurement {
  struct Level {
    std::string name;
    double capacity = 0;   // bytes that one core sees; 0 for memory
    double bandwidth = 0;  // bytes per second read, all threads together
  };
  std::string isa;
  int threads = 1;
  std::vector<Level> levels;  // nearest first, memory last
  double i8_ops = 0;          // per second, all threads: integer dot products of a tile
  double f32_flops = 0;
  double silu_elements = 0;
  double call_seconds = 0;     // one op without a fork
  double barrier_seconds = 0;  // until all threads have met
  // Processor time that the threads got while all of them worked, of what was there. Well below 1:
  // other programs ran, and the figures are too low.
  double share = 1;
};

// Bytes per second of reading `footprint` bytes, split over the threads, again and again for about
// `seconds`: memory when it is far larger than the caches, else the cache it fits in.
double read_speed(int threads, double footprint, double seconds);

// Takes about `seconds`; each figure is the best of several tries.
CpuMeasurement measure_cpu(int threads, double seconds);

}  // namespace tokamak
