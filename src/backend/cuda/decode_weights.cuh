#pragma once
// Products of one consumer's chunk of weights, by type. A segment is 32 elements of the width; lane
// l has elements 8 * (l % 4) to 8 * (l % 4) + 7 of it. decode_pack.h says how packed weights lie.
#include "backend/cuda/decode_context.cuh"

namespace tokamak::cuda {

// Two of the four E4M3 values in a word as bf16, times 2^-120.
__device__ __forceinline__ uint32_t fp8_low(uint32_t v) {
  return (v << 4 & 0x07f007f0u) | (v << 8 & 0x80008000u);
}
__device__ __forceinline__ uint32_t fp8_high(uint32_t v) {
  return (v >> 4 & 0x07f007f0u) | (v & 0x80008000u);
}
// The input of kFp8 and several sequences is scaled by 2^63, so that no product is too small for a
// float.
constexpr uint32_t kFp8InputShift = 63u << 7 | 63u << 23;
constexpr float kFp8InputScale = 0x1p63f, kFp8OutputScale = 0x1p57f;

// acc + sum over a segment; 16 bits: rows are the sequences, columns the rows of weights.
template <bool kHalf>
__device__ __forceinline__ void add_16_bits(float (&acc)[4], uint4 w, uint4 x) {
  mma_low_rows<kHalf>(acc, x.x, x.y, w.x, w.y);
  mma_low_rows<kHalf>(acc, x.z, x.w, w.z, w.w);
}
// One sequence: half of the 16 rows would be empty, so rows 8 to 15 take the second half of the
// input's words and what they give for the first half of the weights is not used. x: words in the
// order of put_staged(); the sums are columns of rows 0 to 7 of `first` and of 8 to 15 of `second`.
template <bool kHalf>
__device__ __forceinline__ void add_16_bits_single(float (&first)[4], float (&second)[4], uint4 w,
                                                   uint4 x) {
  mma<kHalf>(first, x.x, x.y, x.z, x.w, w.x, w.y);
  mma<kHalf>(second, x.x, x.y, x.z, x.w, w.z, w.w);
}
// The other types: rows are the rows of weights, columns the sequences.
__device__ __forceinline__ void add_fp8(float (&acc)[4], uint4 w, uint4 x) {
  mma(acc, fp8_low(w.x), fp8_low(w.z), fp8_high(w.x), fp8_high(w.z), x.x, x.y);
  mma(acc, fp8_low(w.y), fp8_low(w.w), fp8_high(w.y), fp8_high(w.w), x.z, x.w);
}
// With one sequence, E4M3 becomes f16, which is exact and takes one instruction for two values; the
// input is f16, too (scale_to_half()). Words have bytes in the order 0, 2, 1, 3 (decode_pack.h).
__device__ __forceinline__ void fp8_to_half(uint32_t v, uint32_t& even, uint32_t& odd) {
  asm("{\n.reg .b16 l,h;\nmov.b32 {l,h},%2;\n"
      "cvt.rn.f16x2.e4m3x2 %0,l;\ncvt.rn.f16x2.e4m3x2 %1,h;\n}"
      : "=r"(even), "=r"(odd)
      : "r"(v));
}
__device__ __forceinline__ void add_fp8_half(float (&acc)[4], uint4 w, uint4 x) {
  uint32_t even[4], odd[4];
  fp8_to_half(w.x, even[0], odd[0]);
  fp8_to_half(w.y, even[1], odd[1]);
  fp8_to_half(w.z, even[2], odd[2]);
  fp8_to_half(w.w, even[3], odd[3]);
  mma<true>(acc, even[0], even[2], odd[0], odd[2], x.x, x.y);
  mma<true>(acc, even[1], even[3], odd[1], odd[3], x.z, x.w);
}
// Q8_0 and Q4_0: products of integers. The input of a segment is scale * (128 * high + low) with
// high and low of eight bits; of one sequence the columns are high and low in turn, of several they
// are the sequences and high and low are multiplied one after the other.
// x: eight bytes of a lane's column in x and y; of several sequences high in x and y, low in z and
// w. weight_scales: two halves, of rows lane / 4 and lane / 4 + 8. input_scales: of this lane's
// columns.
template <bool kSingle>
__device__ __forceinline__ void add_integers(float (&acc)[4], uint4 a, uint4 x,
                                             uint32_t weight_scales, float2 input_scales) {
  int high[4] = {}, low[4] = {};
  mma_int8(high, a, x.x, x.y);
  float2 scale = __half22float2(*reinterpret_cast<const __half2*>(&weight_scales));
  if constexpr (kSingle) {
    scale.x *= input_scales.x;
    scale.y *= input_scales.x;
    acc[0] = fmaf(scale.x, static_cast<float>(high[0] * 128 + high[1]), acc[0]);
    acc[2] = fmaf(scale.y, static_cast<float>(high[2] * 128 + high[3]), acc[2]);
  } else {
    mma_int8(low, a, x.z, x.w);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float of_input = i % 2 ? input_scales.y : input_scales.x;
      float of_weight = i < 2 ? scale.x : scale.y;
      acc[i] = fmaf(of_weight * of_input, static_cast<float>(high[i] * 128 + low[i]), acc[i]);
    }
  }
}
constexpr uint32_t kUpperBits = 0xf0f0f0f0u;  // a 4-bit number there is 16 times as large

