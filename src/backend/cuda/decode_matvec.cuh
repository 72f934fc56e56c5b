#pragma once
// kMatvec: tiles of rows from the ring against the input. Every consumer multiplies its segments of
// the width, so the sums of a row come together in shared memory.
#include "backend/cuda/decode_input.cuh"
#include "backend/cuda/keyed_noise.cuh"

namespace tokamak::cuda {

// Which output a thread finishes: `index` counts the sums of a flush.
template <class C>
struct OutputPlace {
  int tile, row, sequence;  // tile of the flush, row of the tile
  __device__ OutputPlace(int index, int tile_rows) {
    const int of_tile = sums_of_tile(tile_rows), i = index % of_tile;
    tile = index / of_tile;
    if constexpr (C::kSingle) {
      row = i;
      sequence = 0;
    } else if (tile_rows == 8) {
      row = i / 2 % 4 * 2 + i % 2;
      sequence = i / 8;
    } else {
      row = i / 16 + i / 2 % 2 * 8;
      sequence = i / 4 % 4 * 2 + i % 2;
    }
  }
  __device__ static int sums_of_tile(int tile_rows) {
    return C::kSingle ? tile_rows : tile_rows * kMaxBatch;
  }
  // Rounds in which the consumers finish a flush, one output per thread and round.
  __device__ static int rounds(int tile_rows) {
    return (C::kFlush * sums_of_tile(tile_rows) + C::kConsumers - 1) / C::kConsumers;
  }
  __device__ int global_row(int first_tile, int tile_rows, int block, int blocks) const {
    return ((first_tile + tile) * blocks + block) * tile_rows + row;
  }
};

template <class C, DecodeWeight kType>
class DecodeMatvec {
 public:
  __device__ DecodeMatvec(DecodeThread<C>& t, const DecodeInstruction& in)
      : t_(t),
        in_(in),
        work_(in, t.block, t.blocks, t.warp),
        sums_(*reinterpret_cast<MatvecShared<C>*>(t.scratch)) {}

  // False when the step is dead.
  __device__ bool run() {
    if (work_.tiles == 0) return true;
    bool alive;
    if constexpr (C::kSingle)
      alive = run_single();
    else
      alive = run_batch();
    if (in_.flags & kNormInput) t_.turn ^= 1;
    return alive;
  }

 private:
  static constexpr int kTileRows = decode_tile_rows(kType);
  static constexpr int kRounds = C::kSingle ? 1 : 2;  // most of OutputPlace::rounds

