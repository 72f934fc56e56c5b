// Attention of many rows of a sequence over the paged cache, on Hopper's tensor cores. A block
// takes tiles of 128 rows of one head until none is left. One warp copies keys and values to shared
// memory, three bring the queries of the next tile, and two warpgroups compute 64 rows each. Scores
// of the next keys and the product with the values run while the weights are computed. Keys and
// values are 16-bit; scores and sums are f32, weights are rounded to the cache's type. Tiles of
// keys begin at absolute positions, so a row has the same bits however a prompt is cut.
//
// Hopper only: products of warpgroups, copies of tensors.
#include "backend/cuda/prefill_load.cuh"
#include "backend/cuda/wgmma.cuh"

namespace tokamak::cuda {
namespace prefill {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;

template <int d, bool half>
struct Rows {
  static constexpr uint32_t kRowStep = d / 64 * 1024;  // bytes from 8 rows of a tile to the next 8
  const PrefillLaunch& a;
  Shared<d>& s;
  const int group, lane, row;  // row: the first of this lane in a tile
  const float scale;
  TileTurn next_keys;
  float out[d / 2];
  float score[64];
  uint32_t weights[32];
  float peak[2], mass[2], rescale[2];
  float done[2];  // masses of the item before

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

  TK_DEVICE void wait_tile(const TileTurn& t) const { wait(s.full[t.place], t.phase); }
  TK_DEVICE uint32_t tile_at(const TileTurn& t) const { return shared_address(s.tiles[t.place]); }

