#pragma once
// A ring of tiles in shared memory. Producer warps fill it with bulk copies, consumer warps empty
// it. A tile has one chunk for each consumer; each producer serves some of the consumers.
#include "backend/cuda/device.cuh"

namespace tokamak::cuda {

// A bulk copy takes a warp some hundred cycles to issue, hence several producers. Tiles are loaded
// in kParts parts, each with a barrier of its own. What is in flight is bounded: too little starves
// the stream, too much delays the small loads of values that consumers wait for.
template <int kWarps_, int kSlots_, int kChunk_, int kProducers_>
struct RingConfig {
  static constexpr int kWarps = kWarps_, kSlots = kSlots_, kProducers = kProducers_;
  static constexpr int kChunk = kChunk_;                          // bytes
  static constexpr int kParts = 4, kPartWarps = kWarps / kParts;  // consumers of a part
  static constexpr int kOwn = kParts / kProducers;                // parts of a producer
  static constexpr int kConsumers = kWarps * 32, kThreads = kConsumers + kProducers * 32;
  static_assert(kWarps % kParts == 0 && kParts % kProducers == 0);
};

template <class C>
struct alignas(128) RingStorage {
  unsigned char tiles[C::kSlots][C::kWarps][C::kChunk];
  uint64_t full[C::kSlots][C::kParts], empty[C::kSlots];
  int dead;  // the work was given up: all waits end

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
};

// One producer warp. All lanes call these functions together; a lane serves one consumer or none.
template <class C>
class RingProducer {
 public:
  // in_flight: parts of tiles that may be loading at a time, over all producers.
  __device__ RingProducer(RingStorage<C>& ring, int producer, int in_flight)
      : ring_(ring),
        producer_(producer),
        in_flight_(max(1, (in_flight + C::kProducers - 1 - producer) / C::kProducers)) {}

  // The consumer this lane serves, C::kWarps or more for none.
  __device__ int consumer() const {
    constexpr int kServed = C::kOwn * C::kPartWarps;
    int lane = threadIdx.x % 32;
    return lane < kServed ? producer_ * kServed + lane : C::kWarps;
  }
  // Fills this producer's parts of a tile: issue(address, barrier) copies `bytes` for each lane
  // that has some. False when the work was given up.
  template <class Issue>
  __device__ bool tile(bool has, uint32_t bytes, Issue issue) {
    const unsigned mask = __ballot_sync(kAllLanes, has);
    const int lane = threadIdx.x % 32;
    if (issued_ >= C::kSlots * C::kOwn) {
      uint32_t empty = shared_address(&ring_.empty[slot_]);
      const uint32_t start = timed ? clock() : 0;
#pragma unroll 1
      while (!__all_sync(kAllLanes, barrier_try(empty, phase_ ^ 1)))
        if (__any_sync(kAllLanes, ring_.is_dead())) return false;
      if (timed) room_wait += clock() - start;
    }
#pragma unroll
    for (int k = 0; k < C::kOwn; ++k, ++issued_) {
      if (issued_ - landed_ >= in_flight_) wait_oldest();
      uint32_t full = shared_address(&ring_.full[slot_][producer_ * C::kOwn + k]);
      unsigned mine = mask >> (k * C::kPartWarps) & ((1u << C::kPartWarps) - 1);
      if (lane == 0) barrier_expect(full, __popc(mine) * bytes);
      __syncwarp();
      if (has && lane / C::kPartWarps == k)
        issue(shared_address(ring_.tiles[slot_][consumer()]), full);
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

  // For a profile: ticks that were spent waiting for room and for earlier copies.
  bool timed = false;
  uint32_t room_wait = 0, copy_wait = 0;

 private:
  __device__ void wait_oldest() {
    const int tile = landed_ / C::kOwn, part = producer_ * C::kOwn + landed_ % C::kOwn;
    uint32_t full = shared_address(&ring_.full[tile % C::kSlots][part]);
    const uint32_t start = timed ? clock() : 0;
#pragma unroll 1
    while (!__all_sync(kAllLanes, barrier_try(full, tile / C::kSlots & 1))) {
    }
    if (timed) copy_wait += clock() - start;
    ++landed_;
  }
  RingStorage<C>& ring_;
  int producer_, in_flight_, slot_ = 0, issued_ = 0, landed_ = 0;  // parts
  uint32_t phase_ = 0;
};

// Every consumer warp takes part in every tile. A warp without data in a tile still waits for it:
// otherwise it could run ahead by a whole ring, and its arrivals would count for the wrong tile.
template <class C>
class RingConsumer {
 public:
  // After the deadline (of now_ns) the work is given up.
  __device__ RingConsumer(RingStorage<C>& ring, int warp, unsigned long long deadline)
      : ring_(ring), warp_(warp), deadline_(deadline) {}
  __device__ const unsigned char* wait() const {
    wait_part(warp_ / C::kPartWarps);
    return ring_.tiles[slot_][warp_];
  }
  // Waits for the chunks of all consumers; they are C::kChunk apart from the result on.
  __device__ const unsigned char* wait_all() const {
    wait_part(threadIdx.x % C::kParts);  // each lane for one of them
    __syncwarp();
    return ring_.tiles[slot_][0];
  }
  __device__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&ring_.empty[slot_]));
    if (++slot_ == C::kSlots) {
      slot_ = 0;
      phase_ ^= 1;
    }
  }
  __device__ unsigned long long deadline() const { return deadline_; }
  __device__ void skip() {
    wait();
    release();
  }

 private:
  __device__ void wait_part(int part) const {
    uint32_t full = shared_address(&ring_.full[slot_][part]);
#pragma unroll 1
    while (!barrier_try(full, phase_)) {
      if (ring_.is_dead()) break;
      if (now_ns() > deadline_) ring_.set_dead();
    }
  }
  RingStorage<C>& ring_;
  int warp_, slot_ = 0;
  uint32_t phase_ = 0;
  unsigned long long deadline_;
};

// A barrier of the consumers alone.
template <class C>
__device__ void sync_consumers() {
  asm volatile("barrier.cta.sync 1,%0;" ::"n"(C::kConsumers) : "memory");
}

}  // namespace tokamak::cuda
