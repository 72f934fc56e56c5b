// Split-KV paged attention for decode batches (decode_attention.h).
// Hopper only: bulk copies and their barriers.
#include "backend/cuda/decode_attention.h"

#include "backend/cuda/attend_tile.cuh"
#include "backend/cuda/cache_copy.cuh"
#include "backend/cuda/ring.cuh"

namespace tokamak::cuda {
namespace {

constexpr int kHeadCost = 8;
static_assert(kTilePositions == kAttentionPositions);
constexpr unsigned long long kTimeoutNs = 1'000'000'000;  // a bug must not hang the device

// The groups of kTilePositions of a batch are numbered by sequence, head, position. Places of one
// head of a sequence: its groups, after kHeadCost empty places that stand for the time it takes to
// begin and end a head.
__device__ int places_of_head(int length) {
  const int groups = (length + kTilePositions - 1) / kTilePositions;
  return groups > 0 ? groups + kHeadCost : 0;
}
__device__ int64_t first_place(int64_t places, int64_t block, int blocks) {
  return places * block / blocks;
}

// By one warp: each sequence's first place; then their number.
__device__ void number_places(const AttentionTable& t, int64_t* first) {
  const int lane = threadIdx.x % 32;
  int64_t total = 0;
#pragma unroll 1
  for (int start = 0; start < t.batch; start += 32) {
    const int b = start + lane;
    const int64_t own = b < t.batch ? int64_t{places_of_head(t.lengths[b])} * t.kv_heads : 0;
    int64_t sum = own;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int64_t below = __shfl_up_sync(kAllLanes, sum, d);
      if (lane >= d) sum += below;
    }
    if (b < t.batch) first[b] = total + sum - own;
    total += __shfl_sync(kAllLanes, sum, 31);
  }
  if (lane == 0) first[t.batch] = total;
}

__device__ AttentionShare share_of(const AttentionTable& t, const int64_t* first, int block) {
  const int64_t at = first_place(first[t.batch], block, t.blocks);
  const int64_t end = first_place(first[t.batch], block + 1, t.blocks);
  if (at == end) return {};
  int low = 0, high = t.batch - 1;  // the last sequence that begins at `at` or before
#pragma unroll 1
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (first[middle] <= at)
      low = middle;
    else
      high = middle - 1;
  }
  AttentionShare out;
  out.sequence = low;
  out.length = t.lengths[low];
  out.of = places_of_head(out.length);
  const int inside = static_cast<int>(at - first[low]);
  out.head = inside / out.of;
  out.place = inside % out.of;
  out.places = static_cast<int32_t>(end - at);
  return out;
}

// Consecutive places of one head of one sequence that one block works on.
struct Segment {
  int sequence = 0, head = 0, length = 0;
  int places = 0, of = 0;    // of: places of the whole head
  int group = 0, count = 0;  // groups; count may be 0
};

// The segments of a block, in order.
class Segments {
 public:
  __device__ Segments(const AttentionLaunch& l, const AttentionShare& share)
      : l_(l), place_(share.place), left_(share.places) {
    now_.sequence = share.sequence;
    now_.head = share.head;
    now_.length = share.length;
    now_.of = share.of;
  }
  // One without places is after the last.
  __device__ Segment next() {
    if (left_ > 0 && place_ == now_.of) {
      place_ = 0;
      if (++now_.head == l_.kv_heads) next_sequence();
    }
    now_.places = min(now_.of - place_, left_);
    now_.group = max(place_ - kHeadCost, 0);
    now_.count = max(place_ + now_.places - kHeadCost, 0) - now_.group;
    place_ += now_.places;
    left_ -= now_.places;
    return now_;
  }

 private:
  __device__ void next_sequence() {
    now_.head = 0;
    do {
      now_.length = l_.lengths[++now_.sequence];
      now_.of = places_of_head(now_.length);
    } while (now_.of == 0);
  }
  const AttentionLaunch& l_;
  Segment now_;
  int place_, left_;
};

template <int kHead_>
struct AttentionConfig : RingConfig<kAttentionWarps, kAttentionSlots, kTilePositions * kHead_ * 4,
                                    kAttentionProducers> {
  static constexpr int kHead = kHead_;
  // Rows in shared memory, a few elements longer than a head: no bank conflicts.
  static constexpr int kQueryRow = kHead + 8, kSumRow = kHead + 4;
};

