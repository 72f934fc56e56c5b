#pragma once
// What this machine can do at most, measured: the yardstick of --perf.
#include <cstdint>

namespace tokamak::testing {

// Bytes per second of reading `footprint` bytes, split over the threads, again and again: memory
// when it is far larger than the caches, else the cache it fits in.
double read_speed(int threads, int64_t footprint);

// Operations per second of independent multiply-adds in registers (one is two operations).
struct ArithmeticPeak {
  double f32 = 0;
  double i8 = 0;  // int8 products into int32 sums; 0: this machine has no instruction for it
};
ArithmeticPeak arithmetic_peak(int threads);

}  // namespace tokamak::testing
