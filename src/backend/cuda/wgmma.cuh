#pragma once
// Products of a warpgroup (four warps) on Hopper's tensor cores. They run in the background:
// between products_begin() and products_wait() the registers of operands and sums must not be
// touched.
//
// Operands in shared memory are 16-bit tiles in the layout that copies with a swizzle of 128 bytes
// leave: atoms of 8 rows of 64 values (1,024 bytes, aligned to that), where 16-byte chunk c of row
// r is at chunk c ^ r.
#include "backend/cuda/device.cuh"

namespace tokamak::cuda {

// Where an operand begins, in units of 16 bytes; `columns`: bytes from 64 columns to the next 64,
// used only where a row is not the inner dimension of the product.
TK_DEVICE uint32_t tile_start(uint32_t address, uint32_t columns = 0) {
  return columns >> 4 << 16 | address >> 4;
}
// `rows`: bytes from 8 rows to the next 8.
TK_DEVICE uint64_t tile_descriptor(uint32_t start, uint32_t rows) {
  constexpr uint32_t kSwizzle128 = 1u << 30;
  return uint64_t{kSwizzle128 | rows >> 4} << 32 | start;
}

TK_DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TK_DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most n groups of products are running.
template <int n>
TK_DEVICE void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
}
// Keeps accesses to these registers on their side of a fence or a wait.
template <int n>
TK_DEVICE void pin(float (&d)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int n>
TK_DEVICE void pin(uint32_t (&d)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

// clang-format off
#define TK_SUMS_32 \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"
#define TK_SUMS_64 \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"
#define TK_OUT_32(d) \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
  "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
  "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define TK_OUT_64(d) \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
  "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
  "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), \
  "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
  "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
  "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
  "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
// clang-format on

// d[64 x 128] (+)= a[64 x 16] * b[128 x 16]^T; rows are the outer dimension of both. A lane has of
// d what it has of mma.m16n8k16, warp w rows 16 w to 16 w + 15. add = 0: what was in d is dropped.
template <bool half>
TK_DEVICE void product_128(float (&d)[64], uint64_t a, uint64_t b, int add) {
#define TK_PRODUCT(type)                                                          \
  asm volatile(                                                                   \
      "{\n.reg .pred p;\nsetp.ne.b32 p,%66,0;\n"                                  \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " " TK_SUMS_64 \
      ",%64,%65,p,1,1,0,0;\n}"                                                    \
      : TK_OUT_64(d)                                                              \
      : "l"(a), "l"(b), "r"(add))
  if constexpr (half)
    TK_PRODUCT("f16");
  else
    TK_PRODUCT("bf16");
#undef TK_PRODUCT
}

// d[64 x 2 n] += a[64 x 16] * b[16 x 2 n]; a in registers, as for mma.m16n8k16.
template <bool half>
TK_DEVICE void product_of_registers(float (&d)[64], const uint32_t* a, uint64_t b) {
#define TK_PRODUCT(type)                                                                   \
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " " TK_SUMS_64 \
               ",{%64,%65,%66,%67},%68,1,1,1,1;"                                           \
               : TK_OUT_64(d)                                                              \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
  if constexpr (half)
    TK_PRODUCT("f16");
  else
    TK_PRODUCT("bf16");
#undef TK_PRODUCT
}
template <bool half>
TK_DEVICE void product_of_registers(float (&d)[32], const uint32_t* a, uint64_t b) {
#define TK_PRODUCT(type)                                                                  \
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " TK_SUMS_32 \
               ",{%32,%33,%34,%35},%36,1,1,1,1;"                                          \
               : TK_OUT_32(d)                                                             \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
  if constexpr (half)
    TK_PRODUCT("f16");
  else
    TK_PRODUCT("bf16");
#undef TK_PRODUCT
}

#undef TK_SUMS_32
#undef TK_SUMS_64
#undef TK_OUT_32
#undef TK_OUT_64

}  // namespace tokamak::cuda
