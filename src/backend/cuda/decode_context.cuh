#pragma once
// State of the persistent decode kernel: its shape, its shared memory, and what a thread carries
// from one instruction to the next.
#include "backend/cuda/attend_group.cuh"
#include "backend/cuda/decode_program.h"
#include "backend/cuda/device.cuh"

namespace tokamak::cuda {

// kWarps consumer warps and one producer warp. A tile is one chunk for each consumer; the ring has
// room for kSlots tiles, of which at most kInFlight are being loaded: more would delay the small
// loads of values that consumers wait for.
template <int kWarps_, int kSlots_, int kInFlight_, int kChunk_, int kHead_>
struct DecodeConfig {
  static constexpr int kWarps = kWarps_, kSlots = kSlots_, kInFlight = kInFlight_;
  static constexpr int kChunk = kChunk_;  // bytes
  static constexpr int kHead = kHead_;
  static constexpr int kConsumers = kWarps * 32;
  static_assert(kGroupPositions * kHead * 4 <= kChunk, "a chunk holds keys and values of a group");
};

template <class C>
struct alignas(128) DecodeShared {
  unsigned char tiles[C::kSlots][C::kWarps][C::kChunk];
  uint64_t full[C::kSlots], empty[C::kSlots];
  float2 rope[C::kHead / 2];  // cos, sin
  double best_scores[C::kWarps];
  int best_tokens[C::kWarps];
  float reduce[C::kWarps];
  int dead;  // a wait passed its deadline: everybody leaves
};

// What kAttend keeps where other instructions keep their input.
template <class C>
struct AttendShared {
  Bf16 queries[kMaxGroup][C::kHead];
  Bf16 fresh[2][C::kHead];  // key and value of the new position
  AttendScratch scratch[C::kWarps];
  float peak[C::kWarps][kMaxGroup], mass[C::kWarps][kMaxGroup];
  // then float sums[warp][head][C::kHead] for the heads of a group
};

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
  unsigned long long deadline;
  int slot = 0;  // of the ring
  uint32_t phase = 0;
  float residual[kMaxOwnedRows];
  double best_score = -INFINITY;
  int best_token = 0x7fffffff;

  __device__ int global_warp() const { return warp * blocks + block; }
  __device__ int all_warps() const { return C::kWarps * blocks; }
  __device__ uint32_t tag(int relative) const {
    return launch.tag_base + static_cast<uint32_t>(relative) + 1;
  }

  __device__ bool is_dead() const { return *static_cast<volatile int*>(&shared.dead) != 0; }
  // True when waiting is over without success: the deadline passed here or in another block.
  __device__ bool gave_up() {
    if (is_dead()) return true;
    if (now_ns() <= deadline && load_word(&launch.state->error) == 0) return false;
    atomicCAS(&launch.state->error, 0u, static_cast<uint32_t>(index) + 1);
    *static_cast<volatile int*>(&shared.dead) = 1;
    return true;
  }
  // Repeats load() until ready() accepts the value; a value of a dead step is not usable.
  template <class Load, class Ready>
  __device__ auto poll(Load load, Ready ready) {
    auto value = load();
    for (int tries = 1; !ready(value); ++tries) {
      if (tries % 16 == 0 && gave_up()) break;
      value = load();
    }
    return value;
  }

  __device__ void sync_consumers() const {
    asm volatile("barrier.cta.sync 1,%0;" ::"n"(C::kConsumers) : "memory");
  }
  // The same answer in all consumers of the block: whether any of them saw the step die.
  __device__ bool sync_or_dead() const {
    uint32_t dead = is_dead();
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

  __device__ const unsigned char* wait_chunk() const {
    uint32_t full = shared_address(&shared.full[slot]);
    while (!barrier_try(full, phase))
      if (is_dead()) break;
    return shared.tiles[slot][warp];
  }
  __device__ void release_chunk() {
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&shared.empty[slot]));
    if (++slot == C::kSlots) {
      slot = 0;
      phase ^= 1;
    }
  }

  __device__ void mark(int field) const {
    if (launch.profile && warp == 0 && lane == 0)
      launch.profile[(static_cast<int64_t>(block) * launch.instructions + index) * kProfileFields +
                     field] = clock64();
  }
};

// How a kMatvec is cut: units of rows go to warps in turn, rows come in equal chunks.
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

// How kAttend is cut: a block has one key/value head and a share of its cached groups.
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
