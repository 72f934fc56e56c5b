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

// How the groups of kTilePositions of a batch are numbered: by sequence, head, position.
struct Numbering {
  int64_t first[kAttentionMaxBatch + 1];  // place of each sequence's first head; then the total

  // Places of one head of a sequence: its groups, after kHeadCost empty places that stand for the
  // time it takes to begin and end a head.
  __device__ static int places(const AttentionLaunch& l, int sequence) {
    int groups = (l.lengths[sequence] + kTilePositions - 1) / kTilePositions;
    return groups > 0 ? groups + kHeadCost : 0;
  }
  // By one warp: prefix sums.
  __device__ void make(const AttentionLaunch& l) {
    int lane = threadIdx.x % 32;
    int64_t total = 0;
#pragma unroll 1
    for (int start = 0; start < l.batch; start += 32) {
      int b = start + lane;
      int64_t own = b < l.batch ? static_cast<int64_t>(places(l, b)) * l.kv_heads : 0, sum = own;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        int64_t below = __shfl_up_sync(kAllLanes, sum, d);
        if (lane >= d) sum += below;
      }
      if (b < l.batch) first[b] = total + sum - own;
      total += __shfl_sync(kAllLanes, sum, 31);
    }
    if (lane == 0) first[l.batch] = total;
  }
  __device__ int64_t begin_of(const AttentionLaunch& l, int block) const {
    return first[l.batch] * block / l.blocks;
  }
};

// Consecutive places of one head of one sequence that one block works on.
struct Segment {
  int sequence = 0, head = 0, places = 0;
  int group = 0, count = 0;  // groups; count may be 0
  // Before the first find().
  __device__ void seek(const AttentionLaunch& l, const Numbering& n, int64_t at) {
    int high = l.batch - 1;
#pragma unroll 1
    while (sequence < high) {
      int middle = (sequence + high + 1) / 2;
      if (n.first[middle] <= at)
        sequence = middle;
      else
        high = middle - 1;
    }
  }
  // The segment at `at`, not beyond `end`. Sequences only go up.
  __device__ void find(const AttentionLaunch& l, const Numbering& n, int64_t at, int64_t end) {
#pragma unroll 1
    while (n.first[sequence + 1] <= at) ++sequence;
    int per_head = Numbering::places(l, sequence);
    int inside = static_cast<int>(at - n.first[sequence]), place = inside % per_head;
    head = inside / per_head;
    places = static_cast<int>(min(static_cast<int64_t>(per_head - place), end - at));
    group = max(place - kHeadCost, 0);
    count = max(place + places - kHeadCost, 0) - group;
  }
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
  Numbering numbering;
  alignas(16) uint16_t queries[kMaxGroup][C::kQueryRow];  // of the cache's type
  float peak[kMaxGroup][C::kWarps], mass[kMaxGroup][C::kWarps];
  float sums[C::kWarps][kMaxGroup][C::kSumRow];
};
static_assert(sizeof(AttentionShared<AttentionConfig<64>>) == attention_shared_bytes(64));
static_assert(sizeof(AttentionShared<AttentionConfig<128>>) == attention_shared_bytes(128));

