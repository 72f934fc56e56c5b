#pragma once
// State of the persistent decode kernel: its shape, its shared memory, and what a thread carries
// from one instruction to the next.
#include "backend/cuda/attend_group.cuh"
#include "backend/cuda/decode_program.h"
#include "backend/cuda/ring.cuh"

namespace tokamak::cuda {

// Parameters of a kernel.
// kGroup_: query heads per key/value head, rounded up to a power of two. kType_: of all weights,
// decode_kernel_type().
// kBatch_: 1 or kMaxBatch.
template <int kHead_, int kGroup_, int kBatch_, DecodeWeight kType_, int kSlots, int kProducers>
struct DecodeConfig : RingConfig<kDecodeWarps, kSlots, decode_chunk_room(kType_), kProducers> {
  static constexpr int kHead = kHead_, kGroup = kGroup_, kBatch = kBatch_;
  static constexpr DecodeWeight kType = kType_;
  static constexpr bool kSingle = kBatch == 1;
  // Tiles of rows whose sums are collected in shared memory before the consumers meet.
  static constexpr int kFlush = 4;
  static constexpr int kTileSums = kSingle ? 16 : 128;  // floats of a warp and tile
  static_assert(kGroupPositions * kHead * 4 <= decode_chunk_room(kType),
                "a chunk holds keys and values of a group");
};

// How kAttend is divided. A block has one key/value head and, of each sequence, a share of the
// cached groups; its consumers divide the sequences among them, several to one where there are
// few. This is one consumer's work.
struct AttendWork {
  int head, split, most;     // of the block
  int team, sequence, rank;  // consumers per sequence; the consumer's sequence and place in it
  int groups, splits;        // of the sequence; splits that have work
  int tiles;                 // of the block
  bool active;

