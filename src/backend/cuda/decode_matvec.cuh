#pragma once
// kMatvec: rows of weights from the ring against an input that every block keeps in shared memory.
#include "backend/cuda/decode_context.cuh"
#include "backend/cuda/keyed_noise.cuh"

namespace tokamak::cuda {

template <class C>
class DecodeMatvec {
 public:
  __device__ DecodeMatvec(DecodeThread<C>& t, const DecodeInstruction& in) : t_(t), in_(in) {}

  // False when the step is dead.
  __device__ bool run() {
    float squares = stage_input();
    if (in_.flags & kNormInput) {
      squares = warp_sum(squares);
      if (t_.lane == 0) t_.shared.reduce[t_.warp] = squares;
    }
    if (t_.sync_or_dead()) return false;
    t_.mark(1);
    scale_ = 1;
    if (in_.flags & kNormInput) {
      float total = 0;
#pragma unroll
      for (int i = 0; i < C::kWarps; ++i) total += t_.shared.reduce[i];
      scale_ = rsqrtf(total / in_.width + t_.launch.eps);
    }
    multiply();
    t_.mark(2);
    sync_consumers<C>();  // the next instruction overwrites the input
    return true;
  }

 private:
  static constexpr int kBatch = 4;  // vectors of four values that a thread loads at once

  // Brings the input to shared memory as bf16, times the gains of a norm; returns this thread's
  // part of the sum of squares.
  __device__ float stage_input() {
    if (in_.flags & kFromEmbedding) return stage_embedding();
    const bool norm = in_.flags & kNormInput;
    const uint32_t tag = t_.tag(in_.tag_in) & 0xffff;
    const int vectors = in_.width / 4;
    float squares = 0;
#pragma unroll 1
    for (int first = threadIdx.x; first < vectors; first += C::kConsumers * kBatch) {
      uint4 words[kBatch];
      uint2 gains[kBatch];
      auto load = [&](int j) { return load_words4(in_.input + 4 * (first + j * C::kConsumers)); };
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        bool inside = first + j * C::kConsumers < vectors;
        words[j] = inside ? load(j) : make_uint4(tag, tag, tag, tag);
        if (norm && inside)
          gains[j] = __ldg(static_cast<const uint2*>(in_.gains) + first + j * C::kConsumers);
      }
      t_.poll_all(words, load, [tag](uint4 v) {
        return (((v.x ^ tag) | (v.y ^ tag) | (v.z ^ tag) | (v.w ^ tag)) & 0xffff) == 0;
      });
#pragma unroll
      for (int j = 0; j < kBatch; ++j)
        if (first + j * C::kConsumers < vectors)
          squares += store_input(first + j * C::kConsumers, words[j], gains[j], norm);
    }
    return squares;
  }
  __device__ float stage_embedding() {
    const uint2* row =
        reinterpret_cast<const uint2*>(static_cast<const Bf16*>(t_.launch.embedding) +
                                       static_cast<int64_t>(t_.launch.state->token) * in_.width);
    float squares = 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < in_.width / 4; i += C::kConsumers) {
      uint2 v = __ldg(row + i);
      uint4 words = make_uint4(v.x << 16, v.x & 0xffff0000u, v.y << 16, v.y & 0xffff0000u);
      squares += store_input(i, words, __ldg(static_cast<const uint2*>(in_.gains) + i), true);
    }
    return squares;
  }
  __device__ float store_input(int i, uint4 words, uint2 gains, bool norm) {
    uint2* to = static_cast<uint2*>(t_.input) + i;
    if (!norm) {
      *to =
          make_uint2(__byte_perm(words.x, words.y, 0x7632), __byte_perm(words.z, words.w, 0x7632));
      return 0;
    }
    float a = word_value(words.x), b = word_value(words.y), c = word_value(words.z),
          d = word_value(words.w);
    float2 low = unpack2(gains.x), high = unpack2(gains.y);
    *to = make_uint2(pack2(a * low.x, b * low.y), pack2(c * high.x, d * high.y));
    return a * a + b * b + c * c + d * d;
  }

  static constexpr int kFull = C::kChunk / 16;  // vectors of eight in a full chunk
  static constexpr int kPerLane = kFull / 32;
  static constexpr int kMaxHeld = 2;  // chunks of the input that fit in registers

  __device__ void multiply() {
    MatvecWork<C> work(in_);
    const bool full = work.elements == kFull * 8;
    if (full && work.parts == 1)
      multiply_rows<1>(work);
    else if (full && work.parts == kMaxHeld)
      multiply_rows<kMaxHeld>(work);
    else
      multiply_rows<0>(work);
  }

  // The warp's rows, four at a time. kHeld: chunks of the input, which then stay in registers.
  template <int kHeld>
  __device__ void multiply_rows(const MatvecWork<C>& work) {
    uint4 held[kHeld > 0 ? kHeld : 1][kPerLane];
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int part = 0; part < kHeld; ++part)
#pragma unroll
        for (int i = 0; i < kPerLane; ++i)
          held[part][i] = static_cast<const uint4*>(t_.input)[part * kFull + i * 32 + t_.lane];
    }
    const int warp = t_.global_warp();
    const int rows =
        warp < work.units ? ((work.units - warp - 1) / t_.all_warps() + 1) * work.unit : 0;
#pragma unroll 1
    for (int first = 0; first < rows; first += 4) {
      float sums[4] = {};
#pragma unroll 1
      for (int j = 0; j < min(4, rows - first); ++j) {
        float sum = lane_sum<kHeld>(work, held);
#pragma unroll
        for (int k = 0; k < 4; ++k) sums[k] = j == k ? sum : sums[k];
      }
      finish_rows(work, first, rows, sum_of_rows(sums) * scale_);
    }
    if (in_.flags & kToLogits) score_held();
    int left = work.tiles(t_.block, t_.all_warps()) - rows * work.parts;