template <class C>
__device__ void produce(const AttentionLaunch& l, AttentionShared<C>& shared, int64_t at,
                        int64_t end) {
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
  Segment next;
  next.seek(l, shared.numbering, at);
  if (at < end) next.find(l, shared.numbering, at, end);
  int next_page = page_at(next, 0);
  bool waited = false;
#pragma unroll 1
  while (at < end) {
    const Segment segment = next;
    int page = next_page;
    at += segment.places;
    if (at < end) {
      next.find(l, shared.numbering, at, end);
      next_page = page_at(next, 0);
    }
    // Only a sequence's newest position is written by the launch before.
    const int newest = (l.lengths[segment.sequence] - 1) / kTilePositions - segment.group;
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
    }
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

  __device__ void run(int64_t at, int64_t end) {
    Segment segment;
    segment.seek(l_, shared_.numbering, at);
    if (at < end) segment.find(l_, shared_.numbering, at, end);
    wait_for_earlier();
    if (at < end) ask(segment);
    auto next = [&] {
      if (at >= end) return;
      segment.find(l_, shared_.numbering, at, end);
      ask(segment);
    };
#pragma unroll 1
    while (at < end) {
      const Segment now = segment;
      at += now.places;
      if (now.count == 0) {
        if (threadIdx.x < group_) partial(now, threadIdx.x)[C::kHead] = -INFINITY;
        next();
        continue;
      }
      put_queries();
      next();
      sync_consumers<C>();
      l_.cache_f16 ? attend<true>(now) : attend<false>(now);
      sync_consumers<C>();
#pragma unroll 1
      for (int i = threadIdx.x; i < group_ * C::kHead; i += C::kConsumers) write(now, i);
    }
  }

 private:
  __device__ float* partial(const Segment& s, int h) const {
    int64_t row = static_cast<int64_t>(s.sequence) * l_.kv_heads + s.head + blockIdx.x;
    return l_.partials + (row * group_ + h) * attention_partial_row(C::kHead);
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
    int length = l_.lengths[s.sequence];
#pragma unroll 1
    for (int done = 0; done < s.count; done += C::kWarps) {
      if (done + warp_ < s.count) {
        const uint32_t keys = shared_address(ring_.wait());
        int valid = length - (s.group + done + warp_) * kTilePositions;
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
  // One element of the partial result, from all warps.
  __device__ void write(const Segment& s, int i) {
    int h = i / C::kHead, d = i % C::kHead;
    float peak = -INFINITY, mass = 0, total = 0;
#pragma unroll
    for (int w = 0; w < C::kWarps; ++w) peak = fmaxf(peak, shared_.peak[h][w]);
#pragma unroll
    for (int w = 0; w < C::kWarps; ++w) {
      if (shared_.mass[h][w] == 0) continue;
      float weight = exp2f(shared_.peak[h][w] - peak);
      mass = fmaf(weight, shared_.mass[h][w], mass);
      total = fmaf(weight, shared_.sums[w][h][d], total);
    }
    float* to = partial(s, h);
    to[d] = shared_.ring.is_dead() ? NAN : total / mass;  // a timeout must not pass unseen
    if (d == 0) to[C::kHead] = peak + log2f(mass);
  }

  const AttentionLaunch& l_;
  AttentionShared<C>& shared_;
  int warp_, lane_, group_;
  uint4 asked_;
  RingConsumer<C> ring_;
};

template <class C>
__device__ void attention_parts(const AttentionLaunch& l) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<AttentionShared<C>*>(memory);
  allow_next();
  if (threadIdx.x == 0) shared.ring.init();
  if (threadIdx.x / 32 == C::kWarps) shared.numbering.make(l);
  __syncthreads();
  int64_t at = shared.numbering.begin_of(l, blockIdx.x);
  int64_t end = shared.numbering.begin_of(l, blockIdx.x + 1);
  if (threadIdx.x / 32 >= C::kWarps)
    produce<C>(l, shared, at, end);
  else
    AttentionConsumer<C>(l, shared).run(at, end);
}

// Places of the batch and of one sequence in it, numbered like Numbering. Made by one warp.
struct SequencePlaces {
  int64_t begin = 0, each = 0, total = 0;  // each: of a head
  __device__ SequencePlaces(const AttentionLaunch& l, int sequence) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int b = lane; b < l.batch; b += 32) {
      const int64_t own = static_cast<int64_t>(Numbering::places(l, b)) * l.kv_heads;
      total += own;
      if (b < sequence) begin += own;
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
      begin += __shfl_xor_sync(kAllLanes, begin, d);
      total += __shfl_xor_sync(kAllLanes, total, d);
    }
    each = Numbering::places(l, sequence);
  }
};

__device__ int64_t begin_of(const AttentionLaunch& l, int64_t places, int64_t block) {
  return places * block / l.blocks;
}

