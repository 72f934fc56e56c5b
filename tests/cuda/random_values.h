#pragma once
// Random bf16 values that host and device compute alike, so that weights need not be copied.
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define TK_BOTH __host__ __device__
#else
#define TK_BOTH
#endif

namespace tokamak::cuda {

struct RandomSpec {
  float center = 0, width = 1;
  uint32_t seed = 0;
};

TK_BOTH inline float random_value(const RandomSpec& spec, uint64_t i) {
  uint32_t z = static_cast<uint32_t>(i) * 2654435761u + spec.seed * 0x9E3779B9u + 1;
  z ^= z >> 16;
  z *= 0x85ebca6bu;
  z ^= z >> 13;
  z *= 0xc2b2ae35u;
  z ^= z >> 16;
  // Exact in float whether or not the compiler fuses: width and center are powers of two or zero.
  return (static_cast<float>(z & 0xffffu) * (1.0f / 65536) - 0.5f) * spec.width + spec.center;
}

TK_BOTH inline uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
TK_BOTH inline float from_bf16(uint16_t value) {
  uint32_t bits = static_cast<uint32_t>(value) << 16;
  float out;
  memcpy(&out, &bits, sizeof out);
  return out;
}

}  // namespace tokamak::cuda
