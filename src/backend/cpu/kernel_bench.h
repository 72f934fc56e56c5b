#pragma once
// Times the kernels of this machine's level one by one, at shapes of real models.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backend/cpu/peak.h"

namespace tokamak::cpu {

struct KernelBenchOptions {
  int threads = 0;                                 // 0: all cores
  double seconds = 0.1;                            // spent on each case, at least
  std::string filter;                              // cases whose "kernel shape" contains it
  std::vector<int64_t> rows = {1, 4, 8, 64, 512};  // of activations, for matrices
  int64_t n = 8192, k = 2048;                      // of the matrices
  bool bf16 = false;  // activations of quantised matrices, where the level multiplies them
};

struct KernelFigure {
  std::string kernel;  // "linear q4_0"
  std::string shape;   // "m=64 n=8192 k=2048"
  double seconds = 0;  // of one call
  double bytes = 0;    // that it has to read and write
  double operations = 0;
  double read_peak = 0;       // bytes per second of reading as much as the case moves
  double operation_peak = 0;  // of the instructions it uses; 0: unknown
};

struct KernelBench {
  std::string level;
  int threads = 0;
  double read_peak = 0;  // bytes per second, from memory
  ArithmeticPeak peak;
  std::vector<KernelFigure> figures;
};

// Matrices with few rows are read from memory: calls alternate between copies that no cache holds
// together. `progress`: called with the cases done and all of them. Throws
// Error(kInvalidArgument) when the filter leaves nothing or the sizes do not fit the formats.
KernelBench bench_kernels(const KernelBenchOptions& options,
                          const std::function<void(size_t, size_t)>& progress);

}  // namespace tokamak::cpu
