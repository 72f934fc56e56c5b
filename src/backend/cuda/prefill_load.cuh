#pragma once
// Prefill attention on Hopper: what the warps of a block share, and those that load
// (prefill_attention.cu).
#include "backend/cuda/cache_copy.cuh"
#include "backend/cuda/device.cuh"
#include "backend/cuda/ops/number.cuh"
#include "backend/cuda/prefill_attention.h"

namespace tokamak::cuda::prefill {

constexpr int kGroupThreads = 128;  // of a warpgroup
constexpr int kLoaders = 96;        // threads that bring queries
// Named barriers of the block: 0 is that of all threads.
constexpr int kLoaderBarrier = 1, kTurnBarrier = 2, kTailBarrier = 4;

// The tiles that blocks have taken beyond their first, and the blocks that are done. Zero between
// launches.
__device__ unsigned tiles_taken, blocks_done;

// 128 rows or fewer of one sequence and head.
struct Item {
  int sequence, first, rows, head;
  int slot;    // of the first row: a row sees the keys up to its slot
  int length;  // keys of the sequence
  int tiles;   // of keys; 0: there is no further item
};

template <int d>
struct Shared {
  uint8_t tiles[kPrefillPlaces][kPrefillKeys * d * 2];  // a ring, in the order of use
  uint8_t queries[2][kPrefillRows * d * 2];
  uint64_t full[kPrefillPlaces], empty[kPrefillPlaces];
  uint64_t item_full[2], query_full[2], query_empty[2];
  Item items[2];
};

// A use of a ring of n places.
template <int n>
struct Turn {
  int place = 0;
  uint32_t phase = 0;
  TK_DEVICE Turn next() const {
    return place + 1 == n ? Turn{0, phase ^ 1} : Turn{place + 1, phase};
  }
};
using TileTurn = Turn<kPrefillPlaces>;

TK_DEVICE void wait(const uint64_t& barrier, uint32_t phase) {
  const uint32_t address = shared_address(&barrier);
#pragma unroll 1
  while (!barrier_try(address, phase)) {
  }
}
TK_DEVICE void arrive(const uint64_t& barrier) { barrier_arrive(shared_address(&barrier)); }
TK_DEVICE void sync_threads(int barrier, int threads) {
  asm volatile("bar.sync %0,%1;" ::"r"(barrier), "r"(threads) : "memory");
}
TK_DEVICE void arrive_threads(int barrier, int threads) {
  asm volatile("bar.arrive %0,%1;" ::"r"(barrier), "r"(threads) : "memory");
}
// What a thread wrote to shared memory is seen by the copy engine and the tensor cores.
TK_DEVICE void show_to_engines() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// --- tiles of rows

// One warp numbers the tiles: sequence by sequence, the last tile of the last one first, as later
// tiles have more keys.
struct Tiles {
  const PrefillLaunch& a;
  int total = 0;  // over all sequences

  TK_DEVICE int of(int sequence) const {
    if (sequence >= a.sequences) return 0;
    return (a.q_start[sequence + 1] - a.q_start[sequence] + kPrefillRows - 1) / kPrefillRows;
  }
  TK_DEVICE int up_to(int sequence) const {  // of 32 sequences, including that of this lane
    int sum = of(sequence);
#pragma unroll
    for (int i = 1; i < kWarp; i *= 2) {
      int below = lane_up(sum, i);
      if (static_cast<int>(threadIdx.x) % kWarp >= i) sum += below;
    }
    return sum;
  }
  TK_DEVICE explicit Tiles(const PrefillLaunch& launch) : a(launch) {
#pragma unroll 1
    for (int i = 0; i < a.sequences; i += kWarp)
      total += lane_from(up_to(i + static_cast<int>(threadIdx.x) % kWarp), kWarp - 1);
  }
  TK_DEVICE Item item(int number) const {
    Item out{};
    int tile = total - 1 - number / a.heads;
    if (tile < 0) return out;
    int sequence = 0;
#pragma unroll 1
    for (;; sequence += kWarp) {
      const int sum = up_to(sequence + static_cast<int>(threadIdx.x) % kWarp);
      const int passed = __popc(warp_ballot(sum <= tile));
      const int before = lane_from(sum, passed > 0 ? passed - 1 : 0);
      if (passed > 0) tile -= before;
      sequence += passed;
      if (passed < kWarp) break;
      sequence -= kWarp;
    }
    const int from = a.q_start[sequence], to = a.q_start[sequence + 1];
    out.sequence = sequence;
    out.first = from + tile * kPrefillRows;
    out.rows = min(kPrefillRows, to - out.first);
    out.head = number % a.heads;
    out.length = a.kv_len[sequence];
    out.slot = out.length - (to - out.first);
    out.tiles = (out.slot + out.rows - 1) / kPrefillKeys + 1;
    return out;
  }
};

// --- the warps that load

// From bf16 to f16 or, half = false, back.
template <bool half>
TK_DEVICE Words4 converted(const Words4& v) {
  float x[8];
  half ? unpack_brain(v, x) : unpack_half(v, x);
  auto pack = [](float p, float q) { return half ? half_pair(p, q) : brain_pair(p, q); };
  return {pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7])};
}

