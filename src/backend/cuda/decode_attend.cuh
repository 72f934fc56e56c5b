#pragma once
// kAttend and kCombine: attention of the new position over the paged cache, split over blocks.
#include "backend/cuda/decode_context.cuh"

namespace tokamak::cuda {

template <class C>
class DecodeAttend {
 public:
  __device__ DecodeAttend(DecodeThread<C>& t, const DecodeInstruction& in)
      : t_(t),
        in_(in),
        work_(t.block, t.blocks, t.launch.kv_heads, t.position),
        mine_(*static_cast<AttendShared<C>*>(t.input)),
        group_(t.launch.heads / t.launch.kv_heads) {}

  // False when the step is dead.
  __device__ bool run() {
    if (work_.active()) stage_heads();
    if (t_.sync_or_dead()) return false;
    t_.mark(1);
    if (work_.active()) attend();
    sync_consumers<C>();
    t_.mark(2);
    if (work_.active()) write_partial();
    sync_consumers<C>();
    return true;
  }

 private:
  static constexpr int kPairs = C::kHead / 64;  // rotated pairs per lane

  __device__ float* sums(int warp, int head) const {
    return reinterpret_cast<float*>(&mine_ + 1) + (warp * group_ + head) * C::kHead;
  }

  // Queries of the group; where the block has the first split, key and value of the new position.
  __device__ void stage_heads() {
    const int tasks = kMaxGroup + (work_.split == 0 ? 2 : 0);
#pragma unroll 1
    for (int task = t_.warp; task < tasks; task += C::kWarps) {
      const bool query = task < kMaxGroup, key = task == kMaxGroup;
      if (query && task >= group_) {
#pragma unroll 1
        for (int d = t_.lane; d < C::kHead; d += 32) mine_.queries[task][d] = __float2bfloat16(0);
        continue;
      }
      int head = query ? work_.head * group_ + task
                       : t_.launch.heads + (key ? 0 : t_.launch.kv_heads) + work_.head;
      Bf16* cache = nullptr;
      if (!query)
        cache = static_cast<Bf16*>(const_cast<void*>(key ? in_.weights : in_.values)) +
                cache_offset(t_.launch, t_.position, work_.head, C::kHead);
      stage_head(head,
                 query ? in_.gains
                 : key ? in_.gains_k
                       : nullptr,
                 query || key, query ? mine_.queries[task] : mine_.fresh[key ? 0 : 1], cache);
    }
  }

  __device__ void stage_head(int head, const void* gains, bool rotate, Bf16* to, Bf16* cache) {
    const uint32_t* words = in_.input + head * C::kHead;
    const uint32_t tag = t_.tag(in_.tag_in) & 0xffff;
    auto dim = [&](int j) {  // of the first and second of each rotated pair
      int i = t_.lane * kPairs + j / 2;
      if (t_.launch.rope_interleaved) return 2 * i + j % 2;
      return i + j % 2 * (C::kHead / 2);
    };
    uint32_t word[2 * kPairs];
#pragma unroll
    for (int j = 0; j < 2 * kPairs; ++j) word[j] = load_word(words + dim(j));
    t_.poll_all(
        word, [&](int j) { return load_word(words + dim(j)); },
        [tag](uint32_t w) { return (w & 0xffff) == tag; });
    float inverse = 1;
    if (gains) {
      float squares = 0;
#pragma unroll
      for (int j = 0; j < 2 * kPairs; ++j) squares += word_value(word[j]) * word_value(word[j]);
      inverse = rsqrtf(warp_sum(squares) / C::kHead + t_.launch.eps);
    }
#pragma unroll
    for (int j = 0; j < 2 * kPairs; j += 2) {
      float a = word_value(word[j]) * inverse, b = word_value(word[j + 1]) * inverse;
      if (gains) {
        a *= __bfloat162float(static_cast<const Bf16*>(gains)[dim(j)]);
        b *= __bfloat162float(static_cast<const Bf16*>(gains)[dim(j + 1)]);
      }
      float2 turn = rotate ? t_.shared.rope[t_.lane * kPairs + j / 2] : make_float2(1, 0);
      Bf16 x = __float2bfloat16(a * turn.x - b * turn.y);
      Bf16 y = __float2bfloat16(b * turn.x + a * turn.y);
      to[dim(j)] = x;
      to[dim(j + 1)] = y;
      if (!cache) continue;
      cache[dim(j)] = x;
      cache[dim(j + 1)] = y;
    }
  }

  // This warp's groups from the ring and, in one warp, the new position; then what it found, to
  // shared memory.
  __device__ void attend() {
    AttendWarp<C::kHead, C::kGroup> warp(mine_.queries[0], t_.launch.score_scale,
                                         &mine_.scratch[t_.warp]);
    const int tiles = work_.tiles(C::kWarps);
    const bool last = work_.split == 0 && t_.warp == C::kWarps - 1;
#pragma unroll 1
    for (int tile = 0; tile < tiles + (last ? 1 : 0); ++tile) {
      const bool cached = tile < tiles;
      int group = work_.group(tile, t_.warp, C::kWarps);
      if (!cached || group < work_.groups) {
        const Bf16* keys = cached ? reinterpret_cast<const Bf16*>(t_.wait_chunk()) : mine_.fresh[0];
        int valid = cached ? min(kGroupPositions, t_.position - group * kGroupPositions) : 1;
        const Bf16* values = cached ? keys + kGroupPositions * C::kHead : mine_.fresh[1];
        warp.add(keys, values, cached ? C::kHead : 0, valid);
        if (cached) t_.ring.release();
      } else {
        t_.ring.skip();
      }
    }
    if (t_.lane % 4 == 0) {
      mine_.peak[t_.lane / 4][t_.warp] = warp.peak();
      mine_.mass[t_.lane / 4][t_.warp] = warp.mass();
    }
    if (!warp.any()) return;
#pragma unroll
    for (int h = 0; h < C::kGroup; ++h)
      if (h < group_) warp.store_sums(h, sums(t_.warp, h));
  }