  AttendWork() = default;
  __device__ AttendWork(const DecodeLaunch& l, const int* position, int block, int blocks,
                        int consumer) {
    head = block % l.kv_heads;
    split = block / l.kv_heads;
    most = blocks / l.kv_heads;
    team = kDecodeWarps;
#pragma unroll 1
    while (team * l.batch > kDecodeWarps) team /= 2;
    sequence = consumer / team;
    rank = consumer % team;
    tiles = 0;
#pragma unroll 1
    for (int s = 0; s < l.batch; ++s) {
      groups = groups_of(position[s]);
      splits = splits_of(groups);
      if (split < splits && split < groups)
        tiles = max(tiles, ((groups - split + splits - 1) / splits + team - 1) / team);
    }
    active = sequence < l.batch;
    groups = active ? groups_of(position[sequence]) : 0;
    splits = splits_of(groups);
    active = active && split < splits;
    if (!active) groups = 0;
  }
  __device__ int group(int tile) const { return (tile * team + rank) * splits + split; }
  __device__ static int groups_of(int position) {
    return (position + kGroupPositions - 1) / kGroupPositions;
  }
  // Few, so that there are few parts to join, as long as the consumers of a block are busy.
  __device__ int splits_of(int groups) const {
    return max(1, min(most, (groups + team - 1) / team));
  }
};

template <class C>
struct alignas(128) DecodeShared {
  RingStorage<C> ring;
  float2 rope[C::kBatch][C::kHead / 2];  // cos, sin
  float squares[2][C::kBatch][C::kWarps];
  int position[C::kBatch];
  int not_finite[C::kBatch];
  AttendWork attend[C::kWarps];
};

constexpr int kHeldSegments = 16;  // of the input of several sequences, in a lane's registers

// What kMatvec keeps in the memory that follows; of one sequence then the input.
template <class C>
struct alignas(16) MatvecShared {
  float sums[2][C::kFlush][C::kWarps][C::kTileSums];
  float input_scales[C::kSingle ? 1 : C::kWarps][C::kSingle ? 1 : kHeldSegments][kMaxBatch];
};

// What kAttend keeps in the same memory.
template <class C>
struct alignas(16) AttendShared {
  uint16_t queries[C::kBatch][kMaxGroup][C::kHead];  // of the cache's type
  uint16_t fresh[C::kBatch][2][C::kHead];            // key and value of the new position
  AttendScratch scratch[C::kWarps];
  float peak[kMaxGroup][C::kWarps], mass[kMaxGroup][C::kWarps];
  // then float sums[warp][head][C::kHead] for the heads of a group
};

// True when waiting is over without success: the deadline passed here or in another block.
__device__ __forceinline__ bool gave_up(uint32_t* error, int* dead, unsigned long long deadline,
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

__device__ inline unsigned long long* profile_entry(const DecodeLaunch& l, int block,
                                                    int instruction, ProfileField field) {
  return l.profile + (static_cast<int64_t>(block) * l.instructions + instruction) * kProfileFields +
         field;
}

template <class C>
struct DecodeThread {
  const DecodeLaunch& launch;
  DecodeShared<C>& shared;
  unsigned char* scratch;  // shared memory of the instruction
  int warp, lane, block, blocks;
  RingConsumer<C> ring;
  int index = 0;   // of the instruction
  int buffer = 0;  // of MatvecShared::sums, the next to be written
  int turn = 0;    // of DecodeShared::squares, likewise
  float residual[kMaxOwnedRows] = {};
  uint32_t ring_wait = 0, meet_wait = 0;  // ticks, while profiling
  double best_score = -INFINITY;
  int best_token = 0x7fffffff;

  __device__ const AttendWork& attend() const { return shared.attend[warp]; }
  __device__ int global_warp() const { return warp * blocks + block; }
  __device__ int all_warps() const { return C::kWarps * blocks; }
  __device__ uint32_t tag(int relative) const {
    return launch.tag_base + static_cast<uint32_t>(relative) + 1;
  }
  __device__ uint32_t phase(int relative) const { return tag(relative) & 1; }

  // Loads values, and loads again what is not ready: load(value, j, wanted). Values of a dead step
  // are not usable. fresh: false where all were loaded once before.
  template <int kCount, class Value, class Load, class Ready>
  __device__ __forceinline__ void poll_all(Value (&values)[kCount], Load load, Ready ready,
                                           bool fresh = true) {
#pragma unroll 1
    for (uint32_t tries = fresh ? 0 : 1;; ++tries) {
      bool all = tries > 0;
#pragma unroll
      for (int j = 0; j < kCount; ++j) all = all && ready(values[j], j);
      if (all) return;
      if (tries % 16 == 15 && gave_up(&launch.state->error, &shared.ring.dead, ring.deadline(),
                                      static_cast<uint32_t>(index)))
        return;
#pragma unroll
      for (int j = 0; j < kCount; ++j) load(values[j], j, tries == 0 || !ready(values[j], j));
    }
  }

  // Like poll_all(), by a whole warp and of the first `count` values: take(value, j) is called for
  // each as soon as all lanes have theirs, so that only the last is left to do after the wait.
  template <int kCount, class Value, class Load, class Ready, class Take>
  __device__ __forceinline__ void poll_each(Value (&values)[kCount], int count, Load load,
                                            Ready ready, Take take) {
    uint32_t missing = (1u << min(kCount, count)) - 1;
#pragma unroll 1
    for (uint32_t tries = 0; missing != 0; ++tries) {
      if (tries % 16 == 15 &&
          __any_sync(kAllLanes, gave_up(&launch.state->error, &shared.ring.dead, ring.deadline(),
                                        static_cast<uint32_t>(index))))
        return;
#pragma unroll
      for (int j = 0; j < kCount; ++j)
        if (missing >> j & 1) load(values[j], j, tries == 0 || !ready(values[j], j));
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        if ((missing >> j & 1) == 0 || !__all_sync(kAllLanes, ready(values[j], j))) continue;
        take(values[j], j);
        missing &= ~(1u << j);
      }
    }
  }

  // Whether any consumer of the block saw the step fail; all get the same answer.
  __device__ bool sync_or_dead() {
    uint32_t dead = shared.ring.is_dead();
    const bool profiled = opaque(launch.profile != nullptr);
    const uint32_t start = profiled ? clock() : 0;
    asm volatile(
        "{\n.reg .pred p,q;\n"
        "setp.ne.u32 p,%0,0;\n"
        "barrier.cta.red.or.pred q,1,%1,p;\n"
        "selp.u32 %0,1,0,q;\n}"
        : "+r"(dead)
        : "n"(C::kConsumers)
        : "memory");
    if (profiled) meet_wait += clock() - start;
    return dead != 0;
  }

  __device__ const unsigned char* wait_chunk(bool all = false) {
    if (!opaque(launch.profile != nullptr)) return all ? ring.wait_all() : ring.wait();
    uint32_t start = clock();
    const unsigned char* chunk = all ? ring.wait_all() : ring.wait();
    ring_wait += clock() - start;
    return chunk;
  }
  __device__ bool profiles() const { return launch.profile && warp == 0 && lane == 0; }
  __device__ void mark(ProfileField field) const {
    if (profiles()) *profile_entry(launch, block, index, field) = clock64();
  }
  __device__ void mark_waits() {
    if (!profiles()) return;
    *profile_entry(launch, block, index, kWaitWeights) = ring_wait;
    *profile_entry(launch, block, index, kWaitConsumers) = meet_wait;
    ring_wait = meet_wait = 0;
  }
};

// How a kMatvec is divided: tiles of rows go to blocks in turn; a tile comes in parts of its width,
// of which each consumer multiplies some segments of 32.
struct MatvecWork {
  int tile_rows, tiles, parts, width, first, segments;  // width and segments of a part
  __device__ MatvecWork(const DecodeInstruction& in, int block, int blocks, int consumer) {
    tile_rows = decode_tile_rows(in.type);
    int all = (in.rows + tile_rows - 1) / tile_rows;
    tiles = block < all ? (all - block + blocks - 1) / blocks : 0;
    parts = in.parts;
    width = in.width / parts;
    first = consumer * (width / 32) / kDecodeWarps;
    segments = (consumer + 1) * (width / 32) / kDecodeWarps - first;
  }
  // Parts outside, tiles inside, instead of the other way round. The input of one sequence is in
  // shared memory; that of several is in registers, which hold one or two parts.
  template <class C>
  __device__ static bool part_major(const DecodeInstruction& in) {
    return !C::kSingle && in.parts > (decode_four_bits(in.type) ? 1 : 2);
  }
};

__device__ inline int64_t cache_offset(const DecodeLaunch& l, int sequence, int position,
                                       int kv_head, int d) {
  int64_t page =
      __ldg(l.pages + static_cast<int64_t>(sequence) * l.page_stride + position / l.page_size);
  return ((page * l.kv_heads + kv_head) * l.page_size + position % l.page_size) * d;
}

}  // namespace tokamak::cuda