template <int d, bool half>
TK_DEVICE void load_queries(const PrefillLaunch& a, const Item& item, uint8_t* to, int thread) {
  constexpr int kChunks = d / 8;  // of 16 bytes in a row
  const auto* q = static_cast<const uint16_t*>(a.q) + int64_t{item.head} * d;
  auto chunk_at = [&](int i) {
    const int row = i / kChunks, chunk = i % kChunks;
    return to + (row / 8 * (d / 64) + chunk / 8) * 1024 + row % 8 * 128 + ((chunk ^ row) & 7) * 16;
  };
  for (int i = thread; i < kPrefillRows * kChunks; i += kLoaders) {
    // Rows after the last are the last once more, and are not stored.
    const int64_t row = item.first + min(i / kChunks, item.rows - 1);
    copy16(chunk_at(i), q + row * a.heads * d + i % kChunks * 8, true);
  }
  copies_begin();
  copies_wait<0>();
  if ((a.tq == DType::kF16) == half) return;
  for (int i = thread; i < kPrefillRows * kChunks; i += kLoaders) {
    auto* chunk = reinterpret_cast<Words4*>(chunk_at(i));
    *chunk = converted<half>(*chunk);
  }
}

template <int d, bool half>
TK_DEVICE void bring_queries(const PrefillLaunch& a, Shared<d>& s, int thread) {
  const bool leads = thread < kWarp;  // the warp that takes items
  const Tiles tiles(a);
  int number = static_cast<int>(blockIdx.x);
#pragma unroll 1
  for (Turn<2> turn;; turn = turn.next()) {
    wait(s.query_empty[turn.place], turn.phase ^ 1);
    if (leads) {
      const Item item = tiles.item(number);
      if (thread == 0) {
        s.items[turn.place] = item;
        arrive(s.item_full[turn.place]);
      }
    }
    sync_threads(kLoaderBarrier, kLoaders);
    const Item item = s.items[turn.place];
    wait_for_earlier();
    if (item.tiles > 0) load_queries<d, half>(a, item, s.queries[turn.place], thread);
    show_to_engines();
    arrive(s.query_full[turn.place]);
    if (item.tiles == 0) break;
    if (thread == 0) number = static_cast<int>(gridDim.x + atomicAdd(&tiles_taken, 1));
    if (leads) number = lane_from(number, 0);
  }
  if (thread == 0 && atomicAdd(&blocks_done, 1) == gridDim.x - 1) {
    tiles_taken = 0;
    blocks_done = 0;
  }
}

// One tile of keys and values: each lane has one block of the cache.
struct CachedTile {
  int row_group = 0;    // of the lane's block in the plane
  bool exists = false;  // the lane has a block
  uint32_t bytes = 0;   // of all lanes
};

template <int d>
struct TileLoader {
  const PrefillLaunch& a;
  Shared<d>& s;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint32_t block_bytes = (d * 2) << a.block_shift;
  TileTurn turn;

  TK_DEVICE void fill(const CachedTile& tile, const TensorMap& map) {
    const uint32_t full = shared_address(&s.full[turn.place]);
    wait(s.empty[turn.place], turn.phase ^ 1);
    if (lane == 0) barrier_expect(full, tile.bytes);
    sync_warp();
    if (tile.exists)
      copy_cached(shared_address(s.tiles[turn.place]) + lane * block_bytes, map, tile.row_group,
                  full);
    turn = turn.next();
  }
  // The last tile of an item comes first. Values follow the keys of the next tile, as they are used
  // later.
  TK_DEVICE void run() {
    const int blocks = kPrefillKeys >> a.block_shift;
    CachedTile before;
    bool any = false;  // tile before
#pragma unroll 1
    for (Turn<2> at;; at = at.next()) {
      wait(s.item_full[at.place], at.phase);
      const Item item = s.items[at.place];
      if (item.tiles == 0) break;
      const int32_t* table = a.table + int64_t{item.sequence} * a.stride;
      const int kv_head = item.head / (a.heads / a.kv_heads);
      const int filled = (item.length + (1 << a.block_shift) - 1) >> a.block_shift;
      auto find = [&](int t) {
        const int block = t * blocks + lane;
        return lane < blocks && t >= 0 && block < filled ? table[block] : -1;
      };
      int block = find(item.tiles - 1);
      wait_for_earlier();
#pragma unroll 1
      for (int t = item.tiles - 1; t >= 0; --t) {
        CachedTile tile;
        tile.exists = block >= 0;
        tile.row_group = (block * a.kv_heads + kv_head) << a.block_shift >> 3;
        tile.bytes = min(blocks, filled - t * blocks) * block_bytes;
        block = find(t - 1);
        fill(tile, a.keys);
        if (any) fill(before, a.values);
        before = tile;
        any = true;
      }
    }
    turn = turn.next();  // the place of keys that do not come
    if (any) fill(before, a.values);
  }
};

}  // namespace tokamak::cuda::prefill
