// Attention of many rows of a sequence over the paged cache, on Hopper's tensor cores. A block takes
// tiles of 128 rows of one head until none is left. One warp copies keys and values to shared
// memory, three bring the queries of the next tile, and two warpgroups compute 64 rows each. Scores
// of the next keys and the product with the values run while the weights are computed. Keys and
// values are 16-bit; scores and sums are f32, weights are rounded to the cache's type. Tiles of keys
// begin at absolute positions, so a row has the same bits however a prompt is cut.
// Hopper only: products of warpgroups, copies of tensors.
#include "backend/cuda/prefill_attention.h"

#include "backend/cuda/ops/number.cuh"
#include "backend/cuda/wgmma.cuh"

namespace tokamak::cuda {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr int kGroupThreads = 128;  // of a warpgroup
constexpr int kLoaders = 96;        // threads that bring queries
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
// Named barriers of the block: 0 is that of all threads.
constexpr int kLoaderBarrier = 1, kTurnBarrier = 2, kGroupBarrier = 4;

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
  static constexpr int kTileBytes = kPrefillKeys * d * 2;
  uint8_t keys[kPrefillStages][kTileBytes];
  uint8_t values[kPrefillStages][kTileBytes];
  uint8_t queries[2][kPrefillRows * d * 2];
  uint64_t key_full[kPrefillStages], key_empty[kPrefillStages];
  uint64_t value_full[kPrefillStages], value_empty[kPrefillStages];
  uint64_t item_full[2], query_full[2], query_empty[2];
  Item items[2];
};

// Counts the uses of a ring of n places.
template <int n>
struct Turn {
  int place = 0;
  uint32_t phase = 0;
  TK_DEVICE void next() {
    if (++place == n) {
      place = 0;
      phase ^= 1;
    }
  }
};

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

TK_DEVICE void copy_block(uint32_t to, const TensorMap& map, int row_group, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0],[%1,{%2,%2,%2,%3}],[%4];" ::"r"(to),
      "l"(&map), "r"(0), "r"(row_group), "r"(barrier)
      : "memory");
}

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

template <int d, bool half>
TK_DEVICE Words4 converted(const Words4& v, DType type) {
  if ((type == DType::kF16) == half) return v;
  float x[8];
  half ? unpack_brain(v, x) : unpack_half(v, x);
  auto pack = [](float p, float q) { return half ? half_pair(p, q) : brain_pair(p, q); };
  return {pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7])};
}

template <int d, bool half>
TK_DEVICE void load_queries(const PrefillLaunch& a, const Item& item, uint8_t* to, int thread) {
  constexpr int kChunks = d / 8;  // of 16 bytes in a row
  const auto* q = static_cast<const uint16_t*>(a.q) + int64_t{item.head} * d;
#pragma unroll 2
  for (int i = thread; i < kPrefillRows * kChunks; i += kLoaders) {
    const int row = i / kChunks, chunk = i % kChunks;
    // Rows after the last are the last once more, and are not stored.
    const int64_t from = (int64_t{item.first} + min(row, item.rows - 1)) * a.heads * d + chunk * 8;
    const Words4 v = *reinterpret_cast<const Words4*>(q + from);
    uint8_t* atom = to + (row / 8 * (d / 64) + chunk / 8) * 1024;
    *reinterpret_cast<Words4*>(atom + row % 8 * 128 + ((chunk ^ row) & 7) * 16) =
        converted<d, half>(v, a.tq);
  }
}

template <int d, bool half>
TK_DEVICE void bring_queries(const PrefillLaunch& a, Shared<d>& s, int thread) {
  const bool leads = thread < kWarp;  // the warp that takes items
  const Tiles tiles(a);
  int number = static_cast<int>(blockIdx.x);
#pragma unroll 1
  for (Turn<2> turn;; turn.next()) {
    wait(s.query_empty[turn.place], turn.phase ^ 1);
    if (leads) {
      const Item item = tiles.item(number);
      if (thread == 0) {
        s.items[turn.place] = item;
        arrive(s.item_full[turn.place]);
        if (item.tiles > 0) number = static_cast<int>(gridDim.x + atomicAdd(&tiles_taken, 1));
      }
      number = lane_from(number, 0);
    }
    sync_threads(kLoaderBarrier, kLoaders);
    const Item item = s.items[turn.place];
    if (item.tiles > 0) load_queries<d, half>(a, item, s.queries[turn.place], thread);
    show_to_engines();
    arrive(s.query_full[turn.place]);
    if (item.tiles == 0) break;
  }
  if (thread == 0 && atomicAdd(&blocks_done, 1) == gridDim.x - 1) {
    tiles_taken = 0;
    blocks_done = 0;
  }
}

