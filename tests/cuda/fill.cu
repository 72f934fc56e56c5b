// Fills device memory with the values of random_values.h.
#include "random_values.h"

extern "C" __global__ void fill_bf16(uint16_t* to, unsigned long long count,
                                     tokamak::cuda::RandomSpec spec) {
  unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
    to[i] = tokamak::cuda::to_bf16(tokamak::cuda::random_value(spec, i));
}

extern "C" __global__ void fill_f32(float* to, unsigned long long count,
                                    tokamak::cuda::RandomSpec spec) {
  unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
    to[i] = tokamak::cuda::random_value(spec, i);
}
