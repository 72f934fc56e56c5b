#pragma once
// The sampler's noise on the device: the same Philox stream and the same formula as
// backend/common/sampler_choose.cc, so equal logits give equal tokens.
#include "backend/cuda/ops/simt.cuh"

namespace tokamak::cuda {

struct PhiloxBlock {
  uint32_t word[4];
};

TK_DEVICE PhiloxBlock philox(uint64_t key, uint64_t counter_hi, uint64_t counter_lo) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t a = static_cast<uint32_t>(counter_lo), b = static_cast<uint32_t>(counter_lo >> 32);
  uint32_t c = static_cast<uint32_t>(counter_hi), d = static_cast<uint32_t>(counter_hi >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    uint32_t high0 = mul_high(0xD2511F53u, a), low0 = 0xD2511F53u * a;
    uint32_t high1 = mul_high(0xCD9E8D57u, c), low1 = 0xCD9E8D57u * c;
    a = high1 ^ b ^ k0;
    b = low1;
    c = high0 ^ d ^ k1;
    d = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{a, b, c, d}};
}

// Gumbel noise of one token, rounded to float as on the host.
TK_DEVICE_CALL double keyed_gumbel(uint64_t seed, int32_t choice, int32_t position, int32_t token) {
  uint64_t counter =
      static_cast<uint64_t>(static_cast<uint32_t>(choice)) << 32 | static_cast<uint32_t>(position);
  PhiloxBlock block = philox(seed, counter, static_cast<uint32_t>(token) / 2);
  uint32_t high = block.word[token & 1 ? 2 : 0], low = block.word[token & 1 ? 3 : 1];
  uint64_t bits = (static_cast<uint64_t>(high) << 32 | low) >> 12;
  double u = (static_cast<double>(bits) + 0.5) * 0x1p-52;
  return static_cast<float>(-log(-log(u)));
}

}  // namespace tokamak::cuda
