#pragma once
// What the cores can compute at most: the figure that `bench kernels` and the op tests compare
// kernels with. read_speed() of backend/cpu/calibrate.h is the same for memory.
#include <string_view>

namespace tokamak::cpu {

// Operations per second of independent multiply-adds in registers, all threads together; a
// multiply-add is two operations. 0: the level has no such instruction.
struct ArithmeticPeak {
  double f32 = 0;
  double i8 = 0;    // int8 products into int32 sums
  double bf16 = 0;  // bf16 products into f32 sums
};
// `level`: name of a kernel table that runs here; its instructions are measured.
ArithmeticPeak arithmetic_peak(std::string_view level, int threads);

}  // namespace tokamak::cpu
