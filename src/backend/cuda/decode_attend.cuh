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
    if (work_.active())
      for (int i = threadIdx.x; i < group_ * C::kHead; i += C::kConsumers) write_partial(i);
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
    int extra = work_.split == 0 ? 2 : 0;
    for (int task = t_.warp; task < kMaxGroup + extra; task += C::kWarps) {
      if (task < group_) {
        stage_head(work_.head * group_ + task, in_.gains, true, mine_.queries[task], nullptr);
      } else if (task < kMaxGroup) {
        for (int d = t_.lane; d < C::kHead; d += 32) mine_.queries[task][d] = __float2bfloat16(0);
      } else {
        bool key = task == kMaxGroup;
        int head = t_.launch.heads + (key ? 0 : t_.launch.kv_heads) + work_.head;
        Bf16* cache = static_cast<Bf16*>(const_cast<void*>(key ? in_.weights : in_.values)) +
                      cache_offset(t_.launch, t_.position, work_.head, C::kHead);
        stage_head(head, key ? in_.gains_k : nullptr, key, mine_.fresh[key ? 0 : 1], cache);
      }
    }
  }

  __device__ void stage_head(int head, const void* gains, bool rotate, Bf16* to, Bf16* cache) {
    const uint32_t* words = in_.input + head * C::kHead;
    const uint32_t tag = t_.tag(in_.tag_in) & 0xffff;
    int dim[kPairs][2];
    uint32_t word[kPairs][2];
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      int i = t_.lane * kPairs + j;
      dim[j][0] = t_.launch.rope_interleaved ? 2 * i : i;
      dim[j][1] = t_.launch.rope_interleaved ? 2 * i + 1 : i + C::kHead / 2;
      word[j][0] = load_word(words + dim[j][0]);
      word[j][1] = load_word(words + dim[j][1]);
    }
    float v[kPairs][2], squares = 0;
#pragma unroll
    for (int j = 0; j < kPairs; ++j)
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const uint32_t* from = words + dim[j][side];
        v[j][side] = word_value(t_.poll(
            word[j][side], [from] { return load_word(from); },
            [tag](uint32_t w) { return (w & 0xffff) == tag; }));
        squares += v[j][side] * v[j][side];
      }
    float inverse = 1;
    if (gains) inverse = rsqrtf(warp_sum(squares) / C::kHead + t_.launch.eps);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      float a = v[j][0] * inverse, b = v[j][1] * inverse;
      if (gains) {
        a *= __bfloat162float(static_cast<const Bf16*>(gains)[dim[j][0]]);
        b *= __bfloat162float(static_cast<const Bf16*>(gains)[dim[j][1]]);
      }
      float2 turn = rotate ? t_.shared.rope[t_.lane * kPairs + j] : make_float2(1, 0);
      Bf16 x = __float2bfloat16(a * turn.x - b * turn.y);
      Bf16 y = __float2bfloat16(b * turn.x + a * turn.y);
      to[dim[j][0]] = x;
      to[dim[j][1]] = y;
      if (cache) {
        cache[dim[j][0]] = x;
        cache[dim[j][1]] = y;
      }
    }
  }

  // This warp's groups from the ring, then what it found, to shared memory.
  __device__ void attend() {
    AttendWarp<C::kHead> warp(mine_.queries[0], group_, t_.launch.score_scale,
                              &mine_.scratch[t_.warp]);
    int tiles = work_.tiles(C::kWarps);
    for (int tile = 0; tile < tiles; ++tile) {
      int group = work_.group(tile, t_.warp, C::kWarps);
      if (group < work_.groups) {
        const Bf16* keys = reinterpret_cast<const Bf16*>(t_.ring.wait());
        int valid = min(kGroupPositions, t_.position - group * kGroupPositions);
        warp.add(keys, keys + kGroupPositions * C::kHead, C::kHead, valid);
      }
      t_.ring.release();
    }
    if (work_.split == 0 && t_.warp == C::kWarps - 1)
      warp.add(mine_.fresh[0], mine_.fresh[1], 0, 1);
    if (t_.lane % 4 == 0) {
      mine_.peak[t_.lane / 4][t_.warp] = warp.peak();
      mine_.mass[t_.lane / 4][t_.warp] = warp.mass();
    }
    if (!warp.any()) return;
    constexpr int kDims = C::kHead / 32;
#pragma unroll
    for (int h = 0; h < kMaxGroup; ++h)
      if (h < group_) {
        float* to = sums(t_.warp, h) + t_.lane * kDims;
        if constexpr (kDims == 4)
          *reinterpret_cast<float4*>(to) =
              make_float4(warp.sum(h, 0), warp.sum(h, 1), warp.sum(h, 2), warp.sum(h, 3));
        else
          *reinterpret_cast<float2*>(to) = make_float2(warp.sum(h, 0), warp.sum(h, 1));
      }
  }

  // One element of a head from all warps of the block: the normalised sum; with the head's first
  // element goes the base-2 logarithm of the mass.
  __device__ void write_partial(int i) {
    int h = i / C::kHead, d = i % C::kHead;
    float peak = -INFINITY, mass = 0, total = 0;
#pragma unroll
    for (int w = 0; w < C::kWarps; ++w) peak = fmaxf(peak, mine_.peak[h][w]);
#pragma unroll
    for (int w = 0; w < C::kWarps; ++w) {
      float part = mine_.mass[h][w];
      if (part == 0) continue;  // the same in all threads of a warp
      float weight = exp2f(mine_.peak[h][w] - peak);
      mass = fmaf(weight, part, mass);
      total = fmaf(weight, sums(w, h)[d], total);
    }
    int head = work_.head * group_ + h;
    TaggedPair* to = t_.launch.partials +
                     (static_cast<int64_t>(head) * (t_.blocks / t_.launch.kv_heads) + work_.split) *
                         (C::kHead + 1);
    uint32_t tag = t_.tag(in_.tag_out);
    store_pair(to + d, __float_as_uint(total / mass), tag);
    if (d == 0) store_pair(to + C::kHead, __float_as_uint(peak + log2f(mass)), tag);
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
  for (int u = t.global_warp(); u < t.launch.heads * C::kHead / 4; u += t.all_warps()) {
    int element = u * 4 + t.lane % 4, head = element / C::kHead;
    const TaggedPair* from = t.launch.partials + static_cast<int64_t>(head) * most * kStride;
    CombinedPart part;
    for (int split = t.lane / 4; split < work.splits; split += 8 * kBatch) {
      TaggedPair pair[kBatch][2];
      const TaggedPair* at[kBatch][2];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        at[j][0] = from + min(split + 8 * j, work.splits - 1) * kStride + C::kHead;
        at[j][1] = at[j][0] - C::kHead + element % C::kHead;
        pair[j][0] = load_pair(at[j][0]);
        pair[j][1] = load_pair(at[j][1]);
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (split + 8 * j >= work.splits) continue;
        uint32_t bits[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const TaggedPair* again = at[j][k];
          bits[k] = t.poll(
                         pair[j][k], [again] { return load_pair(again); }, ready)
                        .bits;
        }
        part.add(__uint_as_float(bits[0]), __uint_as_float(bits[1]));
      }
    }
    float value = part.all_lanes();
    if (t.lane < 4) store_word(in.output + element, value, t.tag(in.tag_out) & 0xffff);
  }
}

}  // namespace tokamak::cuda