// Keys and values, the last tile of an item first. A lane copies one block of the cache.
template <int d>
TK_DEVICE void bring_keys(const PrefillLaunch& a, Shared<d>& s) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, blocks = kPrefillKeys >> a.block_shift;
  const uint32_t block_bytes = (d * 2) << a.block_shift;
  Turn<kPrefillStages> stage;
#pragma unroll 1
  for (Turn<2> turn;; turn.next()) {
    wait(s.item_full[turn.place], turn.phase);
    const Item item = s.items[turn.place];
    if (item.tiles == 0) break;
    const int32_t* table = a.table + int64_t{item.sequence} * a.stride;
    const int kv_head = item.head / (a.heads / a.kv_heads);
    const int filled = (item.length + (1 << a.block_shift) - 1) >> a.block_shift;
    auto find = [&](int t) {
      const int block = t * blocks + lane;
      return lane < blocks && t >= 0 && block < filled ? table[block] : -1;
    };
    int block = find(item.tiles - 1);
#pragma unroll 1
    for (int t = item.tiles - 1; t >= 0; --t, stage.next()) {
      const uint32_t bytes = min(blocks, filled - t * blocks) * block_bytes;
      const int group = (block * a.kv_heads + kv_head) << a.block_shift >> 3;
      const bool exists = block >= 0;
      block = find(t - 1);
      auto fill = [&](uint64_t& full, uint64_t& empty, uint8_t* to, const TensorMap& map) {
        wait(empty, stage.phase ^ 1);
        if (lane == 0) barrier_expect(shared_address(&full), bytes);
        sync_warp();
        if (exists)
          copy_block(shared_address(to) + lane * block_bytes, map, group, shared_address(&full));
      };
      fill(s.key_full[stage.place], s.key_empty[stage.place], s.keys[stage.place], a.keys);
      fill(s.value_full[stage.place], s.value_empty[stage.place], s.values[stage.place], a.values);
    }
  }
}

// --- the warpgroups that compute

template <int d, bool half>
struct Rows {
  static constexpr uint32_t kRowStep = d / 64 * 1024;  // bytes from 8 rows of a tile to the next 8
  const PrefillLaunch& a;
  Shared<d>& s;
  const int group, lane, row;  // row: the first of this lane in a tile
  const float scale;
  Turn<kPrefillStages> key_stage, value_stage;
  float out[d / 2];
  float score[64];
  uint32_t weights[32];
  float peak[2], mass[2], rescale[2];

  TK_DEVICE Rows(const PrefillLaunch& launch, Shared<d>& shared, int warpgroup)
      : a(launch),
        s(shared),
        group(warpgroup),
        lane(static_cast<int>(threadIdx.x) % kWarp),
        row(warpgroup * 64 + static_cast<int>(threadIdx.x) % kGroupThreads / kWarp * 16 + lane / 4),
        scale(launch.scale * kLog2E) {}

  // One lane of a warp says that the warp is done with a place.
  TK_DEVICE void release(const uint64_t& barrier) const {
    if (lane == 0) arrive(barrier);
  }

  TK_DEVICE void multiply_keys(uint64_t queries) {
    const uint64_t keys =
        tile_descriptor(shared_address(s.keys[key_stage.place]), kRowStep, 0);
    pin(score);
    products_begin();
#pragma unroll
    for (int k = 0; k < d / 16; ++k) {
      constexpr int kAtom = 1024 >> 4, kStep = 32 >> 4;  // of descriptors
      const int at = k / 4 * kAtom + k % 4 * kStep;
      product_128<half>(score, queries + at, keys + at, k != 0);
    }
    products_commit();
    pin(score);
  }
  TK_DEVICE void multiply_values() {
    const uint64_t values =
        tile_descriptor(shared_address(s.values[value_stage.place]), kRowStep, 1024);
    pin(out);
    pin(weights);
    products_begin();
#pragma unroll
    for (int k = 0; k < kPrefillKeys / 16; ++k)
      product_of_registers<half>(out, weights + 4 * k, values + k * (2 * kRowStep >> 4));
    products_commit();
    pin(out);
  }

