// Fills device memory with the values of random_values.h.
#include "random_values.h"

extern "C" __global__ void fill_bf16(uint16_t* to, unsigned long long count,
                                     tokamak::cuda::RandomSpec spec) {
  unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
    to[i] = tokamak::cuda::to_bf16(tokamak::cuda::random_value(spec, i));
}

extern "C" __global__ void fill_f16(uint16_t* to, unsigned long long count,
                                    tokamak::cuda::RandomSpec spec) {
  unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
    to[i] = tokamak::cuda::to_f16(tokamak::cuda::random_value(spec, i));
}

extern "C" __global__ void fill_f32(float* to, unsigned long long count,
                                    tokamak::cuda::RandomSpec spec) {
  unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
    to[i] = tokamak::cuda::random_value(spec, i);
}

extern "C" __global__ void fill_packed(uint32_t* to, unsigned long long words, int chunk_words,
                                       int data_words, uint32_t scale, uint32_t mask) {
  unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += step) {
    uint32_t z = static_cast<uint32_t>(i) * 2654435761u + 12345u;
    z ^= z >> 16;
    z *= 0x85ebca6bu;
    z ^= z >> 13;
    z *= 0xc2b2ae35u;
    to[i] = static_cast<int>(i % chunk_words) < data_words ? (z ^ z >> 16) & mask : scale;
  }
}
