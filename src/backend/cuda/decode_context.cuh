#pragma once
// State of the persistent decode kernel: its shape, its shared memory, and what a thread carries
// from one instruction to the next.
#include "backend/cuda/attend_group.cuh"
#include "backend/cuda/decode_program.h"
#include "backend/cuda/ring.cuh"

namespace tokamak::cuda {

// Parameters of a kernel.
// kGroup_: query heads per key/value head, rounded up to a power of two.
template <int kHead_, int kGroup_, int kWarps, int kSlots, int kChunk, int kProducers>
struct DecodeConfig : RingConfig<kWarps, kSlots, kChunk, kProducers> {
  static constexpr int kHead = kHead_, kGroup = kGroup_;
  static_assert(kGroupPositions * kHead * 4 <= kChunk, "a chunk holds keys and values of a group");
};

template <class C>
struct alignas(128) DecodeShared {
  RingStorage<C> ring;
  float2 rope[C::kHead / 2];  // cos, sin
  double best_scores[C::kWarps];
  int best_tokens[C::kWarps];
  float reduce[C::kWarps];
};

// What kAttend keeps where other instructions keep their input.
template <class C>
struct AttendShared {
  Bf16 queries[kMaxGroup][C::kHead];
  Bf16 fresh[2][C::kHead];  // key and value of the new position
  AttendScratch scratch[C::kWarps];
  float peak[kMaxGroup][C::kWarps], mass[kMaxGroup][C::kWarps];
  // then float sums[warp][head][C::kHead] for the heads of a group
};

// True when waiting is over without success: the deadline passed here or in another block. Not
// inlined: the kernel has to stay small for the instruction cache.
__device__ __noinline__ bool gave_up(uint32_t* error, int* dead, unsigned long long deadline,
                                     uint32_t index) {
  if (*static_cast<volatile int*>(dead)) return true;
  if (now_ns() <= deadline && load_word(error) == 0) return false;
  atomicCAS(error, 0u, index + 1);
  *static_cast<volatile int*>(dead) = 1;
  return true;
}

extern "C" {
__constant__ DecodeInstruction decode_program[kMaxInstructions];
}

template <class C>
struct DecodeThread {
  const DecodeLaunch& launch;
  DecodeShared<C>& shared;
  void* input;  // shared memory of the instruction's input
  int warp, lane, block, blocks;
  int index = 0;  // of the instruction
  int position;
  RingConsumer<C> ring;
  float residual[kMaxOwnedRows / 4];  // rows 4 * i + lane / 8 of the warp's rows
  uint32_t ring_wait = 0;             // ticks, while profiling
  double best_score = -INFINITY;
  int best_token = 0x7fffffff;

  __device__ int global_warp() const { return warp * blocks + block; }
  __device__ int all_warps() const { return C::kWarps * blocks; }
  __device__ uint32_t tag(int relative) const {
    return launch.tag_base + static_cast<uint32_t>(relative) + 1;
  }

  // Loads again what is not ready; values of a dead step are not usable.
  template <int kCount, class Value, class Load, class Ready>
  __device__ void poll_all(Value (&values)[kCount], Load load, Ready ready) {
#pragma unroll 1
    for (int tries = 1;; ++tries) {
      bool all = true;
#pragma unroll
      for (int j = 0; j < kCount; ++j) all = all && ready(values[j]);
      if (all) return;
      if (tries % 16 == 0 && gave_up(&launch.state->error, &shared.ring.dead, ring.deadline(),
                                     static_cast<uint32_t>(index)))
        return;
#pragma unroll
      for (int j = 0; j < kCount; ++j)
        if (!ready(values[j])) values[j] = load(j);
    }
  }

  // The same answer in all consumers of the block: whether any of them saw the step die.
  __device__ bool sync_or_dead() const {
    uint32_t dead = shared.ring.is_dead();
    asm volatile(
        "{\n.reg .pred p,q;\n"
        "setp.ne.u32 p,%0,0;\n"
        "barrier.cta.red.or.pred q,1,%1,p;\n"
        "selp.u32 %0,1,0,q;\n}"
        : "+r"(dead)
        : "n"(C::kConsumers)
        : "memory");
    return dead != 0;
  }

  __device__ const unsigned char* wait_chunk() {
    if (!launch.profile) return ring.wait();
    uint32_t start = clock();
    const unsigned char* chunk = ring.wait();
    ring_wait += clock() - start;
    return chunk;
  }
  __device__ void mark_ring_wait() {
    if (launch.profile && warp == 0 && lane == 0)
      launch.profile[(static_cast<int64_t>(block) * launch.instructions + index) * kProfileFields +
                     4] = ring_wait;
    ring_wait = 0;
  }
  __device__ void mark(int field) const {
    if (launch.profile && warp == 0 && lane == 0)
      launch.profile[(static_cast<int64_t>(block) * launch.instructions + index) * kProfileFields +
                     field] = clock64();
  }
};

// How a kMatvec is divided: units of rows go to warps in turn, rows come in equal chunks.
template <class C>
struct MatvecWork {
  int unit, units, parts, elements;  // elements of a chunk
  __device__ explicit MatvecWork(const DecodeInstruction& in) {
    unit = in.flags & kGated ? 2 : 1;
    units = in.rows / unit;
    parts = (in.width * 2 + C::kChunk - 1) / C::kChunk;
    elements = in.width / parts;
  }
  __device__ int tiles(int block, int all_warps) const {  // of the block's busiest warp
    return block < units ? (units - block + all_warps - 1) / all_warps * unit * parts : 0;
  }
};

// How kAttend is divided: a block has one key/value head and a share of its cached groups.
struct AttendWork {
  int head, split, splits, groups;  // splits that have work; groups of the sequence
  __device__ AttendWork(int block, int blocks, int kv_heads, int position) {
    head = block % kv_heads;
    split = block / kv_heads;
    groups = (position + kGroupPositions - 1) / kGroupPositions;
    splits = max(1, min(blocks / kv_heads, groups));
  }
  __device__ bool active() const { return split < splits; }
  __device__ int tiles(int warps) const {
    if (!active() || split >= groups) return 0;
    int mine = (groups - split + splits - 1) / splits;
    return (mine + warps - 1) / warps;
  }
  __device__ int group(int tile, int warp, int warps) const {  // >= groups: none
    return (tile * warps + warp) * splits + split;
  }
};

__device__ inline int64_t cache_offset(const DecodeLaunch& l, int position, int kv_head, int d) {
  int64_t page = __ldg(l.pages + position / l.page_size);
  return ((page * l.kv_heads + kv_head) * l.page_size + position % l.page_size) * d;
}

}  // namespace tokamak::cuda