// The blocks that worked on a (sequence, kv head) pair. Found by one warp.
struct JoinedBlocks {
  int first, last;
  int64_t places;  // of the batch
  __device__ static JoinedBlocks find(const AttentionLaunch& l, int pair) {
    const SequencePlaces of(l, pair / l.kv_heads);
    const int64_t begin = of.begin + pair % l.kv_heads * of.each, end = begin + of.each;
    const int64_t total = max(of.total, static_cast<int64_t>(1));
    int c = static_cast<int>(begin * l.blocks / total);
    while (c > 0 && begin_of(l, of.total, c) > begin) --c;
    while (begin_of(l, of.total, c + 1) <= begin && c + 1 < l.blocks) ++c;
    const int from = c;
    c = min(static_cast<int>(end * l.blocks / total), l.blocks - 1);
    while (c > from && begin_of(l, of.total, c) >= end) --c;
    while (c + 1 < l.blocks && begin_of(l, of.total, c + 1) < end) ++c;
    return {from, of.each > 0 ? c : from - 1, of.total};
  }
};

// One block per (sequence, kv head): the parts of all blocks that worked on it.
template <int kHead>
__device__ void attention_join(const AttentionLaunch& l) {
  __shared__ JoinedBlocks found;
  const int pair = blockIdx.x, group = l.heads / l.kv_heads;
  allow_next();
  if (threadIdx.x / 32 == 0) {
    const JoinedBlocks blocks = JoinedBlocks::find(l, pair);
    if (threadIdx.x == 0) found = blocks;
  }
  wait_for_earlier();
  __syncthreads();
  const auto [first, last, places] = found;
  const bool sparse = places < l.blocks;  // some blocks have no places
  constexpr int kAtOnce = 4;              // parts that are asked for together
  constexpr int kQuads = kHead / 4;
#pragma unroll 1
  for (int i = threadIdx.x; i < group * kQuads; i += blockDim.x) {
    const int h = i / kQuads, d = i % kQuads * 4;
    float peak = -INFINITY, mass = 0, sum[4] = {};
#pragma unroll 1
    for (int64_t c = first; c <= last; c += kAtOnce) {
      float log_mass[kAtOnce];
      float4 value[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const float* part =
            l.partials + ((pair + c + k) * group + h) * attention_partial_row(kHead);
        const bool has = c + k <= last &&
                         !(sparse && begin_of(l, places, c + k + 1) == begin_of(l, places, c + k));
        log_mass[k] = has ? part[kHead] : -INFINITY;
        value[k] = has ? *reinterpret_cast<const float4*>(part + d) : make_float4(0, 0, 0, 0);
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
    const float factor = mass > 0 ? 1 / mass : 0;
    *reinterpret_cast<uint2*>(static_cast<Bf16*>(l.output) +
                              (static_cast<int64_t>(pair) * group + h) * kHead + d) =
        make_uint2(pack2(sum[0] * factor, sum[1] * factor),
                   pack2(sum[2] * factor, sum[3] * factor));
  }
}

}  // namespace
}  // namespace tokamak::cuda

// decode_attention_<head size>
#define TK_DECODE_ATTENTION(head)                                                              \
  extern "C" __global__ void __launch_bounds__(tokamak::cuda::kAttentionThreads,               \
                                               tokamak::cuda::kAttentionResident)              \
      decode_attention_##head(const __grid_constant__ tokamak::cuda::AttentionLaunch launch) { \
    tokamak::cuda::attention_parts<tokamak::cuda::AttentionConfig<head>>(launch);              \
  }                                                                                            \
  extern "C" __global__ void __launch_bounds__(256, 4) decode_attention_join_##head(           \
      const __grid_constant__ tokamak::cuda::AttentionLaunch launch) {                         \
    tokamak::cuda::attention_join<head>(launch);                                               \
  }

TK_DECODE_ATTENTION(128)
TK_DECODE_ATTENTION(64)