  // Hides keys that a row does not see; `first`: the position of the first key of the tile.
  TK_DEVICE void hide(int first, const Item& item) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int seen = item.slot + min(row + 8 * i, item.rows - 1) - first - lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < 16; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j)
          if (n * 8 + j > seen) score[4 * n + 2 * i + j] = -INFINITY;
    }
  }
  // Scores become weights.
  TK_DEVICE void weigh() {
    constexpr int kChains = 4;  // of maxima and sums, which do not wait for each other
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top[kChains];
#pragma unroll
      for (int n = 0; n < 16; ++n) {
        const float pair = fmaxf(score[4 * n + 2 * i], score[4 * n + 2 * i + 1]);
        top[n % kChains] = n < kChains ? pair : fmaxf(top[n % kChains], pair);
      }
      float best = fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3]));
      best = fmaxf(peak[i], best);
      best = fmaxf(best, lane_xor(best, 1));
      best = fmaxf(best, lane_xor(best, 2));
      const float base = best == -INFINITY ? 0.0f : best * scale;  // nothing seen yet
      rescale[i] = fast_exp2(fmaf(peak[i], scale, -base));
      peak[i] = best;
      float sum[kChains];
#pragma unroll
      for (int n = 0; n < 16; ++n) {
        float& x = score[4 * n + 2 * i];
        float& y = score[4 * n + 2 * i + 1];
        x = fast_exp2(fmaf(x, scale, -base));
        y = fast_exp2(fmaf(y, scale, -base));
        sum[n % kChains] = n < kChains ? x + y : sum[n % kChains] + (x + y);
      }
      mass[i] = fmaf(mass[i], rescale[i], (sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
  }
  TK_DEVICE void keep_weights() {
#pragma unroll
    for (int i = 0; i < 32; ++i)
      weights[i] = half ? half_pair(score[2 * i], score[2 * i + 1])
                        : brain_pair(score[2 * i], score[2 * i + 1]);
  }
  TK_DEVICE void rescale_out() {
#pragma unroll
    for (int n = 0; n < d / 2; ++n) out[n] *= rescale[n / 2 % 2];
  }

  // The memory after the last key may hold anything. Scores there are hidden, values are set to
  // zero: zero times infinity would be NaN. Both warpgroups do it, and neither waits for the other.
  TK_DEVICE void clear_tail(int keys) {
    wait(s.value_full[value_stage.place], value_stage.phase);
    uint8_t* tile = s.values[value_stage.place];
    const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
    for (int i = thread; i < (kPrefillKeys - keys) * (d / 8); i += kGroupThreads) {
      const int key = keys + i / (d / 8), chunk = i % (d / 8);
      *reinterpret_cast<Words4*>(tile + (key / 8 * (d / 64) + chunk / 8) * 1024 + key % 8 * 128 +
                                 chunk % 8 * 16) = {};
    }
    show_to_engines();
    sync_threads(kGroupBarrier + group, kGroupThreads);
  }

  // Scores of one more tile while the values of the tile before are added.
  template <bool hidden>
  TK_DEVICE void step(uint64_t queries, int tile, const Item& item) {
    sync_threads(kTurnBarrier + group, 2 * kGroupThreads);
    multiply_keys(queries);
    wait(s.value_full[value_stage.place], value_stage.phase);
    multiply_values();
    arrive_threads(kTurnBarrier + 1 - group, 2 * kGroupThreads);
    products_wait<1>();
    pin(score);
    release(s.key_empty[key_stage.place]);
    key_stage.next();
    if constexpr (hidden) hide(tile * kPrefillKeys, item);
    weigh();
    pin(score);
    // Also keeps the compiler from waiting for the products before the weights are computed.
    if (tile > 0) wait(s.key_full[key_stage.place], key_stage.phase);
    products_wait<0>();
    pin(out);
    release(s.value_empty[value_stage.place]);
    value_stage.next();
    keep_weights();
    rescale_out();
  }

  TK_DEVICE void run(const Item& item, const uint8_t* query_tile, const uint64_t& query_empty) {
    const uint64_t queries = tile_descriptor(shared_address(query_tile) + group * 8 * kRowStep, kRowStep, 0);
#pragma unroll
    for (float& x : out) x = 0;
    peak[0] = peak[1] = -INFINITY;
    mass[0] = mass[1] = 0;
    int tile = item.tiles - 1;
    wait(s.key_full[key_stage.place], key_stage.phase);
    multiply_keys(queries);
    products_wait<0>();
    pin(score);
    release(s.key_empty[key_stage.place]);
    key_stage.next();
    hide(tile * kPrefillKeys, item);
    weigh();
    keep_weights();
    if (tile > 0) wait(s.key_full[key_stage.place], key_stage.phase);
    if (item.length < item.tiles * kPrefillKeys) clear_tail(item.length - tile * kPrefillKeys);
    // The first row of the warpgroup sees all keys of the tiles before this one.
    const int whole = (item.slot + min(group * 64, item.rows - 1) + 1) / kPrefillKeys;
#pragma unroll 1
    for (--tile; tile >= whole; --tile) step<true>(queries, tile, item);
#pragma unroll 1
    for (; tile >= 0; --tile) step<false>(queries, tile, item);
    release(query_empty);
    wait(s.value_full[value_stage.place], value_stage.phase);
    multiply_values();
    products_wait<0>();
    pin(out);
    release(s.value_empty[value_stage.place]);
    value_stage.next();
    store_rows(item);
  }

  // The lanes of four neighbours exchange values, so that each stores 16 bytes.
  TK_DEVICE void store_words(uint32_t (&w)[4], bool exists, uint16_t* to) const {
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i & bit) continue;
        const bool upper = lane & bit;
        const uint32_t other = lane_xor(upper ? w[i] : w[i | bit], bit);
        (upper ? w[i] : w[i | bit]) = other;
      }
    if (exists) *reinterpret_cast<Words4*>(to + lane % 4 * 8) = {w[0], w[1], w[2], w[3]};
  }
  TK_DEVICE void store_rows(const Item& item) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float total = mass[i];
      total += lane_xor(total, 1);
      total += lane_xor(total, 2);
      const float share = 1.0f / total;
      const bool exists = row + 8 * i < item.rows;
      const int64_t at = ((int64_t{item.first} + row + 8 * i) * a.heads + item.head) * d;
