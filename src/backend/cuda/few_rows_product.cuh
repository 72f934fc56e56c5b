#pragma once
// Copies of boxes of a matrix and rings of them, and products of 64 rows of weights with few rows
// of values.
#include "backend/cuda/wgmma.cuh"

namespace tokamak::cuda {

// A box of the matrix that `map` describes, from (column, row) on. kOnce: bytes that are read once
// and need not stay in the cache.
constexpr unsigned long long kEvictFirst = 0x12F0000000000000ull,
                             kEvictLast = 0x14F0000000000000ull;
template <bool kOnce>
__device__ __forceinline__ void tensor_copy(uint32_t to, const void* map, int column, int row,
                                            uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0],[%1,{%2,%3}],[%4],%5;" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "l"(kOnce ? kEvictFirst : kEvictLast)
      : "memory");
}

// The same of four dimensions, from (column, 0, 0, last) on; read once.
__device__ __forceinline__ void tensor_copy_4d(uint32_t to, const void* map, int column, int last,
                                               uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0],[%1,{%2,%3,%3,%4}],[%5],%6;" ::"r"(to),
      "l"(map), "r"(column), "r"(0), "r"(last), "r"(barrier), "l"(kEvictFirst)
      : "memory");
}

// 16 bytes by a thread. copies_arrive: the thread arrives at a barrier once its copies are there.
__device__ __forceinline__ void copy_16_bytes(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copies_arrive(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void copies_wait_all() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// clang-format off
#define TK_SUMS_8(d) \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define TK_SUMS_16(d) TK_SUMS_8(d), \
  "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define TK_SUMS_32(d) TK_SUMS_16(d), \
  "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define TK_NAMES_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define TK_NAMES_16 TK_NAMES_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define TK_NAMES_32 TK_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
// clang-format on
#define TK_WGMMA(rows, names, operands) \
  "wgmma.mma_async.sync.aligned.m64n" rows "k16.f32.bf16.bf16 {" names "}," operands ";"

// sums[64 x kRows] += a[64 x 16] * b[kRows x 16]^T, bf16, both in shared memory.
template <int kRows>
__device__ __forceinline__ void wgmma(float (&sums)[kRows / 2], uint64_t a, uint64_t b) {
  static_assert(kRows == 16 || kRows == 32 || kRows == 64 || kRows == 128);
  if constexpr (kRows == 16)
    asm volatile(TK_WGMMA("16", TK_NAMES_8, "%8,%9,1,1,1,0,0") : TK_SUMS_8(sums) : "l"(a), "l"(b));
  else if constexpr (kRows == 32)
    asm volatile(TK_WGMMA("32", TK_NAMES_16, "%16,%17,1,1,1,0,0")
                 : TK_SUMS_16(sums)
                 : "l"(a), "l"(b));
  else if constexpr (kRows == 64)
    asm volatile(TK_WGMMA("64", TK_NAMES_32, "%32,%33,1,1,1,0,0")
                 : TK_SUMS_32(sums)
                 : "l"(a), "l"(b));
  else
    product_128<false>(sums, a, b, 1);
}
// The same with a in registers, as for mma.m16n8k16.
template <int kRows>
__device__ __forceinline__ void wgmma(float (&sums)[kRows / 2], const uint32_t* a, uint64_t b) {
  static_assert(kRows == 16 || kRows == 32 || kRows == 64);
  if constexpr (kRows == 16)
    asm volatile(TK_WGMMA("16", TK_NAMES_8, "{%8,%9,%10,%11},%12,1,1,1,0")
                 : TK_SUMS_8(sums)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  else if constexpr (kRows == 32)
    asm volatile(TK_WGMMA("32", TK_NAMES_16, "{%16,%17,%18,%19},%20,1,1,1,0")
                 : TK_SUMS_16(sums)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  else
    asm volatile(TK_WGMMA("64", TK_NAMES_32, "{%32,%33,%34,%35},%36,1,1,1,0")
                 : TK_SUMS_32(sums)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef TK_WGMMA
#undef TK_NAMES_8
#undef TK_NAMES_16
#undef TK_NAMES_32
#undef TK_SUMS_8
#undef TK_SUMS_16
#undef TK_SUMS_32

// silu(gate) * value, of what bf16 holds of both.
__device__ __forceinline__ float gated_value(float gate, float value) {
  auto rounded = [](float v) { return __bfloat162float(__float2bfloat16(v)); };
  gate = rounded(gate);
  return gate / (1.0f + expf(-gate)) * rounded(value);
}

// Operands of products: boxes that lie in shared memory. 16 columns further: plus 2.
__device__ __forceinline__ uint64_t rows_of_box(uint32_t address) {
  return tile_descriptor(tile_start(address, 16), 1024);  // 16: not used, but not 0
}

__device__ inline void wait_barrier(uint32_t barrier, uint32_t phase) {
#pragma unroll 1
  while (!barrier_try(barrier, phase)) {
  }
}

// The place of a turn in a ring.
template <int kStages>
struct RingPlace {
  int stage = 0;
  uint32_t phase = 0;
  __device__ void next() {
    if (++stage < kStages) return;
    stage = 0;
    phase ^= 1;
  }
};

}  // namespace tokamak::cuda