#pragma unroll 1
    for (; left > 0; --left) t_.ring.skip();
  }

  // This lane's part of one row.
  template <int kHeld>
  __device__ float lane_sum(const MatvecWork<C>& work,
                            const uint4 (&held)[kHeld > 0 ? kHeld : 1][kPerLane]) {
    float sums[4][4] = {};
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int part = 0; part < kHeld; ++part) {
        const uint4* w = reinterpret_cast<const uint4*>(t_.wait_chunk()) + t_.lane;
#pragma unroll
        for (int i = 0; i < kPerLane; ++i)
          multiply8(sums[i % 2 * 2], sums[i % 2 * 2 + 1], w[i * 32], held[part][i]);
        t_.ring.release();
      }
    } else {
      const int vectors = work.elements / 8;
      const uint4* x = static_cast<const uint4*>(t_.input) + t_.lane;
#pragma unroll 1
      for (int part = 0; part < work.parts; ++part, x += vectors) {
        const uint4* w = reinterpret_cast<const uint4*>(t_.wait_chunk()) + t_.lane;
        if (vectors == kFull) {
#pragma unroll
          for (int i = 0; i < kPerLane; ++i)
            multiply8(sums[i % 2 * 2], sums[i % 2 * 2 + 1], w[i * 32], x[i * 32]);
        } else {
#pragma unroll 1
          for (int i = 0; i < vectors; i += 32) {
            bool inside = i + t_.lane < vectors;
            uint4 zero = make_uint4(0, 0, 0, 0);
            multiply8(sums[0], sums[1], inside ? w[i] : zero, inside ? x[i] : zero);
          }
        }
        t_.ring.release();
      }
    }
    float even = (sums[0][0] + sums[1][0]) + (sums[2][0] + sums[3][0]);
    int row = t_.lane / 4, column = t_.lane % 4 * 2;
    float odd = (sums[0][1] + sums[1][1]) + (sums[2][1] + sums[3][1]);
    return row == column ? even : row == column + 1 ? odd : 0.0f;
  }
  // The tensor cores multiply the weights of each lane with the inputs of every lane of equal
  // lane % 4; only the diagonal is wanted, but that takes far fewer instructions than multiplying
  // one by one.
  __device__ static void multiply8(float (&a)[4], float (&b)[4], uint4 w, uint4 x) {
    mma_low_rows(a, w.x, w.y, x.x, x.y);
    mma_low_rows(b, w.z, w.w, x.z, x.w);
  }
  // Adds four values over all lanes; lanes 8 * j to 8 * j + 7 get the j-th sum.
  __device__ float sum_of_rows(const float (&v)[4]) const {
    const bool upper = t_.lane & 16, odd = t_.lane & 8;
    float a = upper ? v[2] : v[0], b = upper ? v[3] : v[1];
    a += __shfl_xor_sync(kAllLanes, upper ? v[0] : v[2], 16);
    b += __shfl_xor_sync(kAllLanes, upper ? v[1] : v[3], 16);
    float sum = odd ? b : a;
    sum += __shfl_xor_sync(kAllLanes, odd ? a : b, 8);
#pragma unroll
    for (int d = 4; d > 0; d /= 2) sum += __shfl_xor_sync(kAllLanes, sum, d);
    return sum;
  }

  // Lane / 8 has row first + lane / 8 of the warp's rows.
  __device__ void finish_rows(const MatvecWork<C>& work, int first, int rows, float sum) {
    const int mine = first + t_.lane / 8;
    bool writes = t_.lane % 8 == 0 && mine < rows;
    if (in_.flags & kGated) {
      float other = __shfl_xor_sync(kAllLanes, sum, 8);  // gate in even rows, up in odd ones
      sum = sum / (1 + __expf(-sum)) * other;
      writes = writes && mine % 2 == 0;
    }
    const int row = t_.global_warp() + mine / work.unit * t_.all_warps();
    if (in_.bias && mine < rows) sum += __bfloat162float(static_cast<const Bf16*>(in_.bias)[row]);
    if (in_.flags & kAddResidual) {
#pragma unroll
      for (int i = 0; i < kMaxOwnedRows / 4; ++i)
        if (4 * i == first) sum = t_.residual[i] += sum;
    }
    if (in_.flags & kToLogits) {
      if (writes) t_.launch.logits[row] = sum;
      const int turn = first / 4 % 8;
      if (t_.lane % 8 == turn && mine < rows) {
        held_ = sum;
        held_token_ = row;
      }
      if (turn == 7) score_held();
    } else if (writes) {
      store_word(in_.output + row, sum, t_.tag(in_.tag_out) & 0xffff);
    }
  }
  // Noise is costly, so each lane scores one row of 32.
  __device__ void score_held() {
    if (held_token_ < 0) return;
    double score = held_;
    if (!isfinite(held_)) {
      t_.best_score = INFINITY;
      t_.best_token = -1;
      held_token_ = -1;
      return;
    }
    if (t_.launch.temperature > 0)
      score = score / t_.launch.temperature +
              keyed_gumbel(t_.launch.seed, t_.launch.choice, t_.position + 1, held_token_);
    if (score > t_.best_score) {  // a lane's rows come in ascending order: the lower id stays
      t_.best_score = score;
      t_.best_token = held_token_;
    }
    held_token_ = -1;
  }

  DecodeThread<C>& t_;
  const DecodeInstruction& in_;
  float scale_ = 1, held_ = 0;
  int held_token_ = -1;
};

}  // namespace tokamak::cuda