// What a product of integers stands for, as a lane has it: of one sequence in two of the four.
template <bool kSingle>
struct IntegerProduct {
  int high[4] = {}, low[4] = {};
  __device__ __forceinline__ void add(uint4 a, uint4 x) {
    mma_int8(high, a, x.x, x.y);
    if constexpr (!kSingle) mma_int8(low, a, x.z, x.w);
  }
  __device__ __forceinline__ float value(int i) const {
    return static_cast<float>(kSingle ? high[i] * 128 + high[i + 1] : high[i] * 128 + low[i]);
  }
};
__device__ __forceinline__ float2 two_halves(uint32_t v) {
  return __half22float2(*reinterpret_cast<const __half2*>(&v));
}
// The scales of a segment as two halves each, of rows lane / 4 and lane / 4 + 8. Elements 16 to 31
// are those of lanes 2 and 3 of four. kUnit: what a number of one is.
struct SegmentScales {
  uint32_t first, second, offset;
};
template <bool kSingle, bool kHalves, uint32_t kUnit>
__device__ __forceinline__ void add_segment(float (&acc)[4], uint4 a, uint4 x, SegmentScales s,
                                            float2 input_scales) {
  const bool upper = kHalves && threadIdx.x % 4 >= 2;
  const uint4 none = make_uint4(0, 0, 0, 0);
  float sums[4] = {};
  // One product after the other: of several sequences registers are scarce.
  auto add = [&](uint4 numbers, uint4 input, uint32_t scales) {
    IntegerProduct<kSingle> product;
    product.add(numbers, input);
    const float2 scale = two_halves(scales);
#pragma unroll
    for (int i = 0; i < 4; i += kSingle ? 2 : 1)
      sums[i] = fmaf(i < 2 ? scale.x : scale.y, product.value(i), sums[i]);
  };
  add(make_uint4(kUnit, kUnit, kUnit, kUnit), x, s.offset);
  add(a, upper ? none : x, s.first);
  if constexpr (kHalves) add(a, upper ? x : none, s.second);
#pragma unroll
  for (int i = 0; i < 4; i += kSingle ? 2 : 1)
    acc[i] = fmaf(!kSingle && i % 2 ? input_scales.y : input_scales.x, sums[i], acc[i]);
}