  TK_DEVICE void multiply_keys(const TileTurn& at, uint32_t queries) {
    const uint32_t keys = tile_start(tile_at(at));
    pin(score);
    products_begin();
#pragma unroll
    for (int k = 0; k < d / 16; ++k) {
      const int step = (k / 4 * 1024 + k % 4 * 32) >> 4;
      product_128<half>(score, tile_descriptor(queries + step, kRowStep),
                        tile_descriptor(keys + step, kRowStep), k != 0);
    }
    products_commit();
    pin(score);
  }
  TK_DEVICE void multiply_values(const TileTurn& at) {
    const uint32_t values = tile_start(tile_at(at), 1024);
    pin(out);
    pin(weights);
    products_begin();
#pragma unroll
    for (int k = 0; k < kPrefillKeys / 16; ++k)
      product_of_registers<half>(out, weights + 4 * k,
                                 tile_descriptor(values + (k * 2 * kRowStep >> 4), kRowStep));
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
  // zero: zero times infinity would be NaN. Both warpgroups share the work.
  TK_DEVICE void clear_tail(int keys) {
    const TileTurn at = next_keys.next();
    wait_tile(at);
    uint8_t* tile = s.tiles[at.place];
    const int thread = static_cast<int>(threadIdx.x) - kGroupThreads;
    for (int i = thread; i < (kPrefillKeys - keys) * (d / 8); i += 2 * kGroupThreads) {
      const int key = keys + i / (d / 8), chunk = i % (d / 8);
      *reinterpret_cast<Words4*>(tile + (key / 8 * (d / 64) + chunk / 8) * 1024 + key % 8 * 128 +
                                 chunk % 8 * 16) = {};
    }
    show_to_engines();
    sync_threads(kTailBarrier, 2 * kGroupThreads);
  }

  // Scores of a tile, while the values of the tile before are added. begins: the tile is the first
  // of `item`, and those values are the last of the item before. hidden: rows do not see all its
  // keys.
  template <bool begins, bool hidden>
  TK_DEVICE void step(uint32_t queries, int tile, const Item& item) {
    // lane_from: so that the compiler knows that the lanes agree.
    const TileTurn keys{lane_from(next_keys.place, 0), lane_from(next_keys.phase, 0)};
    const TileTurn values = keys.next();
    next_keys = values.next();
    sync_threads(kTurnBarrier + group, 2 * kGroupThreads);
    multiply_keys(keys, queries);
    wait_tile(values);
    multiply_values(values);
    arrive_threads(kTurnBarrier + 1 - group, 2 * kGroupThreads);
    products_wait<1>();
    pin(score);
    release(s.empty[keys.place]);
    if constexpr (begins) begin();
    if constexpr (hidden) hide(tile * kPrefillKeys, item);
    weigh();
    pin(score);
    // Also keeps the compiler from waiting for the products before the weights are computed.
    if (tile > 0) wait_tile(next_keys);
    products_wait<0>();
    pin(out);
    release(s.empty[values.place]);
    keep_weights();
    if constexpr (!begins) rescale_out();
  }
  TK_DEVICE void begin() {
    done[0] = mass[0];
    done[1] = mass[1];
    peak[0] = peak[1] = -INFINITY;
    mass[0] = mass[1] = 0;
  }

  TK_DEVICE uint32_t queries_at(int place) const {
    return tile_start(shared_address(s.queries[place]) + group * 8 * kRowStep);
  }
  TK_DEVICE Item next_item(const Turn<2>& turn) const {
    wait(s.query_full[turn.place], turn.phase);
    return s.items[turn.place];
  }
  // The tiles of an item after its first one.
  TK_DEVICE void finish_tiles(uint32_t queries, const Item& item) {
    int tile = item.tiles - 1;
    if (item.length < item.tiles * kPrefillKeys) clear_tail(item.length - tile * kPrefillKeys);
    // The first row of the warpgroup sees all keys of the tiles before this one.
    const int whole = (item.slot + min(group * 64, item.rows - 1) + 1) / kPrefillKeys;
#pragma unroll 1
    for (--tile; tile >= whole; --tile) step<false, true>(queries, tile, item);
#pragma unroll 1
    for (; tile >= 0; --tile) step<false, false>(queries, tile, item);
  }
  TK_DEVICE void run() {
    wait_for_earlier();
    Turn<2> turn;
    Item item = next_item(turn);
    if (item.tiles == 0) return;
    begin();
    wait_tile({});
    multiply_keys({}, queries_at(0));
    products_wait<0>();
    pin(score);
    release(s.empty[0]);
    next_keys = TileTurn{}.next();
    hide((item.tiles - 1) * kPrefillKeys, item);
    weigh();
    keep_weights();
    if (item.tiles > 1) wait_tile(next_keys);
#pragma unroll
    for (float& x : out) x = 0;
#pragma unroll 1
    for (;;) {
      finish_tiles(lane_from(queries_at(turn.place), 0), item);
      sync_warp();  // all lanes have read the item
      release(s.query_empty[turn.place]);
      turn = turn.next();
      const Item following = next_item(turn);
      if (following.tiles == 0) break;
      wait_tile(next_keys);
      step<true, true>(lane_from(queries_at(turn.place), 0), following.tiles - 1, following);
      store_rows(item);
      item = following;
#pragma unroll
      for (float& x : out) x = 0;
    }
    const TileTurn values = next_keys.next();
    wait_tile(values);
    multiply_values(values);
    products_wait<0>();
    pin(out);
    done[0] = mass[0];
    done[1] = mass[1];
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
      float total = done[i];
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
          const float x = out[4 * (n + j) + 2 * i] * share,
                      y = out[4 * (n + j) + 2 * i + 1] * share;
          w[j] = a.ty == DType::kF16 ? half_pair(x, y) : brain_pair(x, y);
          if (a.ty == DType::kF32 && exists)
            *reinterpret_cast<float2*>(static_cast<float*>(a.y) + at + (n + j) * 8 +
                                       lane % 4 * 2) = {x, y};
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
  allow_next();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kPrefillPlaces; ++i) {
      barrier_init(shared_address(&s.full[i]), 1);
      barrier_init(shared_address(&s.empty[i]), kConsumerWarps);
    }
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&s.item_full[i]), 1);
      barrier_init(shared_address(&s.query_full[i]), kLoaders);
      barrier_init(shared_address(&s.query_empty[i]), kConsumerWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  sync_block();
  const int part = lane_from(static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  if (part == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kProducerRegisters));
    if (threadIdx.x < kWarp)
      TileLoader<d>{a, s}.run();
    else
      bring_queries<d, half>(a, s, static_cast<int>(threadIdx.x) - kWarp);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kConsumerRegisters));
    if (part == 2)
      arrive_threads(kTurnBarrier, 2 * kGroupThreads);  // the first turn is the other's
    Rows<d, half>(a, s, part - 1).run();
  }
}

}  // namespace
}  // namespace prefill

#define TK_PREFILL(d, type, half)                                               \
  extern "C" __global__ void __launch_bounds__(kPrefillThreads, 1)              \
      prefill_attention_##d##_##type(const __grid_constant__ PrefillLaunch a) { \
    prefill::attend<d, half>(a);                                                \
  }
TK_PREFILL(64, f16, true)
TK_PREFILL(64, bf16, false)
TK_PREFILL(128, f16, true)
TK_PREFILL(128, bf16, false)

}  // namespace tokamak::cuda
