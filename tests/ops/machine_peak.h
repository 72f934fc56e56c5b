#pragma once
// What this machine can do at most, measured: the yardstick of --perf.

namespace tokamak::testing {

struct MachinePeak {
  double bytes_per_second;  // reading memory far larger than the caches
  double flops_per_second;  // float32 multiply-adds in registers, with the compiler's vectors
};
MachinePeak measure_peak(int threads);

}  // namespace tokamak::testing