template <class C>
struct alignas(1024) AttentionShared {
  RingStorage<C> ring;
  alignas(16) uint16_t queries[kMaxGroup][C::kQueryRow];  // of the cache's type
  float peak[kMaxGroup][C::kWarps], mass[kMaxGroup][C::kWarps];
  float sums[C::kWarps][kMaxGroup][C::kSumRow];
  bool last;  // of the blocks that share a head
};
static_assert(sizeof(AttentionShared<AttentionConfig<64>>) == attention_shared_bytes(64));
static_assert(sizeof(AttentionShared<AttentionConfig<128>>) == attention_shared_bytes(128));

template <class C>
__device__ void produce(const AttentionLaunch& l, AttentionShared<C>& shared, Segments segments) {
  constexpr uint32_t kBytes = kTilePositions * C::kHead * 2;
  RingProducer<C> ring(shared.ring, threadIdx.x / 32 - C::kWarps, l.in_flight);
  const int consumer = ring.consumer();
  auto position = [&](const Segment& s, int done) {
    return (s.group + done + consumer) * kTilePositions;
  };
  auto has_work = [&](const Segment& s, int done) {
    return consumer < C::kWarps && done + consumer < s.count;
  };
  auto page_at = [&](const Segment& s, int done) {
    const int32_t* pages = l.pages + static_cast<int64_t>(s.sequence) * l.page_stride;
    return has_work(s, done) ? __ldg(pages + position(s, done) / l.page_size) : 0;
  };
  // Pages are asked for one tile and one segment ahead: copies must not wait for their numbers.
  Segment next = segments.next();
  int next_page = page_at(next, 0);
  bool waited = false;
#pragma unroll 1
  while (next.places > 0) {
    const Segment segment = next;
    int page = next_page;
    // Only a sequence's newest position is written by the launch before.
    const int newest = (segment.length - 1) / kTilePositions - segment.group;
#pragma unroll 1
    for (int done = 0; done < segment.count; done += C::kWarps) {
      const bool has = has_work(segment, done);
      const int from = ((page * l.kv_heads + segment.head) * l.page_size +
                        position(segment, done) % l.page_size) /
                       8;
      page = page_at(segment, done + C::kWarps);
      if (!waited && done + C::kWarps > newest) {
        wait_for_earlier();
        waited = true;
      }
      ring.tile(has, 2 * kBytes, [&](uint32_t to, uint32_t barrier) {
        copy_cached(to, l.keys, from, barrier);
        copy_cached(to + kBytes, l.values, from, barrier);
      });
      if (done > 0) continue;
      next = segments.next();
      next_page = page_at(next, 0);
    }
    if (segment.count > 0) continue;
    next = segments.next();
    next_page = page_at(next, 0);
  }
  ring.drain();
}

template <class C>
class AttentionConsumer {
 public:
  __device__ AttentionConsumer(const AttentionLaunch& l, AttentionShared<C>& shared)
      : l_(l),
        shared_(shared),
        warp_(threadIdx.x / 32),
        lane_(threadIdx.x % 32),
        group_(l.heads / l.kv_heads),
        ring_(shared.ring, warp_, now_ns() + kTimeoutNs) {}

  __device__ void run(Segments segments) {
    Segment segment = segments.next();
    const bool empty = blockIdx.x < l_.batch && l_.lengths[blockIdx.x] == 0;
    wait_for_earlier();
    if (segment.places > 0) ask(segment);
    if (empty) clear(blockIdx.x);
#pragma unroll 1
    for (int b = blockIdx.x + l_.blocks; b < l_.batch; b += l_.blocks)
      if (l_.lengths[b] == 0) clear(b);
#pragma unroll 1
    while (segment.places > 0) {
      const Segment now = segment;
      if (now.count > 0) put_queries();
      segment = segments.next();
      if (segment.places > 0) ask(segment);
      if (now.count > 0) {
        sync_consumers<C>();
        l_.cache_f16 ? attend<true>(now) : attend<false>(now);
        sync_consumers<C>();
#pragma unroll 1
        for (int i = threadIdx.x; i < group_ * C::kHead / 2; i += C::kConsumers) write(now, i);
      } else if (threadIdx.x < group_) {
        partial(now, blockIdx.x, threadIdx.x)[C::kHead] = -INFINITY;
      }
      if (now.places < now.of && is_last(now)) join(now);
    }
  }

