#pragma once
#include <cstdint>

namespace tokamak::cuda {

// CUtensorMap: how the copy engine finds boxes of a tensor. Made by DriverCalls::tensor_map.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

}  // namespace tokamak::cuda