  // From all warps of the block: the normalised sums of each head, then the base-2 logarithm of
  // their mass. A warp has 32 dimensions at a time, all of one head.
  __device__ void write_partial() {
    constexpr int kItems = (C::kGroup * C::kHead / 32 + C::kWarps - 1) / C::kWarps;
    constexpr int kPerHead = C::kHead / 32;
    static_assert(kPerHead % kItems == 0, "a warp stays inside a head");
    const int h = t_.warp * kItems / kPerHead;
    if (h >= group_) return;
    // Lane w has warp w of the block.
    const bool counts = t_.lane < C::kWarps && mine_.mass[h][t_.lane % C::kWarps] > 0;
    float own = counts ? mine_.peak[h][t_.lane] : -INFINITY, peak = own;
#pragma unroll
    for (int k = 16; k > 0; k /= 2) peak = fmaxf(peak, __shfl_xor_sync(kAllLanes, peak, k));
    float weight = counts ? exp2f(own - peak) : 0;
    float mass = warp_sum(counts ? weight * mine_.mass[h][t_.lane] : 0), total[kItems] = {};
    const int first = t_.warp * kItems % kPerHead * 32 + t_.lane;
#pragma unroll
    for (int w = 0; w < C::kWarps; ++w) {
      float of_warp = __shfl_sync(kAllLanes, weight, w);
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        float value = sums(w, h)[first + 32 * i];
        total[i] += of_warp > 0 ? of_warp * value : 0;  // a warp without work has left no sums
      }
    }
    TaggedPair* to = t_.launch.partials + (static_cast<int64_t>(work_.head * group_ + h) *
                                               (t_.blocks / t_.launch.kv_heads) +
                                           work_.split) *
                                              (C::kHead + 1);
    const uint32_t tag = t_.tag(in_.tag_out);
    const float inverse = 1 / mass;
#pragma unroll
    for (int i = 0; i < kItems; ++i)
      store_pair(to + first + 32 * i, __float_as_uint(total[i] * inverse), tag);
    if (first == 0) store_pair(to + C::kHead, __float_as_uint(peak + log2f(mass)), tag);
  }

  DecodeThread<C>& t_;
  const DecodeInstruction& in_;
  AttendWork work_;
  AttendShared<C>& mine_;
  int group_;
};

// What a lane of kCombine has added up so far.
struct CombinedPart {
  float peak = -INFINITY, mass = 0, sum = 0;
  __device__ void add(float log_mass, float value) {
    float top = fmaxf(peak, log_mass), old = exp2f(peak - top), weight = exp2f(log_mass - top);
    mass = mass * old + weight;
    sum = sum * old + weight * value;
    peak = top;
  }
  // Over the lanes of equal lane % 4.
  __device__ float all_lanes() {
    float top = peak;
#pragma unroll
    for (int d = 4; d < 32; d *= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, d));
    float weight = mass > 0 ? exp2f(peak - top) : 0;
    mass *= weight;
    sum *= weight;
#pragma unroll
    for (int d = 4; d < 32; d *= 2) {
      mass += __shfl_xor_sync(kAllLanes, mass, d);
      sum += __shfl_xor_sync(kAllLanes, sum, d);
    }
    return sum / mass;
  }
};

// Four elements per warp: lane / 4 goes through the splits, lane % 4 is the element.
template <class C>
__device__ void combine_partials(DecodeThread<C>& t, const DecodeInstruction& in) {
  constexpr int kBatch = 2, kStride = C::kHead + 1;
  AttendWork work(t.block, t.blocks, t.launch.kv_heads, t.position);
  const uint32_t tag = t.tag(in.tag_in);
  auto ready = [tag](TaggedPair p) { return p.tag == tag; };
  const int most = t.blocks / t.launch.kv_heads;
#pragma unroll 1
  for (int u = t.global_warp(); u < t.launch.heads * C::kHead / 4; u += t.all_warps()) {
    int element = u * 4 + t.lane % 4, head = element / C::kHead;
    const TaggedPair* from = t.launch.partials + static_cast<int64_t>(head) * most * kStride;
    CombinedPart part;
#pragma unroll 1
    for (int split = t.lane / 4; split < work.splits; split += 8 * kBatch) {
      auto at = [&](int j) {  // mass and value in turn
        const TaggedPair* row = from + min(split + 8 * (j / 2), work.splits - 1) * kStride;
        return row + (j % 2 == 0 ? C::kHead : element % C::kHead);
      };
      TaggedPair pair[2 * kBatch];
#pragma unroll
      for (int j = 0; j < 2 * kBatch; ++j) pair[j] = load_pair(at(j));
      t.poll_all(
          pair, [&](int j) { return load_pair(at(j)); }, ready);
#pragma unroll
      for (int j = 0; j < kBatch; ++j)
        if (split + 8 * j < work.splits)
          part.add(__uint_as_float(pair[2 * j].bits), __uint_as_float(pair[2 * j + 1].bits));
    }
    float value = part.all_lanes();
    if (t.lane < 4) store_word(in.output + element, value, t.tag(in.tag_out) & 0xffff);
  }
}

}  // namespace tokamak::cuda
