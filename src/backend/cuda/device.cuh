#pragma once
// What the kernels share: barriers and bulk copies of Hopper, tagged values, small arithmetic.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "backend/cuda/decode_program.h"
#include "backend/cuda/ops/simt.cuh"

namespace tokamak::cuda {

using Bf16 = __nv_bfloat16;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Hides where a value comes from: conditions on it do not make copies of the loops around them.
__device__ __forceinline__ uint32_t opaque(uint32_t v) {
  asm volatile("" : "+r"(v));
  return v;
}

// --- mbarriers and bulk copies

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(barrier), "r"(arrivals));
}
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ bool barrier_try(uint32_t barrier, uint32_t phase) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p,[%1],%2;\n"
      "selp.u32 %0,1,0,p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(phase)
      : "memory");
  return done != 0;
}
__device__ __forceinline__ void bulk_copy(uint32_t to, const void* from, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];" ::"r"(
          to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// The same for what is read once: it leaves the L2 cache first, so that what is read again stays.
__device__ __forceinline__ uint64_t read_once_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void bulk_copy_once(uint32_t to, const void* from, uint32_t bytes,
                                               uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0],[%1],%2,[%3],%4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// --- values between instructions (decode_program.h)

constexpr uint32_t kPhaseBits = 0x20002000u;  // of two values in a word

__device__ __forceinline__ uint32_t load_word(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0,[%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
// The loads that a reader repeats keep the value they are given where `wanted` is false.
__device__ __forceinline__ void load_value(uint32_t& value, const uint16_t* p, bool wanted = true) {
  uint16_t v = static_cast<uint16_t>(value);
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p,%2,0;\n"
      "@p ld.relaxed.gpu.global.u16 %0,[%1];\n}"
      : "+h"(v)
      : "l"(p), "r"(static_cast<uint32_t>(wanted))
      : "memory");
  value = v;
}
__device__ __forceinline__ void load_values8(uint4& v, const uint16_t* p, bool wanted = true) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p,%5,0;\n"
      "@p ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3},[%4];\n}"
      : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
      : "l"(p), "r"(static_cast<uint32_t>(wanted))
      : "memory");
}
// The phase bit replaces the second bit of the exponent, which is the complement of the first for
// all magnitudes from 2^-63 to 2^64. What is outside is clamped, zero included.
__device__ __forceinline__ void store_value(uint16_t* p, float value, uint32_t phase) {
  float size = fminf(fmaxf(fabsf(value), 0x1p-63f), 0x1.fcp64f);
  uint32_t bits = __bfloat16_as_ushort(__float2bfloat16(copysignf(size, value)));
  uint16_t word = static_cast<uint16_t>((bits & ~kPhaseBits) | phase << 13);
  asm volatile("st.relaxed.gpu.global.u16 [%0],%1;" ::"l"(p), "h"(word) : "memory");
}
// The two bf16 of a word; mask: kPhaseBits, or 0 where there is no phase.
__device__ __forceinline__ uint32_t restore2(uint32_t word, uint32_t mask = kPhaseBits) {
  return (word & ~mask) | (~(word >> 1) & mask);
}
// A pair is one 64-bit access, so it is seen whole or not at all.
__device__ __forceinline__ void load_pair(TaggedPair& pair, const TaggedPair* p,
                                          bool wanted = true) {
  unsigned long long v = static_cast<unsigned long long>(pair.tag) << 32 | pair.bits;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p,%2,0;\n"
      "@p ld.relaxed.gpu.global.u64 %0,[%1];\n}"
      : "+l"(v)
      : "l"(p), "r"(static_cast<uint32_t>(wanted))
      : "memory");
  pair = {static_cast<uint32_t>(v), static_cast<uint32_t>(v >> 32)};
}
__device__ __forceinline__ void store_pair(TaggedPair* p, uint32_t bits, uint32_t tag) {
  unsigned long long v = static_cast<unsigned long long>(tag) << 32 | bits;
  asm volatile("st.relaxed.gpu.global.u64 [%0],%1;" ::"l"(p), "l"(v) : "memory");
}

// --- time

// The description of a tensor, before the first copy that needs it.
__device__ __forceinline__ void prefetch_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ unsigned long long now_ns() {
  unsigned long long t;
  asm volatile("mov.u64 %0,%%globaltimer;" : "=l"(t));
  return t;
}

// --- arithmetic

// Two bf16, or f16 where kHalf.
template <bool kHalf = false>
__device__ __forceinline__ float2 unpack2(uint32_t v) {
  if constexpr (kHalf) return __half22float2(*reinterpret_cast<const __half2*>(&v));
  return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}
__device__ __forceinline__ uint16_t round16(float v, bool half) {
  return half ? __half_as_ushort(__float2half_rn(v)) : __bfloat16_as_ushort(__float2bfloat16(v));
}
__device__ __forceinline__ uint32_t pack2(float a, float b) {
  __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<uint32_t*>(&v);
}
// c[16x8] += a[16x16] * b[16x8]. A lane has rows lane / 4 (a0, a2) and lane / 4 + 8 (a1, a3) of a
// and column lane / 4 of b; the order of the 16 inner elements does not matter as long as both
// agree. kHalf: f16 instead of bf16.
template <bool kHalf = false>
__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                    uint32_t a3, uint32_t b0, uint32_t b1) {
  if constexpr (kHalf) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    return;
  }
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// The same with 32 inner elements of eight bits; a: rows lane / 4, lane / 4 + 8, then both again.
__device__ __forceinline__ void mma_int8(int (&c)[4], uint4 a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
// Rows 8 to 15 of a are zero. kHalf: f16 instead of bf16.
template <bool kHalf = false>
__device__ __forceinline__ void mma_low_rows(float (&c)[4], uint32_t a0, uint32_t a2, uint32_t b0,
                                             uint32_t b1) {
  if constexpr (kHalf) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(0u), "r"(a2), "r"(0u), "r"(b0), "r"(b1));
    return;
  }
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(0u), "r"(a2), "r"(0u), "r"(b0), "r"(b1));
}

}  // namespace tokamak::cuda
