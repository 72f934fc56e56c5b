#pragma once
// kAttend and kCombine: attention of the new positions over the paged cache, split over blocks.
#include "backend/cuda/decode_context.cuh"

namespace tokamak::cuda {

template <class C>
class DecodeAttend {
 public:
  __device__ DecodeAttend(DecodeThread<C>& t, const DecodeInstruction& in)
      : t_(t),
        in_(in),
        work_(t.attend()),
        mine_(*reinterpret_cast<AttendShared<C>*>(t.scratch)),
        group_(t.launch.heads / t.launch.kv_heads) {}

  // False when the step is dead.
  __device__ bool run() {
    sync_consumers<C>();  // the instruction before has read its sums
    if (work_.active) stage_heads();
    if (t_.sync_or_dead()) return false;
    t_.mark(kHasInput);
    attend();
    sync_consumers<C>();
    t_.mark(kHasSums);
    if (work_.active && work_.team > 1) write_partial();
    sync_consumers<C>();
    return true;
  }

 private:
  static constexpr int kPairs = C::kHead / 64;  // rotated pairs per lane
  static constexpr int kAtOnce = C::kSingle ? 1 : 3;

  __device__ float* sums(int warp, int head) const {
    return reinterpret_cast<float*>(&mine_ + 1) + (warp * group_ + head) * C::kHead;
  }
  __device__ int dim(int j) const {  // of the first and second of each rotated pair
    int i = t_.lane * kPairs + j / 2;
    if (t_.launch.rope_interleaved) return 2 * i + j % 2;
    return i + j % 2 * (C::kHead / 2);
  }

  // Queries of the group; where the block has the first split, key and value of the new position.
  __device__ void stage_heads() {
    const int tasks = group_ + (work_.split == 0 ? 2 : 0);
    const uint16_t* values =
        in_.input + static_cast<int64_t>(work_.sequence) *
                        ((t_.launch.heads + 2 * t_.launch.kv_heads) * C::kHead);
    const uint32_t phase = t_.phase(in_.tag_in);
#pragma unroll 1
    for (int first = work_.rank; first < tasks; first += work_.team * kAtOnce) {
      auto from = [&](int j) {
        int task = min(first + j / (2 * kPairs) * work_.team, tasks - 1);
        int head = task < group_
                       ? work_.head * group_ + task
                       : t_.launch.heads + (task - group_) * t_.launch.kv_heads + work_.head;
        return values + head * C::kHead + dim(j % (2 * kPairs));
      };
      // Before the wait: they would have to be waited for after it.
      float gain[kAtOnce * 2 * kPairs];
#pragma unroll
      for (int j = 0; j < kAtOnce * 2 * kPairs; ++j)
        gain[j] = gain_of(first + j / (2 * kPairs) * work_.team, dim(j % (2 * kPairs)));
      uint32_t value[kAtOnce * 2 * kPairs] = {};
      t_.poll_all(
          value, [&](uint32_t& v, int j, bool wanted) { load_value(v, from(j), wanted); },
          [phase](uint32_t v, int) { return (v >> 13 & 1) == phase; });
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k)
        if (first + k * work_.team < tasks)
          stage_head(first + k * work_.team, value + k * 2 * kPairs, gain + k * 2 * kPairs);
    }
  }
  __device__ const void* gains_of(int task) const {
    return task < group_ ? in_.gains : task == group_ ? in_.gains_k : nullptr;
  }
  __device__ float gain_of(int task, int dim) const {
    const void* gains = gains_of(task);
    return gains ? __bfloat162float(static_cast<const Bf16*>(gains)[dim]) : 1;
  }
  __device__ void stage_head(int task, const uint32_t* raw, const float* gain) {
    const bool query = task < group_, key = task == group_;
    uint16_t* to =
        query ? mine_.queries[work_.sequence][task] : mine_.fresh[work_.sequence][key ? 0 : 1];
    uint16_t* cache = nullptr;
    if (!query)
      cache = static_cast<uint16_t*>(const_cast<void*>(key ? in_.weights : in_.values)) +
              cache_offset(t_.launch, work_.sequence, t_.shared.position[work_.sequence],
                           work_.head, C::kHead);
    float value[2 * kPairs], squares = 0, inverse = 1;
#pragma unroll
    for (int j = 0; j < 2 * kPairs; ++j) {
      value[j] = __uint_as_float(restore2(raw[j]) << 16);
      squares += value[j] * value[j];
    }
    if (gains_of(task)) inverse = rsqrtf(warp_sum(squares) / C::kHead + t_.launch.eps);
#pragma unroll
    for (int j = 0; j < 2 * kPairs; j += 2) {
      float a = value[j] * inverse * gain[j], b = value[j + 1] * inverse * gain[j + 1];
      float2 turn = make_float2(1, 0);
      if (query || key) turn = t_.shared.rope[work_.sequence][t_.lane * kPairs + j / 2];
      uint16_t x = round16(a * turn.x - b * turn.y, t_.launch.cache_f16);
      uint16_t y = round16(b * turn.x + a * turn.y, t_.launch.cache_f16);
      to[dim(j)] = x;
      to[dim(j + 1)] = y;
      if (!cache) continue;
      cache[dim(j)] = x;
      cache[dim(j + 1)] = y;
    }
  }

