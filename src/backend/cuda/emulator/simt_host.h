#pragma once
// The CUDA language on the host, as far as the op kernels use it (ops/simt.cuh). Each thread of a
// block is a fiber; blocks run one after the other on the calling thread. Lanes that do not all
// reach the same barrier are an error, as they would be a hang or worse on a GPU.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

namespace tokamak::cuda {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};
// The indices of the fiber that runs.
extern Dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace simt {

using KernelBody = void (*)(const void* args);
struct HostKernel {
  std::string_view name;
  KernelBody body;
  size_t args_bytes;
  unsigned max_threads;
};
// Kernels that this program contains; nullptr: no such kernel.
const HostKernel* find_kernel(std::string_view name);
// Makes the linker keep host_kernels.cc, whose kernels register themselves.
void link_host_kernels();
struct Registration {
  explicit Registration(const HostKernel& kernel);
};

// Throws Error(kInternal) when threads wait at different barriers.
void run_grid(const HostKernel& kernel, const void* args, Dim3 grid, unsigned threads,
              size_t shared_bytes);

void wait_block();
void wait_warp();
std::byte* dynamic_shared();
// Bytes that the lanes of a warp exchange: publish() waits until all lanes have published.
constexpr size_t kExchangeBytes = 512;
void publish(const void* value, size_t bytes);
const std::byte* published(unsigned lane);
// What `compute` makes of the published values, the same for all lanes of the warp: the first lane
// that asks computes it. At most kExchangeBytes.
const float* computed_once(void (*compute)(float* values));

}  // namespace simt

inline void wait_for_earlier() {}
inline void allow_next() {}
inline void prefetch(const void*) {}
inline void sync_block() { simt::wait_block(); }
inline void sync_warp() { simt::wait_warp(); }
inline unsigned warp_ballot(bool x) {
  simt::publish(&x, sizeof x);
  auto collect = [](float* out) {
    unsigned bits = 0;
    for (unsigned lane = 0; lane < 32; ++lane)
      if (*simt::published(lane) != std::byte{0}) bits |= 1u << lane;
    std::memcpy(out, &bits, sizeof bits);
  };
  unsigned bits;
  std::memcpy(&bits, simt::computed_once(collect), sizeof bits);
  return bits;
}
inline float warp_max(float x) {
  simt::publish(&x, sizeof x);
  return *simt::computed_once([](float* best) {
    *best = -INFINITY;
    for (unsigned lane = 0; lane < 32; ++lane) {
      float y;
      std::memcpy(&y, simt::published(lane), sizeof y);
      *best = std::fmax(*best, y);
    }
  });
}
// By the tree of ops/simt.cuh.
template <int n>
void warp_sums(float (&x)[n]) {
  static_assert(sizeof x <= simt::kExchangeBytes);
  simt::publish(x, sizeof x);
  auto sum = [](float* sums) {
    float tree[32][n];
    for (unsigned lane = 0; lane < 32; ++lane)
      std::memcpy(tree[lane], simt::published(lane), sizeof tree[lane]);
    for (unsigned d = 16; d > 0; d /= 2)
      for (unsigned lane = 0; lane < d; ++lane)
        for (int i = 0; i < n; ++i) tree[lane][i] += tree[lane + d][i];
    std::memcpy(sums, tree[0], sizeof tree[0]);
  };
  std::memcpy(x, simt::computed_once(sum), sizeof x);
}
template <class T>
T lane_value(T x, unsigned lane) {
  simt::publish(&x, sizeof x);
  std::memcpy(&x, simt::published(lane), sizeof x);
  return x;
}
template <class T>
T lane_xor(T x, int d) {
  return lane_value(x, threadIdx.x % 32 ^ static_cast<unsigned>(d));
}
template <class T>
T lane_up(T x, int d) {
  unsigned lane = threadIdx.x % 32, by = static_cast<unsigned>(d);
  return lane_value(x, lane < by ? lane : lane - by);
}
template <class T>
T lane_from(T x, int lane) {
  return lane_value(x, static_cast<unsigned>(lane));
}
inline int bit_count(unsigned x) { return std::popcount(x); }
inline int first_bit(unsigned x) { return std::countr_zero(x); }
inline int shared_add(int* to, int x) { return std::exchange(*to, *to + x); }
inline uint32_t mul_high(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(uint64_t{a} * b >> 32);
}
inline float fast_exp(float x) { return std::exp(x); }
inline float fast_exp2(float x) { return std::exp2(x); }
void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <bool half>
void mma_16bit(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  half ? mma_f16(c, a, b0, b1) : mma_bf16(c, a, b0, b1);
}
inline void copy16(void* to, const void* from, bool exist) {
  if (exist)
    std::memcpy(to, from, 16);
  else
    std::memset(to, 0, 16);
}
inline void copies_begin() {}
template <int n>
void copies_wait() {}
void load_matrices(uint32_t (&r)[4], const void* row);
void load_matrices_transposed(uint32_t (&r)[4], const void* row);
inline float mul_rn(float a, float b) { return a * b; }
inline float add_rn(float a, float b) { return a + b; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i)
    c += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
  return c;
}

}  // namespace tokamak::cuda

#define TK_KERNEL(name, Args, threads)                                                       \
  static void name(const Args& a);                                                           \
  static const ::tokamak::cuda::simt::Registration name##_registered(                        \
      {#name, [](const void* args) { name(*static_cast<const Args*>(args)); }, sizeof(Args), \
       threads});                                                                            \
  static void name(const Args& a)
#define TK_KERNEL_RESIDENT(name, Args, threads, resident) TK_KERNEL(name, Args, threads)
#define TK_DEVICE inline
#define TK_DEVICE_CALL inline
#define TK_DYNAMIC_SHARED(T, name) \
  T* name = reinterpret_cast<T*>(::tokamak::cuda::simt::dynamic_shared())
#define __shared__ static
#define __restrict__
