#pragma once
// Copies from a plane of the cache to swizzled tiles in shared memory (cache_map.h).
#include "backend/cuda/device.cuh"
#include "backend/cuda/tensor_map.h"

namespace tokamak::cuda {

// row_group: eighth rows of the plane, from its beginning.
TK_DEVICE void copy_cached(uint32_t to, const TensorMap& map, int row_group, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0],[%1,{%2,%2,%2,%3}],[%4];" ::"r"(to),
      "l"(&map), "r"(0), "r"(row_group), "r"(barrier)
      : "memory");
}

}  // namespace tokamak::cuda