  // This warp's groups from the ring and, in one warp of the sequence, the new position; then what
  // it found, to shared memory.
  __device__ void attend() {
    const int sequence = work_.active ? work_.sequence : 0;
    AttendWarp<C::kHead, C::kGroup> warp(mine_.queries[sequence][0], group_, t_.launch.score_scale,
                                         &mine_.scratch[t_.warp], t_.launch.cache_f16);
    const bool last = work_.active && work_.split == 0 && work_.rank == work_.team - 1;
#pragma unroll 1
    for (int tile = 0; tile < work_.tiles + (last ? 1 : 0); ++tile) {
      const bool cached = tile < work_.tiles;
      const int group = work_.group(tile);
      if (!cached || group < work_.groups) {
        const uint16_t* keys =
            cached ? reinterpret_cast<const uint16_t*>(t_.wait_chunk()) : mine_.fresh[sequence][0];
        const uint16_t* values =
            cached ? keys + kGroupPositions * C::kHead : mine_.fresh[sequence][1];
        int left = t_.shared.position[sequence] - group * kGroupPositions;
        warp.add(keys, values, cached ? C::kHead : 0, cached ? min(kGroupPositions, left) : 1);
        if (cached) t_.ring.release();
      } else {
        t_.ring.skip();
      }
    }
    if (work_.team == 1) {
      if (work_.active) write_own(warp);
      return;
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

  __device__ TaggedPair* partial(int h) const {
    int64_t head = static_cast<int64_t>(work_.sequence) * t_.launch.heads + work_.head * group_ + h;
    return t_.launch.partials + (head * work_.most + work_.split) * (C::kHead + 1);
  }
  // The warp has all of the sequence's share.
  __device__ void write_own(const AttendWarp<C::kHead, C::kGroup>& warp) const {
    constexpr int kDims = C::kHead / 32;
    const uint32_t tag = t_.tag(in_.tag_out);
#pragma unroll
    for (int h = 0; h < C::kGroup; ++h) {
      if (h >= group_) break;
      const float mass = __shfl_sync(kAllLanes, warp.mass(), h * 4);
      const float peak = __shfl_sync(kAllLanes, warp.peak(), h * 4);
      TaggedPair* to = partial(h);
#pragma unroll
      for (int d = 0; d < kDims; ++d)
        store_pair(to + t_.lane * kDims + d, __float_as_uint(warp.sum(h, d) / mass), tag);
      if (t_.lane == 0) store_pair(to + C::kHead, __float_as_uint(peak + log2f(mass)), tag);
    }
  }
  // From all warps of the sequence: the normalised sums of each head, then the base-2 logarithm of
  // their mass. A warp has 32 dimensions at a time.
  __device__ void write_partial() {
    constexpr int kPerHead = C::kHead / 32;
    const int items = group_ * kPerHead, each = (items + work_.team - 1) / work_.team;
    const int end = min(items, (work_.rank + 1) * each), first_warp = t_.warp - work_.rank;
    const uint32_t tag = t_.tag(in_.tag_out);
    int of_head = -1;
    float weight = 0, mass = 0, peak = 0;  // lane w has warp w of the sequence
#pragma unroll 1
    for (int item = work_.rank * each; item < end; ++item) {
      const int h = item / kPerHead, d = item % kPerHead * 32 + t_.lane;
      if (h != of_head) {
        of_head = h;
        const int warp = first_warp + t_.lane % work_.team;
        const bool counts = t_.lane < work_.team && mine_.mass[h][warp] > 0;
        float own = counts ? mine_.peak[h][warp] : -INFINITY;
        peak = own;
#pragma unroll
        for (int k = 16; k > 0; k /= 2) peak = fmaxf(peak, __shfl_xor_sync(kAllLanes, peak, k));
        weight = counts ? exp2f(own - peak) : 0;
        mass = warp_sum(counts ? weight * mine_.mass[h][warp] : 0);
      }
      float total = 0;
#pragma unroll
      for (int w = 0; w < (C::kSingle ? C::kWarps : C::kWarps / 2); ++w) {
        float of_warp = __shfl_sync(kAllLanes, weight, w);
        if (w >= work_.team) continue;
        float value = sums(first_warp + w, h)[d];
        total += of_warp > 0 ? of_warp * value : 0;  // a warp without work has left no sums
      }
      TaggedPair* to = partial(h);
      store_pair(to + d, __float_as_uint(__fdividef(total, mass)), tag);
      if (d == 0) store_pair(to + C::kHead, __float_as_uint(peak + log2f(mass)), tag);
    }
  }

  DecodeThread<C>& t_;
  const DecodeInstruction& in_;
  const AttendWork& work_;
  AttendShared<C>& mine_;
  int group_;
};

// A warp has 32 elements of a head at a time, one per lane.
template <class C>
__device__ void combine_partials(DecodeThread<C>& t, const DecodeInstruction& in) {
  constexpr int kAtOnce = 16, kStride = C::kHead + 1, kPerHead = C::kHead / 32;
  const uint32_t tag = t.tag(in.tag_in);
  const int most = t.attend().most, units = t.launch.batch * t.launch.heads * kPerHead;
#pragma unroll 1
  for (int u = t.global_warp(); u < units; u += t.all_warps()) {
    const int head = u / kPerHead, sequence = head / t.launch.heads;
    const int element = u % kPerHead * 32 + t.lane;
    const int splits = t.attend().splits_of(AttendWork::groups_of(t.shared.position[sequence]));
    const TaggedPair* from = t.launch.partials + static_cast<int64_t>(head) * most * kStride;
    float peak = -INFINITY, mass = 0, sum = 0;
#pragma unroll 1
    for (int first = 0; first < splits; first += kAtOnce) {
      auto at = [&](int j) {  // the values of the splits, then this lane's log mass
        int split = min(first + (j < kAtOnce ? j : t.lane % kAtOnce), splits - 1);
        return from + split * kStride + (j < kAtOnce ? element : C::kHead);
      };
      auto exists = [&](int j) { return j == kAtOnce || first + j < splits; };
      TaggedPair pair[kAtOnce + 1] = {};
      t.poll_all(
          pair,
          [&](TaggedPair& p, int j, bool wanted) { load_pair(p, at(j), wanted && exists(j)); },
          [&](TaggedPair p, int j) { return !exists(j) || p.tag == tag; });
      float own =
                first + t.lane % kAtOnce < splits ? __uint_as_float(pair[kAtOnce].bits) : -INFINITY,
            top = own;
#pragma unroll
      for (int d = kAtOnce / 2; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, d));
      top = fmaxf(top, peak);
      const float old = exp2f(peak - top), weight = exp2f(own - top);
      mass *= old;
      sum *= old;
      peak = top;
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        float w = __shfl_sync(kAllLanes, weight, j);
        if (first + j >= splits) continue;
        mass += w;
        sum = fmaf(w, __uint_as_float(pair[j].bits), sum);
      }
    }
    const int64_t of_sequence = static_cast<int64_t>(t.launch.heads) * C::kHead;
    float value = sum / mass;
    if (!isfinite(value)) t.shared.not_finite[sequence] = 1;
    store_value(in.output + sequence * of_sequence + head % t.launch.heads * C::kHead + element,
                value, t.phase(in.tag_out));
  }
}

}  // namespace tokamak::cuda
