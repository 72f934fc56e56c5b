#pragma once
// Random bf16 and f16 values that host and device compute alike, so that weights need not be
// copied.
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

// f16; what is below its smallest normal number is a multiple of 2^-24.
TK_BOTH inline uint16_t to_f16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
  const float least = 0x1p-14f, magnitude = value < 0 ? -value : value;
  if (magnitude < least)
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(magnitude * 0x1p24f + 0.5f));
  return static_cast<uint16_t>(sign | ((size + 0xfff + (size >> 13 & 1)) >> 13) - (112u << 10));
}
TK_BOTH inline float from_f16(uint16_t value) {
  const uint32_t exponent = value >> 10 & 31u, mantissa = value & 1023u;
  float size = static_cast<float>(mantissa) * 0x1p-24f;
  if (exponent > 0) {
    const uint32_t bits = (exponent + 112) << 23 | mantissa << 13;
    memcpy(&size, &bits, sizeof size);
  }
  return value & 0x8000u ? -size : size;
}

}  // namespace tokamak::cuda
