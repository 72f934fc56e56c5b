#pragma once
// A ring of tiles in shared memory. One producer warp fills it with bulk copies, consumer warps
// empty it. A tile has one chunk for each consumer.
#include "backend/cuda/device.cuh"

namespace tokamak::cuda {

// Tiles are loaded in kParts parts, each with a barrier of its own, so that what is being loaded
// can be bounded finely: too little starves the stream, too much delays the small loads of values
// that consumers wait for.
template <int kWarps_, int kSlots_, int kChunk_>
struct RingConfig {
  static constexpr int kWarps = kWarps_, kSlots = kSlots_, kParts = 2;
  static constexpr int kChunk = kChunk_;  // bytes
  static constexpr int kConsumers = kWarps * 32;
  static_assert(kWarps % kParts == 0);
};

template <class C>
struct alignas(128) RingStorage {
  unsigned char tiles[C::kSlots][C::kWarps][C::kChunk];
  uint64_t full[C::kSlots][C::kParts], empty[C::kSlots];
  int dead;  // the work was given up: nobody waits any longer

  __device__ void init() {  // by one thread; a barrier of the block has to follow
#pragma unroll 1
    for (int i = 0; i < C::kSlots; ++i) {
#pragma unroll 1
      for (int part = 0; part < C::kParts; ++part) barrier_init(shared_address(&full[i][part]), 1);
      barrier_init(shared_address(&empty[i]), C::kWarps);
    }
    dead = 0;
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __device__ bool is_dead() const { return *static_cast<const volatile int*>(&dead) != 0; }
  __device__ void set_dead() { *static_cast<volatile int*>(&dead) = 1; }
  __device__ static int part_of(int consumer) { return consumer / (C::kWarps / C::kParts); }
};

// All lanes of the producer warp call these together; lane w serves consumer w.
template <class C>
class RingProducer {
 public:
  // in_flight: parts of tiles that may be loading at a time.
  __device__ RingProducer(RingStorage<C>& ring, int in_flight)
      : ring_(ring), in_flight_(in_flight) {}

  // Fills one tile: issue(address, barrier) copies `bytes` for each lane that has some. False when
  // the work was given up.
  template <class Issue>
  __device__ bool tile(bool has, uint32_t bytes, Issue issue) {
    constexpr unsigned kLanes = C::kWarps / C::kParts;
    const int lane = threadIdx.x % 32;
    const unsigned mask = __ballot_sync(kAllLanes, has);
    if (issued_ >= C::kSlots * C::kParts) {
      uint32_t empty = shared_address(&ring_.empty[slot_]);
#pragma unroll 1
      while (!__all_sync(kAllLanes, barrier_try(empty, phase_ ^ 1)))
        if (__any_sync(kAllLanes, ring_.is_dead())) return false;
    }
#pragma unroll
    for (int part = 0; part < C::kParts; ++part, ++issued_) {
      if (issued_ - landed_ >= in_flight_) wait_oldest();
      uint32_t full = shared_address(&ring_.full[slot_][part]);
      unsigned mine = mask >> (part * kLanes) & ((1u << kLanes) - 1);
      if (lane == 0) barrier_expect(full, __popc(mine) * bytes);
      __syncwarp();
      if (has && ring_.part_of(lane) == part) issue(shared_address(ring_.tiles[slot_][lane]), full);
    }
    if (++slot_ == C::kSlots) {
      slot_ = 0;
      phase_ ^= 1;
    }
    return true;
  }
  // Shared memory must outlive the copies into it.
  __device__ void drain() {
#pragma unroll 1
    while (landed_ < issued_) wait_oldest();
  }

 private:
  __device__ void wait_oldest() {
    int tile = landed_ / C::kParts;
    uint32_t full = shared_address(&ring_.full[tile % C::kSlots][landed_ % C::kParts]);
#pragma unroll 1
    while (!__all_sync(kAllLanes, barrier_try(full, tile / C::kSlots & 1))) {
    }
    ++landed_;
  }
  RingStorage<C>& ring_;
  int in_flight_, slot_ = 0, issued_ = 0, landed_ = 0;  // parts of tiles
  uint32_t phase_ = 0;
};

// Every consumer warp takes part in every tile, whether its chunk has data or not.
template <class C>
class RingConsumer {
 public:
  __device__ RingConsumer(RingStorage<C>& ring, int warp) : ring_(ring), warp_(warp) {}
  __device__ const unsigned char* wait() const {
    uint32_t full = shared_address(&ring_.full[slot_][ring_.part_of(warp_)]);
#pragma unroll 1
    while (!barrier_try(full, phase_))
      if (ring_.is_dead()) break;
    return ring_.tiles[slot_][warp_];
  }
  __device__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&ring_.empty[slot_]));
    if (++slot_ == C::kSlots) {
      slot_ = 0;
      phase_ ^= 1;
    }
  }

 private:
  RingStorage<C>& ring_;
  int warp_, slot_ = 0;
  uint32_t phase_ = 0;
};

// A barrier of the consumers alone.
template <class C>
__device__ void sync_consumers() {
  asm volatile("barrier.cta.sync 1,%0;" ::"n"(C::kConsumers) : "memory");
}

}  // namespace tokamak::cuda
