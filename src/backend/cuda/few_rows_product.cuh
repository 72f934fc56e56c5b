#pragma once
// Copies of boxes of a matrix, and products of 64 rows of weights with few rows of values.
#include "backend/cuda/wgmma.cuh"

namespace tokamak::cuda {

// A box of the matrix that `map` describes, from (column, row) on. kOnce: bytes that are read once
// and need not stay in the cache.
template <bool kOnce>
__device__ __forceinline__ void tensor_copy(uint32_t to, const void* map, int column, int row,
                                            uint32_t barrier) {
  constexpr unsigned long long kEvictFirst = 0x12F0000000000000ull,
                               kEvictLast = 0x14F0000000000000ull;
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0],[%1,{%2,%3}],[%4],%5;" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "l"(kOnce ? kEvictFirst : kEvictLast)
      : "memory");
}

__device__ __forceinline__ void prefetch_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// sums[64 x kRows] += a[64 x 16] * b[kRows x 16]^T, bf16, both in shared memory.
template <int kRows>
__device__ __forceinline__ void wgmma(float (&sums)[kRows / 2], uint64_t a, uint64_t b) {
  static_assert(kRows == 16 || kRows == 32 || kRows == 64);
  if constexpr (kRows == 16)
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7},"
        "%8,%9,1,1,1,0,0;"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]),
          "+f"(sums[6]), "+f"(sums[7])
        : "l"(a), "l"(b));
  else if constexpr (kRows == 32)
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},"
        "%16,%17,1,1,1,0,0;"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]),
          "+f"(sums[6]), "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]),
          "+f"(sums[11]), "+f"(sums[12]), "+f"(sums[13]), "+f"(sums[14]), "+f"(sums[15])
        : "l"(a), "l"(b));
  else if constexpr (kRows == 64)
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
        "%32,%33,1,1,1,0,0;"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]),
          "+f"(sums[6]), "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]),
          "+f"(sums[11]), "+f"(sums[12]), "+f"(sums[13]), "+f"(sums[14]), "+f"(sums[15]),
          "+f"(sums[16]), "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]), "+f"(sums[20]),
          "+f"(sums[21]), "+f"(sums[22]), "+f"(sums[23]), "+f"(sums[24]), "+f"(sums[25]),
          "+f"(sums[26]), "+f"(sums[27]), "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]),
          "+f"(sums[31])
        : "l"(a), "l"(b));
}

}  // namespace tokamak::cuda