 private:
  __device__ int64_t pair(const Segment& s) const {
    return static_cast<int64_t>(s.sequence) * l_.kv_heads + s.head;
  }
  __device__ float* partial(const Segment& s, int64_t block, int h) const {
    return l_.partials + ((pair(s) + block) * group_ + h) * attention_partial_row(C::kHead);
  }
  __device__ Bf16* output(int64_t pair, int h) const {
    return static_cast<Bf16*>(l_.output) + (pair * group_ + h) * C::kHead;
  }
  // The result of a sequence without positions: no block has a share of it.
  __device__ void clear(int sequence) const {
    auto* to = reinterpret_cast<uint4*>(output(static_cast<int64_t>(sequence) * l_.kv_heads, 0));
#pragma unroll 1
    for (int i = threadIdx.x; i < l_.heads * C::kHead / 8; i += C::kConsumers)
      to[i] = make_uint4(0, 0, 0, 0);
  }
  // The queries of the next segment: they arrive while the one before is worked on.
  __device__ void ask(const Segment& s) {
    static_assert(kMaxGroup * C::kHead / 8 <= C::kConsumers);
    const auto* from = reinterpret_cast<const uint4*>(
        static_cast<const Bf16*>(l_.queries) +
        (static_cast<int64_t>(s.sequence) * l_.heads + s.head * group_) * C::kHead);
    if (threadIdx.x < group_ * C::kHead / 8) asked_ = from[threadIdx.x];
  }
  __device__ void put_queries() {
    if (threadIdx.x >= group_ * C::kHead / 8) return;
    uint4 v = asked_;
    if (l_.cache_f16) v = make_uint4(to_half(v.x), to_half(v.y), to_half(v.z), to_half(v.w));
    constexpr int kChunks = C::kHead / 8;
    *reinterpret_cast<uint4*>(&shared_.queries[threadIdx.x / kChunks][threadIdx.x % kChunks * 8]) =
        v;
  }
  __device__ static uint32_t to_half(uint32_t two) {
    const float2 v = unpack2(two);
    return round16(v.x, true) | static_cast<uint32_t>(round16(v.y, true)) << 16;
  }
  template <bool kHalf>
  __device__ void attend(const Segment& s) {
    AttendTiles<C::kHead, kHalf> tiles(shared_.queries[0], C::kQueryRow, group_, l_.scale);
#pragma unroll 1
    for (int done = 0; done < s.count; done += C::kWarps) {
      if (done + warp_ < s.count) {
        const uint32_t keys = shared_address(ring_.wait());
        int valid = s.length - (s.group + done + warp_) * kTilePositions;
        tiles.add(keys, keys + kTilePositions * C::kHead * 2, min(valid, kTilePositions));
        ring_.release();
      } else {
        ring_.skip();
      }
    }
    if (lane_ % 4 == 0) {
      shared_.peak[lane_ / 4][warp_] = tiles.peak();
      shared_.mass[lane_ / 4][warp_] = tiles.mass();
    }
    if (tiles.any()) tiles.store_sums(shared_.sums[warp_][0], C::kSumRow, group_);
  }
  // Two elements of the result, or of a part of it, from all warps.
  __device__ void write(const Segment& s, int i) {
    const int h = i / (C::kHead / 2), d = i % (C::kHead / 2) * 2;
    float peak = -INFINITY, mass = 0, total[2] = {};
#pragma unroll
    for (int w = 0; w < C::kWarps; ++w) peak = fmaxf(peak, shared_.peak[h][w]);
#pragma unroll
    for (int w = 0; w < C::kWarps; ++w) {
      if (shared_.mass[h][w] == 0) continue;
      const float weight = exp2f(shared_.peak[h][w] - peak);
      const float2 sum = *reinterpret_cast<const float2*>(&shared_.sums[w][h][d]);
      mass = fmaf(weight, shared_.mass[h][w], mass);
      total[0] = fmaf(weight, sum.x, total[0]);
      total[1] = fmaf(weight, sum.y, total[1]);
    }
    if (shared_.ring.is_dead()) mass = NAN;  // a timeout must not pass unseen
    const float2 v = make_float2(total[0] / mass, total[1] / mass);
    if (s.places == s.of) {
      *reinterpret_cast<uint32_t*>(output(pair(s), h) + d) = pack2(v.x, v.y);
      return;
    }
    float* to = partial(s, blockIdx.x, h);
    *reinterpret_cast<float2*>(to + d) = v;
    if (d == 0) to[C::kHead] = peak + log2f(mass);
  }
  // After the part of a head is written: whether all others are.
  __device__ bool is_last(const Segment& s) {
    __threadfence();
    sync_consumers<C>();
    if (threadIdx.x == 0) {
      uint32_t* done = l_.done + pair(s);
      const uint32_t places = static_cast<uint32_t>(s.places);
      shared_.last = atomicAdd(done, places) + places == static_cast<uint32_t>(s.of);
      if (shared_.last) *done = 0;
      __threadfence();
    }
    sync_consumers<C>();
    return shared_.last;
  }
  // The parts of all blocks, in their order.
  __device__ void join(const Segment& s) {
    const int64_t begin = l_.first[s.sequence] + static_cast<int64_t>(s.head) * s.of;
    const int64_t places = l_.first[l_.batch];
    auto block_of = [&](int64_t place) { return ((place + 1) * l_.blocks - 1) / places; };
    const int64_t first = block_of(begin), last = block_of(begin + s.of - 1);
    const bool sparse = places < l_.blocks;  // some blocks have no places
    constexpr int kAtOnce = 4;               // parts that are asked for together
    constexpr int kQuads = C::kHead / 4;
#pragma unroll 1
    for (int i = threadIdx.x; i < group_ * kQuads; i += C::kConsumers) {
      const int h = i / kQuads, d = i % kQuads * 4;
      float peak = -INFINITY, mass = 0, sum[4] = {};
#pragma unroll 1
      for (int64_t c = first; c <= last; c += kAtOnce) {
        float log_mass[kAtOnce];
        float4 value[kAtOnce];
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const float* part = partial(s, c + k, h);
          const bool has = c + k <= last && !(sparse && l_.shares[c + k].places == 0);
          log_mass[k] = has ? __ldcg(part + C::kHead) : -INFINITY;
          value[k] =
              has ? __ldcg(reinterpret_cast<const float4*>(part + d)) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          if (log_mass[k] == -INFINITY) continue;  // no part, or one of empty places only
          const float top = fmaxf(peak, log_mass[k]), old = exp2f(peak - top);
          const float weight = exp2f(log_mass[k] - top);
          const float v[4] = {value[k].x, value[k].y, value[k].z, value[k].w};
          mass = mass * old + weight;
#pragma unroll
          for (int j = 0; j < 4; ++j) sum[j] = sum[j] * old + weight * v[j];
          peak = top;
        }
      }
      const float factor = 1 / mass;
      *reinterpret_cast<uint2*>(output(pair(s), h) + d) = make_uint2(
          pack2(sum[0] * factor, sum[1] * factor), pack2(sum[2] * factor, sum[3] * factor));
    }
  }

  const AttentionLaunch& l_;
  AttentionShared<C>& shared_;
  int warp_, lane_, group_;
  uint4 asked_;
  RingConsumer<C> ring_;
};

