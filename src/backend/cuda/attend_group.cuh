#pragma once
// Attention of one warp over groups of a few cached positions: the query heads that share a
// key/value head against keys and values in shared memory, with a running softmax. Queries, keys
// and values are bf16 or, where `half` is set, f16; both are handled as 16-bit words.
#include "backend/cuda/decode_program.h"
#include "backend/cuda/device.cuh"

namespace tokamak::cuda {

constexpr int kGroupPositions = 8;

// Shared memory of one warp.
struct alignas(16) AttendScratch {
  float weights[kGroupPositions][kMaxGroup];
  float rescale[kMaxGroup];
};

// kGroup: query heads per key/value head, a power of two.
template <int kHead, int kGroup>
class AttendWarp {
 public:
  static constexpr int kDims = kHead / 32;  // per lane
  static constexpr int kSteps = kHead / 32;
  static_assert(kGroup <= kMaxGroup && (kGroup & (kGroup - 1)) == 0);

  // queries: [heads, kHead] in shared memory.
  __device__ AttendWarp(const uint16_t* queries, int heads, float scale, AttendScratch* scratch,
                        bool half)
      : half_(half), scale_(scale * 1.44269504f), scratch_(scratch) {
    lane_ = threadIdx.x % 32;
    const uint4* row = reinterpret_cast<const uint4*>(queries + (lane_ / 4) * kHead);
#pragma unroll
    for (int j = 0; j < kSteps; ++j)
      queries_[j] = lane_ / 4 < heads ? row[j * 4 + lane_ % 4] : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int h = 0; h < kGroup; ++h)
#pragma unroll
      for (int d = 0; d < kDims; ++d) sums_[h][d] = 0;
  }

  // Keys and values of kGroupPositions positions, `stride` elements apart; the first `valid` count.
  __device__ void add(const uint16_t* keys, const uint16_t* values, int stride, int valid) {
    if (half_)
      add_as<true>(keys, values, stride, valid);
    else
      add_as<false>(keys, values, stride, valid);
  }

  // Base-2 logarithm of the largest score, sum of the weights relative to it; for head lane / 4.
  __device__ float peak() const { return peak_; }
  __device__ float mass() const { return mass_; }
  __device__ bool any() const { return mass_ > 0; }
  __device__ float sum(int head, int dim) const { return sums_[head][dim]; }
  // Sums of a head, this lane's dimensions from lane * kDims on.
  __device__ void store_sums(int head, float* to) const {
#pragma unroll
    for (int h = 0; h < kGroup; ++h)
      if (h == head) {
        if constexpr (kDims == 4)
          reinterpret_cast<float4*>(to)[lane_] =
              make_float4(sums_[h][0], sums_[h][1], sums_[h][2], sums_[h][3]);
        else
          reinterpret_cast<float2*>(to)[lane_] = make_float2(sums_[h][0], sums_[h][1]);
      }
  }

 private:
  template <bool kHalf>
  __device__ __forceinline__ void add_as(const uint16_t* keys, const uint16_t* values, int stride,
                                         int valid) {
    float score[4] = {}, more[4] = {};
    const uint4* row = reinterpret_cast<const uint4*>(keys + (lane_ / 4) * stride);
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      uint4 k = row[j * 4 + lane_ % 4], q = queries_[j];
      mma_low_rows<kHalf>(score, q.x, q.y, k.x, k.y);
      mma_low_rows<kHalf>(more, q.z, q.w, k.z, k.w);
    }
    uint2 v[kGroupPositions];  // before the weights: they need not wait for them
#pragma unroll
    for (int p = 0; p < kGroupPositions; ++p) v[p] = load_dims(values + p * stride, p < valid);
    weigh(score[0] + more[0], score[1] + more[1], valid);
#pragma unroll
    for (int h = 0; h < kGroup; ++h) {
      float rescale = scratch_->rescale[h];
#pragma unroll
      for (int d = 0; d < kDims; ++d) sums_[h][d] *= rescale;
    }
#pragma unroll
    for (int p = 0; p < kGroupPositions; ++p) add_position<kHalf>(v[p], p);
    __syncwarp();
  }

  // Scores -> weights in scratch. This lane has head lane / 4 at positions 2 * (lane % 4) and next.
  __device__ void weigh(float a, float b, int valid) {
    int first = lane_ % 4 * 2;
    a = first < valid ? a * scale_ : -INFINITY;
    b = first + 1 < valid ? b * scale_ : -INFINITY;
    float top = fmaxf(a, b);
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
    float peak = fmaxf(peak_, top), rescale = exp2f(peak_ - peak);
    a = exp2f(a - peak);
    b = exp2f(b - peak);
    float mass = a + b;
    mass += __shfl_xor_sync(kAllLanes, mass, 1);
    mass += __shfl_xor_sync(kAllLanes, mass, 2);
    mass_ = mass_ * rescale + mass;
    peak_ = peak;
    scratch_->weights[first][lane_ / 4] = a;
    scratch_->weights[first + 1][lane_ / 4] = b;
    if (lane_ % 4 == 0) scratch_->rescale[lane_ / 4] = rescale;
    __syncwarp();
  }
  // Two or four dimensions; zero for what does not count, whatever memory holds there.
  __device__ uint2 load_dims(const uint16_t* values, bool counts) const {
    uint2 v;
    if constexpr (kDims == 4)
      v = reinterpret_cast<const uint2*>(values)[lane_];
    else
      v = make_uint2(reinterpret_cast<const uint32_t*>(values)[lane_], 0);
    return counts ? v : make_uint2(0, 0);
  }
  template <bool kHalf>
  __device__ void add_position(uint2 packed, int p) {
    static_assert(kDims == 2 || kDims == 4);
    float2 low = unpack2<kHalf>(packed.x), high = unpack2<kHalf>(packed.y);
    const float v[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
    for (int h = 0; h < kGroup; ++h) {
      float weight = scratch_->weights[p][h];
#pragma unroll
      for (int d = 0; d < kDims; ++d) sums_[h][d] = fmaf(weight, v[d], sums_[h][d]);
    }
  }

  int lane_;
  bool half_;
  float scale_, peak_ = -INFINITY, mass_ = 0;
  AttendScratch* scratch_;
  uint4 queries_[kSteps];
  float sums_[kGroup][kDims];
};

}  // namespace tokamak::cuda