  __device__ bool run_single() {
    uint4* x = reinterpret_cast<uint4*>(&sums_ + 1);
    auto* scales = reinterpret_cast<float*>(x + in_.width / 8);
    input_scale_ = stage_single<kType>(t_, in_, work_, x, scales, t_.turn);
    t_.mark(kHasInput);
    x += work_.first * 4;
    scales += work_.first;
    const bool full = work_.segments == LaneWeights<C, kType>::kMostSegments;
    if constexpr (decode_16_bits(kType)) {
      if (work_.parts == 1) return full ? run_held<true>(x) : run_held<false>(x);
      return full ? run_rows<true>(x) : run_rows<false>(x);
    } else {
      return full ? run_packed<true>(x, scales) : run_packed<false>(x, scales);
    }
  }
  // kFull, here and below: the consumer has as many segments as there can be, which the compiler
  // knows then; nothing is asked between loads and products.
  template <bool kFull>
  __device__ bool run_packed(const uint4* x, const float* scales) {
    return run_tiles([&](float(&acc)[4][4]) {
#pragma unroll 1
      for (int part = 0; part < work_.parts; ++part)
        with_chunk([&](auto weights) {
          const uint4* of_part = x + part * (work_.width / 8);
          const float* its_scales = scales + part * (work_.width / 32);
          if constexpr (kFull)
            add_pairs<decltype(weights)::kMostSegments / 2>(weights, acc, 0, true, of_part,
                                                            its_scales);
          else
            add_single(weights, acc, of_part, its_scales);
        });
    });
  }
  // 16 bits, the input in registers: shared memory has enough to do with the weights. Measured: the
  // other types lose by it.
  template <bool kFull>
  __device__ bool run_held(const uint4* x) {
    using Weights = LaneWeights<C, kType>;
    constexpr int kMost = Weights::kMostSegments;
    uint4 held[kMost];
#pragma unroll
    for (int s = 0; s < kMost; ++s) {
      held[s] = make_uint4(0, 0, 0, 0);
      if (!kFull && s >= work_.segments) continue;
      held[s] = single_input(x + (s ^ Weights::swap(kFull || (s | 1) < work_.segments)) * 4);
    }
    return run_tiles([&](float(&acc)[4][4]) {
      with_chunk([&](auto weights) {
        add_rows<kFull>(weights, acc, [&](int s, int) { return held[s]; });
      });
    });
  }
  // 16 bits in several parts.
  template <bool kFull>
  __device__ bool run_rows(const uint4* x) {
    return run_tiles([&](float(&acc)[4][4]) {
#pragma unroll 1
      for (int part = 0; part < work_.parts; ++part)
        with_chunk([&](auto weights) {
          const uint4* of_part = x + part * (work_.width / 8);
          add_rows<kFull>(weights, acc,
                          [&](int s, int swap) { return single_input(of_part + (s ^ swap) * 4); });
        });
    });
  }
  // input(s, swap): what goes with segment s ^ swap.
  template <bool kFull, class Weights, class Input>
  __device__ __forceinline__ void add_rows(const Weights& weights, float (&acc)[4][4],
                                           Input input) {
    constexpr bool kHalf = kType == DecodeWeight::kF16;
#pragma unroll
    for (int s = 0; s < Weights::kMostSegments; s += 2) {
      if (!kFull && s >= work_.segments) break;
      const bool both = kFull || s + 1 < work_.segments;
      const int swap = Weights::swap(both);
      add_16_bits_single<kHalf>(acc[0], acc[1], weights.data[(s + swap) * 4], input(s, swap));
      if (both)
        add_16_bits_single<kHalf>(acc[2], acc[3], weights.data[(s + 1 - swap) * 4],
                                  input(s + 1, swap));
    }
  }
  // multiply(acc) adds what the next tile of the ring gives. False when the step is dead.
  template <class Multiply>
  __device__ __forceinline__ bool run_tiles(Multiply multiply) {
#pragma unroll 1
    for (int first = 0; first < work_.tiles; first += C::kFlush) {
      const int count = min(C::kFlush, work_.tiles - first);
      fetch_extras(first, count);
#pragma unroll 1
      for (int j = 0; j < count; ++j) {
        float acc[4][4] = {};
        multiply(acc);
        put_sums(j, acc);
      }
      if (!flush(first, count)) return false;
    }
    return true;
  }
  template <class Weights>
  __device__ void add_single(const Weights& weights, float (&acc)[4][4], const uint4* x,
                             const float* scales) {
    const int pairs = work_.segments / 2;
    int done = 0;
#pragma unroll 1
    for (; done + 4 <= pairs; done += 4) add_pairs<4>(weights, acc, done, true, x, scales);
    if (pairs - done >= 2) {
      add_pairs<2>(weights, acc, done, true, x, scales);
      done += 2;
    }
    if (done < pairs || work_.segments % 2)
      add_pairs<1>(weights, acc, done, done < pairs, x, scales);
    if (done < pairs && work_.segments % 2) add_pairs<1>(weights, acc, done + 1, false, x, scales);
  }
  template <int kCount, class Weights>
  __device__ __forceinline__ void add_pairs(const Weights& weights, float (&acc)[4][4], int pair,
                                            bool both, const uint4* x, const float* scales) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const int s = 2 * (pair + k), swap = Weights::swap(both);
      weights.add_pair(
          acc[k % 2 * 2], acc[k % 2 * 2 + 1], s, both,
          [&](int i) { return single_input(x + (s + (i ^ swap)) * 4); },
          [&](int i) { return make_float2(decode_integers(kType) ? scales[s + i] : 1, 1); });
    }
  }

  // A lane's input of a segment.
  __device__ __forceinline__ uint4 single_input(const uint4* segment) const {
    if constexpr (!decode_integers(kType)) return segment[t_.lane % 4];
    uint2 v = reinterpret_cast<const uint2*>(segment)[t_.lane / 4 % 2 * 4 + t_.lane % 4];
    return make_uint4(v.x, v.y, 0, 0);
  }

  __device__ bool run_batch() {
    BatchInput<C, kType> input(t_, in_, work_, sums_.input_scales[t_.warp]);
    // Parts outside: then all tiles fit in one flush.
    const bool parts_outside = MatvecWork::part_major<C>(in_);
    const int passes = parts_outside ? work_.parts : 1;
#pragma unroll 1
    for (int pass = 0; pass < passes; ++pass) {
      input.settle(pass, parts_outside ? 1 : work_.parts, t_.turn, pass > 0);
      if (pass == 0) t_.mark(kHasInput);
#pragma unroll 1
      for (int first = 0; first < work_.tiles; first += C::kFlush) {
        const int count = min(C::kFlush, work_.tiles - first);
        if (pass == 0) fetch_extras(first, count);
#pragma unroll 1
        for (int j = 0; j < count; ++j) {
          float acc[4][4] = {};
          if (pass > 0) get_sums(j, acc[0]);
          // The last tile leaves room for the next part.
          const int next = j == count - 1 && pass + 1 < passes ? pass + 1 : 0;
          with_chunk([&](auto weights) { add_batch<0>(weights, acc, input, next); });
          if (!parts_outside && work_.parts == 2)
            with_chunk([&](auto weights) { add_batch<8>(weights, acc, input, 0); });
          put_sums(j, acc);
        }
        if (pass == passes - 1 && !flush(first, count)) return false;
      }
    }
    return true;
  }
  // next: the part to load in place of what was multiplied, or 0.
  template <int kFirst, class Weights>
  __device__ void add_batch(const Weights& weights, float (&acc)[4][4], BatchInput<C, kType>& input,
                            int next) {
    constexpr int kMost = Weights::kMostSegments;
    if constexpr (kFirst + kMost <= kHeldSegments) {
#pragma unroll
      for (int s = 0; s < kMost; s += 2) {
        if (s >= work_.segments) break;
        const bool both = s + 1 < work_.segments;
        weights.add_pair(
            acc[0], acc[1], s, both, [&](int i) { return input.x[kFirst + s + i]; },
            [&](int i) { return input.scale(kFirst + s + i); });
        if (next) {
          input.load(kFirst + s, next, s);
          if (both) input.load(kFirst + s + 1, next, s + 1);
        }
      }
    }
  }

  // Calls add(weights) with the next tile of the ring.
  template <class Add>
  __device__ __forceinline__ void with_chunk(Add add) {
    const unsigned char* chunk = t_.wait_chunk(decode_16_bits(kType));
    add(LaneWeights<C, kType>(chunk, work_));
    t_.ring.release();
  }

  // --- sums of the consumers, in the order of OutputPlace

  __device__ float* slot(int tile) { return sums_.sums[t_.buffer][tile][t_.warp]; }
  __device__ void put_sums(int tile, const float (&acc)[4][4]) {
    float c[4];
    if constexpr (C::kSingle && kTileRows == 8) {
#pragma unroll
      for (int i = 0; i < 2; ++i) c[i] = (acc[0][i] + acc[2][i]) + (acc[1][i + 2] + acc[3][i + 2]);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) c[i] = (acc[0][i] + acc[1][i]) + (acc[2][i] + acc[3][i]);
    }
    float* to = slot(tile);
    const int lane = t_.lane;
    if constexpr (C::kSingle) {  // every sequence of the tensor cores' eight is the one
      if (kTileRows == 8) {      // in the order of even rows of weights, or of odd ones (swap())
        if (lane < 8) to[lane % 4 * 2 + lane / 4] = (lane < 4 ? c[0] : c[1]) * input_scale_;
      } else if (lane % 4 == 0) {
        to[lane / 4] = c[0] * input_scale_;
        to[lane / 4 + 8] = c[2] * input_scale_;
      }
    } else if (kTileRows == 8) {
      const float scale = batch_scale();
      reinterpret_cast<float2*>(to)[lane] = make_float2(c[0] * scale, c[1] * scale);
    } else {
      reinterpret_cast<float4*>(to)[lane] = make_float4(c[0], c[1], c[2], c[3]);
    }
  }
  // kF16, several sequences: of the sums of this lane's; it may change from part to part.
  __device__ float batch_scale() const {
    return kType == DecodeWeight::kF16 ? sums_.input_scales[t_.warp][0][t_.lane / 4] : 1;
  }
  __device__ void get_sums(int tile, float (&c)[4]) {
    const float* from = slot(tile);
    if (kTileRows == 8) {
      float2 v = reinterpret_cast<const float2*>(from)[t_.lane];
      const float scale = 1 / batch_scale();
      c[0] = v.x * scale;
      c[1] = v.y * scale;
    } else {
      float4 v = reinterpret_cast<const float4*>(from)[t_.lane];
      c[0] = v.x;
      c[1] = v.y;
      c[2] = v.z;
      c[3] = v.w;
    }
  }

  // Bias and scale of the rows that this thread will finish: asked for early.
  __device__ void fetch_extras(int first, int count) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      scale_[round] = 1;
      bias_[round] = 0;
      if (!in_.bias && kType != DecodeWeight::kFp8) continue;
      OutputPlace<C> place(first_output(first, round) + t_.lane, kTileRows);
      int row = place.global_row(first, kTileRows, t_.block, t_.blocks);
      if (place.tile >= count || row >= in_.rows) continue;
      if (kType == DecodeWeight::kFp8)
        scale_[round] = __ldg(static_cast<const float*>(in_.values) + row) *
                        (C::kSingle ? 1.0f : kFp8OutputScale);
      if (in_.bias) bias_[round] = __bfloat162float(static_cast<const Bf16*>(in_.bias)[row]);
    }
  }

  // The first output of this warp in a flush. A flush of one sequence and 16 bits is the work of
  // one warp: they take turns, except where a thread keeps the residual stream of its rows.
  static constexpr bool kTakesTurns = C::kSingle && kTileRows == 8;
  __device__ int first_output(int first, int round) const {
    int warp = t_.warp;
    if (kTakesTurns && !(in_.flags & kAddResidual))
      warp = (warp - first / C::kFlush) & (C::kWarps - 1);
    return round * C::kConsumers + warp * 32;
  }
  // What the end of a flush needs of the instruction.
  struct Destination {
    uint32_t flags, phase;
    int rows;
    uint16_t* output;
  };
  // Adds what the consumers have collected and writes the outputs. False when the step is dead.
  __device__ bool flush(int first, int count) {
    // Before the consumers meet: constant memory answers late.
    const Destination to{opaque(in_.flags), opaque(t_.phase(in_.tag_out)),
                         static_cast<int>(opaque(static_cast<uint32_t>(in_.rows))), in_.output};
    if (t_.sync_or_dead()) return false;
    if (first + count == work_.tiles) t_.mark(kHasSums);
    const int of_tile = OutputPlace<C>::sums_of_tile(kTileRows), total = count * of_tile;
    const int rounds = OutputPlace<C>::rounds(kTileRows);
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int base = first_output(first, round);
      if (base >= total) break;
      const int index = base + t_.lane;
      OutputPlace<C> place(index, kTileRows);
      float sum = 0;
      if (index < total) {
        const float* from = sums_.sums[t_.buffer][place.tile][0] + index % of_tile;
#pragma unroll
        for (int w = 0; w < C::kWarps; ++w) sum += from[w * C::kTileSums];
      }
      if (!C::kSingle || kTakesTurns || first == 0) norm_ = norm_scale(to.flags, place.sequence);
      sum = sum * (scale_[round] * norm_) + bias_[round];
      int row = place.global_row(first, kTileRows, t_.block, t_.blocks);
      bool valid = index < total && row < to.rows && place.sequence < t_.launch.batch;
      finish(to, row, place.sequence, sum, valid, first / C::kFlush * rounds + round);
    }
    t_.buffer ^= 1;
    return true;
  }
  __device__ float norm_scale(uint32_t flags, int sequence) const {
    if (!(flags & kNormInput)) return 1;
    float total = 0;
#pragma unroll
    for (int i = 0; i < C::kWarps; ++i) total += t_.shared.squares[t_.turn][sequence][i];
    return rsqrtf(__fdividef(total, static_cast<float>(in_.width)) + t_.launch.eps);
  }
  // kept: which of the thread's values of the residual stream.
  __device__ void finish(const Destination& to, int row, int sequence, float sum, bool valid,
                         int kept) {
    int stride = to.rows;
    const uint32_t flags = to.flags;
    if (flags & kGated) {  // gate in even rows, up in odd ones
      float other = __shfl_xor_sync(kAllLanes, sum, C::kSingle || kTileRows == 8 ? 1 : 16);
      sum = __fdividef(sum, 1 + __expf(-sum)) * other;
      valid = valid && row % 2 == 0;
      row /= 2;
      stride /= 2;
    }
    if (!valid) return;
    if (flags & kAddResidual) {
#pragma unroll
      for (int i = 0; i < kMaxOwnedRows; ++i)
        if (i == kept) sum = t_.residual[i] += sum;
    }
    if (!isfinite(sum)) t_.shared.not_finite[sequence] = 1;
    if (flags & kToLogits)
      score(row, sequence, sum);
    else
      store_value(to.output + static_cast<int64_t>(sequence) * stride + row, sum, to.phase);
  }
  // A thread's rows come in ascending order and are of one sequence: the lower id stays.
  __device__ void score(int row, int sequence, float logit) {
    t_.launch.logits[static_cast<int64_t>(sequence) * in_.rows + row] = logit;
    const DecodeSampling& sampling = t_.launch.sampling[sequence];
    double value = logit;
    if (sampling.temperature > 0)
      value = value / sampling.temperature +
              keyed_gumbel(sampling.seed, sampling.choice, t_.shared.position[sequence] + 1, row);
    if (value > t_.best_score) {
      t_.best_score = value;
      t_.best_token = row;
    }
  }

  DecodeThread<C>& t_;
  const DecodeInstruction& in_;
  MatvecWork work_;
  MatvecShared<C>& sums_;
  float scale_[kRounds], bias_[kRounds], norm_ = 1;
  float input_scale_ = 1;  // of the sums of one sequence, where its input is scaled
};

}  // namespace tokamak::cuda