template <class C>
__device__ void decode_attention(const AttentionLaunch& l) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<AttentionShared<C>*>(memory);
  allow_next();
  // Made before any launch that this one may overlap with.
  const AttentionShare share = l.shares[blockIdx.x];
  if (threadIdx.x == 0) shared.ring.init();
  if (threadIdx.x == C::kConsumers) {
    prefetch_map(&l.keys);
    prefetch_map(&l.values);
  }
  __syncthreads();
  if (threadIdx.x >= C::kConsumers)
    produce<C>(l, shared, Segments(l, share));
  else
    AttentionConsumer<C>(l, shared).run(Segments(l, share));
}

}  // namespace
}  // namespace tokamak::cuda

// decode_attention_<head size>
#define TK_DECODE_ATTENTION(head)                                                              \
  extern "C" __global__ void __launch_bounds__(tokamak::cuda::kAttentionThreads,               \
                                               tokamak::cuda::kAttentionResident)              \
      decode_attention_##head(const __grid_constant__ tokamak::cuda::AttentionLaunch launch) { \
    tokamak::cuda::decode_attention<tokamak::cuda::AttentionConfig<head>>(launch);             \
  }

TK_DECODE_ATTENTION(128)
TK_DECODE_ATTENTION(64)

extern "C" __global__ void __launch_bounds__(tokamak::cuda::kAttentionTableThreads)
    decode_attention_table(const __grid_constant__ tokamak::cuda::AttentionTable t) {
  __shared__ int64_t first[tokamak::cuda::kAttentionMaxBatch + 1];
  if (threadIdx.x < 32) tokamak::cuda::number_places(t, first);
  __syncthreads();
  for (int b = threadIdx.x; b <= t.batch; b += blockDim.x) t.first[b] = first[b];
  for (int block = threadIdx.x; block < t.blocks; block += blockDim.x)
    t.shares[block] = tokamak::cuda::share_of(t, first, block);
}
