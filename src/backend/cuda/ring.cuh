#pragma once
// A ring of tiles in shared memory. One producer warp fills it with bulk copies, consumer warps
// empty it. A tile has one chunk for each consumer.
#include "backend/cuda/device.cuh"

namespace tokamak::cuda {

// The ring has room for kSlots tiles, of which at most kInFlight are being loaded: more would delay
// the small loads of values that consumers wait for.
template <int kWarps_, int kSlots_, int kInFlight_, int kChunk_>
struct RingConfig {
  static constexpr int kWarps = kWarps_, kSlots = kSlots_, kInFlight = kInFlight_;
  static constexpr int kChunk = kChunk_;  // bytes
  static constexpr int kConsumers = kWarps * 32;
};

template <class C>
struct alignas(128) RingStorage {
  unsigned char tiles[C::kSlots][C::kWarps][C::kChunk];
  uint64_t full[C::kSlots], empty[C::kSlots];
  int dead;  // the work was given up: nobody waits any longer

  __device__ void init() {  // by one thread; a barrier of the block has to follow
    for (int i = 0; i < C::kSlots; ++i) {
      barrier_init(shared_address(&full[i]), 1);
      barrier_init(shared_address(&empty[i]), C::kWarps);
    }
    dead = 0;
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __device__ bool is_dead() const { return *static_cast<const volatile int*>(&dead) != 0; }
  __device__ void set_dead() { *static_cast<volatile int*>(&dead) = 1; }
};

// All lanes of the producer warp call these together.
template <class C>
class RingProducer {
 public:
  __device__ explicit RingProducer(RingStorage<C>& ring) : ring_(ring) {}

  // Waits for room and announces the bytes of a tile. Returns the barrier for its copies, 0 when
  // the work was given up.
  __device__ uint32_t begin_tile(uint32_t bytes) {
    if (issued_ >= C::kSlots) {
      uint32_t empty = shared_address(&ring_.empty[slot_]);
      while (!__all_sync(kAllLanes, barrier_try(empty, phase_ ^ 1)))
        if (__any_sync(kAllLanes, ring_.is_dead())) return 0;
    }
    if (issued_ - landed_ >= C::kInFlight) wait_oldest();
    uint32_t full = shared_address(&ring_.full[slot_]);
    if (threadIdx.x % 32 == 0) barrier_expect(full, bytes);
    __syncwarp();
    return full;
  }
  __device__ uint32_t chunk(int consumer) const {
    return shared_address(ring_.tiles[slot_][consumer]);
  }
  __device__ void end_tile() {
    ++issued_;
    if (++slot_ == C::kSlots) {
      slot_ = 0;
      phase_ ^= 1;
    }
  }
  // Shared memory must outlive the copies into it.
  __device__ void drain() {
    while (landed_ < issued_) wait_oldest();
  }

 private:
  __device__ void wait_oldest() {
    uint32_t full = shared_address(&ring_.full[landed_ % C::kSlots]);
    while (!__all_sync(kAllLanes, barrier_try(full, landed_ / C::kSlots & 1))) {
    }
    ++landed_;
  }
  RingStorage<C>& ring_;
  int slot_ = 0, issued_ = 0, landed_ = 0;  // tiles
  uint32_t phase_ = 0;
};

// Every consumer warp takes part in every tile, whether its chunk has data or not.
template <class C>
class RingConsumer {
 public:
  __device__ RingConsumer(RingStorage<C>& ring, int warp) : ring_(ring), warp_(warp) {}
  __device__ const unsigned char* wait() const {
    uint32_t full = shared_address(&ring_.full[slot_]);
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
