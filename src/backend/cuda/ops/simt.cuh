#pragma once
// What the op kernels use of the CUDA language. They are compiled twice: by nvcc for the GPU, and
// by the host compiler for the emulator (backend/cuda/emulator/), so that tests without a GPU run
// the same source under sanitizers. Therefore a kernel
//   - is defined by TK_KERNEL, takes one struct by value and is launched with full warps;
//   - exchanges values between lanes by the functions below only, with all lanes of a warp;
//   - gets dynamic shared memory from TK_DYNAMIC_SHARED.
#include <cstdint>

#ifdef __CUDACC__

#define TK_KERNEL(name, Args, threads) TK_KERNEL_RESIDENT(name, Args, threads, 1)
// resident: blocks whose registers fit on a multiprocessor together.
#define TK_KERNEL_RESIDENT(name, Args, threads, resident)         \
  extern "C" __global__ void __launch_bounds__(threads, resident) \
      name(const __grid_constant__ Args a)
#define TK_DEVICE __device__ __forceinline__
#define TK_DEVICE_CALL __device__ __noinline__  // not copied into its callers
#define TK_DYNAMIC_SHARED(T, name)                         \
  extern __shared__ __align__(16) unsigned char shared_[]; \
  T* name = reinterpret_cast<T*>(shared_)

namespace tokamak::cuda {

constexpr unsigned kWholeWarp = 0xffffffffu;

// A kernel that is launched with overlap may start before earlier launches have finished; it has to
// call this, in every thread, before it reads what they write or writes what they read. Inputs of
// the step are written by a launch too (stage_inputs): before the call, only those kernels read
// them that follow a launch without overlap.
TK_DEVICE void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The launch after this one may start, if it is one that waits, once every block has called this.
TK_DEVICE void allow_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Brings the line at this address to the cache.
TK_DEVICE void prefetch(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }
TK_DEVICE void sync_block() { __syncthreads(); }
TK_DEVICE void sync_warp() { __syncwarp(); }
TK_DEVICE unsigned warp_ballot(bool x) { return __ballot_sync(kWholeWarp, x); }
TK_DEVICE float warp_max(float x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(kWholeWarp, x, d));
  return x;
}
// The sum over the lanes of each of n values, in every lane, always by the same tree.
template <int n>
TK_DEVICE void warp_sums(float (&x)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i)
#pragma unroll
    for (int d = 16; d > 0; d /= 2) x[i] += __shfl_xor_sync(kWholeWarp, x[i], d);
}
// c[16x8] += a[16x16] * b[16x8] in bf16 with f32 sums, spread over the lanes as mma.m16n8k16 has
// it.
TK_DEVICE void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The value of the lane whose number differs in the bits of d, and of the lane d below (a lane
// without one gets its own).
template <class T>
TK_DEVICE T lane_xor(T x, int d) {
  return __shfl_xor_sync(kWholeWarp, x, d);
}
template <class T>
TK_DEVICE T lane_up(T x, int d) {
  return __shfl_up_sync(kWholeWarp, x, static_cast<unsigned>(d));
}
template <class T>
TK_DEVICE T lane_from(T x, int lane) {  // the value of a lane
  return __shfl_sync(kWholeWarp, x, lane);
}
TK_DEVICE int bit_count(unsigned x) { return __popc(x); }
TK_DEVICE int first_bit(unsigned x) { return __ffs(static_cast<int>(x)) - 1; }  // x is not 0
TK_DEVICE int shared_add(int* to, int x) { return atomicAdd(to, x); }  // returns what was there
TK_DEVICE uint32_t mul_high(uint32_t a, uint32_t b) { return __umulhi(a, b); }
TK_DEVICE float fast_exp(float x) { return __expf(x); }
TK_DEVICE float fast_exp2(float x) {
  asm("ex2.approx.ftz.f32 %0,%0;" : "+f"(x));
  return x;
}
template <bool half>
TK_DEVICE void mma_16bit(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (!half) return mma_bf16(c, a, b0, b1);
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// 16 bytes to shared memory, zeros where they do not exist; not waited for. copies_begin() closes a
// group of copies; copies_wait<n>() waits until at most n groups are left.
TK_DEVICE void copy16(void* to, const void* from, bool exist) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(exist ? 16 : 0)
               : "memory");
}
TK_DEVICE void copies_begin() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int n>
TK_DEVICE void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}
// Four 8x8 matrices of 16-bit values in shared memory; lane l names row l % 8 of matrix l / 8. A
// lane gets two neighbours of row l / 4 of each or, transposed, of column l / 4.
TK_DEVICE void load_matrices(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}
TK_DEVICE void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}
TK_DEVICE float mul_rn(float a, float b) { return __fmul_rn(a, b); }
TK_DEVICE float add_rn(float a, float b) { return __fadd_rn(a, b); }

}  // namespace tokamak::cuda

#else

#include "backend/cuda/emulator/simt_host.h"

#endif

namespace tokamak::cuda {

constexpr int kWarp = 32;

TK_DEVICE float warp_sum(float x) {
  float one[1] = {x};
  warp_sums(one);
  return one[0];
}

}  // namespace tokamak::cuda
