#pragma once
// The measured arithmetic peak of this machine; --perf reports figures relative to it and to
// read_speed() of backend/cpu/calibrate.h.
#include <cstdint>

namespace tokamak::testing {

// Operations per second of independent multiply-adds in registers (one is two operations).
struct ArithmeticPeak {
  double f32 = 0;
  double i8 = 0;  // int8 products into int32 sums; 0: this machine has no instruction for it
};
ArithmeticPeak arithmetic_peak(int threads);

}  // namespace tokamak::testing