#pragma unroll
      for (int n = 0; n < d / 8; n += 4) {
        uint32_t w[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float x = out[4 * (n + j) + 2 * i] * share, y = out[4 * (n + j) + 2 * i + 1] * share;
          w[j] = a.ty == DType::kF16 ? half_pair(x, y) : brain_pair(x, y);
          if (a.ty == DType::kF32 && exists)
            *reinterpret_cast<float2*>(static_cast<float*>(a.y) + at + (n + j) * 8 + lane % 4 * 2) =
                {x, y};
        }
        if (a.ty != DType::kF32) store_words(w, exists, static_cast<uint16_t*>(a.y) + at + n * 8);
      }
    }
  }
};

template <int d, bool half>
TK_DEVICE void attend(const PrefillLaunch& a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& s = *reinterpret_cast<Shared<d>*>(memory);
  constexpr int kConsumerWarps = 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kPrefillStages; ++i) {
      barrier_init(shared_address(&s.key_full[i]), 1);
      barrier_init(shared_address(&s.value_full[i]), 1);
      barrier_init(shared_address(&s.key_empty[i]), kConsumerWarps);
      barrier_init(shared_address(&s.value_empty[i]), kConsumerWarps);
    }
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&s.item_full[i]), 1);
      barrier_init(shared_address(&s.query_full[i]), kLoaders);
      barrier_init(shared_address(&s.query_empty[i]), kConsumerWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  sync_block();
  wait_for_earlier();
  const int part = lane_from(static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  if (part == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kProducerRegisters));
    if (threadIdx.x < kWarp)
      bring_keys<d>(a, s);
    else
      bring_queries<d, half>(a, s, static_cast<int>(threadIdx.x) - kWarp);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kConsumerRegisters));
    Rows<d, half> rows(a, s, part - 1);
    if (part == 2) arrive_threads(kTurnBarrier, 2 * kGroupThreads);  // the first turn is the other's
#pragma unroll 1
    for (Turn<2> turn;; turn.next()) {
      wait(s.query_full[turn.place], turn.phase);
      const Item item = s.items[turn.place];
      if (item.tiles == 0) break;
      rows.run(item, s.queries[turn.place], s.query_empty[turn.place]);
    }
  }
}

}  // namespace

#define TK_PREFILL(d, type, half)                                                            \
  extern "C" __global__ void __launch_bounds__(kPrefillThreads, 1)                           \
      prefill_attention_##d##_##type(const __grid_constant__ PrefillLaunch a) {              \
    attend<d, half>(a);                                                                      \
  }
TK_PREFILL(64, f16, true)
TK_PREFILL(64, bf16, false)
TK_PREFILL(128, f16, true)
TK_PREFILL(128, bf16, false)

}  // namespace tokamak::cuda
