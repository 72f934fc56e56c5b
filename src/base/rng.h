#pragma once
// Counter-based randomness (Philox 4x32-10): a number is a pure function of a key and a counter, so
// a request's noise does not depend on what else runs. Randomness comes only from here.
#include <array>
#include <cstdint>

namespace tokamak {

std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_hi, uint64_t counter_lo);

// Uniform in the open interval (0, 1), 24 bits.
inline float to_unit_float(uint32_t bits) {
  return (static_cast<float>(bits >> 8) + 0.5f) * 0x1p-24f;
}
// Uniform in (0, 1), 52 bits.
inline double to_unit_double(uint32_t hi, uint32_t lo) {
  uint64_t bits = (uint64_t{hi} << 32 | lo) >> 12;
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

// A small sequential generator for tests, weights and load generators.
class Rng {
 public:
  explicit Rng(uint64_t seed) : key_(seed) {}
  uint32_t next_u32();
  uint64_t next_u64() { return uint64_t{next_u32()} << 32 | next_u32(); }
  uint64_t below(uint64_t n) { return n == 0 ? 0 : next_u64() % n; }
  double uniform() {
    uint32_t hi = next_u32();
    return to_unit_double(hi, next_u32());
  }
  double uniform(double lo, double hi) { return lo + (hi - lo) * uniform(); }
  double normal();

 private:
  uint64_t key_, counter_ = 0;
  std::array<uint32_t, 4> block_{};
  int used_ = 4;
};

}  // namespace tokamak