// Where a lane finds its weights of a tile.
template <class C, DecodeWeight kType>
struct LaneWeights {
  static constexpr int kMostSegments = decode_four_bits(kType) ? 16 : 8;  // of a chunk
  const uint4* data;
  const uint32_t* scales;
  // chunk: the first of all consumers for 16 bits, else this one's.
  __device__ LaneWeights(const unsigned char* chunk, const MatvecWork& work) {
    const int lane = threadIdx.x % 32;
    if constexpr (decode_16_bits(kType)) {
      data = reinterpret_cast<const uint4*>(chunk + (lane / 4) * C::kChunk) + work.first * 4 +
             lane % 4;
    } else {
      data = reinterpret_cast<const uint4*>(chunk) + lane;
      constexpr int kWords = decode_scale_bytes(kType) / 32;  // of a row and the one 8 further
      scales =
          reinterpret_cast<const uint32_t*>(chunk + work.segments * decode_number_bytes(kType)) +
          lane / 4 * kWords;
    }
  }
  // With one sequence and 16 bits, lanes of odd rows take a pair of segments in the other order:
  // rows are a multiple of 128 bytes apart, and shared memory would give them one after the other.
  // Each row of the tensor cores' other operand then has its own order, too; see put_sums().
  __device__ static __forceinline__ int swap(bool both) {
    return C::kSingle && decode_16_bits(kType) && both ? threadIdx.x / 4 % 2 : 0;
  }
  // Segments s and s + 1; s is even. input(i) is what the i-th that is taken is multiplied with,
  // scale(i) its scale.
  template <class Input, class Scale>
  __device__ __forceinline__ void add_pair(float (&a)[4], float (&b)[4], int s, bool both,
                                           Input input, Scale scale) const {
    if constexpr (decode_four_bits(kType)) {
      uint4 w = data[s / 2 * 32];
      add_four_bits(a, w.x, w.y, s, input(0), scale(0));
      add_four_bits(b, w.z, w.w, s + 1, input(1), scale(1));
    } else {
      add_one(a, s + swap(both), input(0), scale(0));
      if (both) add_one(b, s + 1 - swap(both), input(1), scale(1));
    }
  }

 private:
  __device__ __forceinline__ void add_four_bits(float (&acc)[4], uint32_t row, uint32_t other,
                                                int s, uint4 x, float2 scale) const {
    const uint4 w = make_uint4(row << 4 & kUpperBits, other << 4 & kUpperBits, row & kUpperBits,
                               other & kUpperBits);
    if constexpr (kType == DecodeWeight::kQ4) {
      add_integers<C::kSingle>(acc, w, x, scales[s * 8], scale);
    } else {
      const uint2 v = *reinterpret_cast<const uint2*>(scales + s * 16);
      add_segment<C::kSingle, false, 0x10101010u>(acc, w, x, {v.x, 0, v.y}, scale);
    }
  }
  __device__ __forceinline__ void add_one(float (&acc)[4], int s, uint4 x, float2 scale) const {
    if constexpr (decode_16_bits(kType))
      add_16_bits<kType == DecodeWeight::kF16>(acc, data[s * 4], x);
    if constexpr (kType == DecodeWeight::kFp8 && C::kSingle) add_fp8_half(acc, data[s * 32], x);
    if constexpr (kType == DecodeWeight::kFp8 && !C::kSingle) add_fp8(acc, data[s * 32], x);
    if constexpr (kType == DecodeWeight::kQ8) {
      uint4 w = data[s * 32];
      add_integers<C::kSingle>(acc, make_uint4(w.x, w.z, w.y, w.w), x, scales[s * 8], scale);
    }
    if constexpr (kType == DecodeWeight::kK8) {
      uint4 w = data[s * 32];
      const uint32_t* of = scales + s * 24;
      add_segment<C::kSingle, true, 0x01010101u>(acc, make_uint4(w.x, w.z, w.y, w.w), x,
                                                 {of[0], of[1], of[2]}, scale);
    }
  }
};

}  // namespace tokamak::cuda
