#pragma once
// The input of a kMatvec. Each consumer needs some segments of the width only, so it fetches its
// own and no barrier of the block is needed.
#include "backend/cuda/decode_weights.cuh"

namespace tokamak::cuda {

// How values from memory become what the tensor cores multiply.
template <class C, DecodeWeight kType>
class InputReader {
 public:
  __device__ InputReader(DecodeThread<C>& t, const DecodeInstruction& in, int sequence) : in_(in) {
    if (in.flags & kFromEmbedding) {
      int64_t token = t.launch.state[sequence].token;
      from_ = static_cast<const uint16_t*>(t.launch.embedding) + token * in.width;
      mask_ = pattern_ = 0;
    } else {
      from_ = in.input + static_cast<int64_t>(sequence) * in.width;
      mask_ = kPhaseBits;
      pattern_ = t.phase(in.tag_in) ? kPhaseBits : 0;
    }
  }
  // Eight values, from an element on.
  __device__ __forceinline__ void load(uint4& v, int element, bool wanted) const {
    load_values8(v, from_ + element, wanted);
  }
  __device__ bool ready(uint4 v) const {
    return (((v.x ^ pattern_) | (v.y ^ pattern_) | (v.z ^ pattern_) | (v.w ^ pattern_)) & mask_) ==
           0;
  }
  __device__ uint4 gains(int element) const {
    return __ldg(reinterpret_cast<const uint4*>(static_cast<const Bf16*>(in_.gains) + element));
  }
  // What the tensor cores take, of eight values; `gains` and the sum of squares only with kNorm.
  // Integers: see quantize(), all lanes of a segment have to call it together.
  template <bool kNorm>
  __device__ __forceinline__ uint4 convert(uint4 v, uint4 gains, float& squares,
                                           float& scale) const {
    v = make_uint4(restore2(v.x, mask_), restore2(v.y, mask_), restore2(v.z, mask_),
                   restore2(v.w, mask_));
    constexpr bool kLarge = kType == DecodeWeight::kFp8 && !C::kSingle;
    constexpr uint32_t kShift = kLarge ? kFp8InputShift : 0;
    if constexpr (!kNorm && !decode_integers(kType))
      return make_uint4(v.x + kShift, v.y + kShift, v.z + kShift, v.w + kShift);
    float2 x[4] = {unpack2(v.x), unpack2(v.y), unpack2(v.z), unpack2(v.w)};
    if constexpr (kNorm) {
      constexpr float kScale = kLarge ? kFp8InputScale : 1.0f;
      const float2 g[4] = {unpack2(gains.x), unpack2(gains.y), unpack2(gains.z), unpack2(gains.w)};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        squares = fmaf(x[i].x, x[i].x, fmaf(x[i].y, x[i].y, squares));
        x[i] = make_float2(x[i].x * g[i].x * kScale, x[i].y * g[i].y * kScale);
      }
    }
    if constexpr (decode_integers(kType)) return quantize(x, scale);
    return make_uint4(pack2(x[0].x, x[0].y), pack2(x[1].x, x[1].y), pack2(x[2].x, x[2].y),
                      pack2(x[3].x, x[3].y));
  }

 private:
  // x = scale * (128 * high + low): eight bytes of high, then of low. The scale is one for the four
  // lanes of a segment.
  __device__ static uint4 quantize(const float2 (&x)[4], float& scale) {
    float most = 0x1p-100f;
#pragma unroll
    for (int i = 0; i < 4; ++i) most = fmaxf(most, fmaxf(fabsf(x[i].x), fabsf(x[i].y)));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
    constexpr float kMost = 127 * 128;
    const float inverse = __fdividef(kMost, most);
    // Weights of four bits are multiplied by 16 (decode_weights.cuh).
    scale = most * (decode_four_bits(kType) ? 1 / (16 * kMost) : 1 / kMost);
    uint4 out;
    quantize4(x[0], x[1], inverse, out.x, out.z);
    quantize4(x[2], x[3], inverse, out.y, out.w);
    return out;
  }
  __device__ static void quantize4(float2 a, float2 b, float inverse, uint32_t& high,
                                   uint32_t& low) {
    // The lowest 16 bits of the sum are the integer plus 64: its upper part is `high`, and what
    // remains is `low` plus 64.
    constexpr float kMagic = 12582912.0f + 64;
    const uint32_t u0 = __float_as_uint(fmaf(a.x, inverse, kMagic)),
                   u1 = __float_as_uint(fmaf(a.y, inverse, kMagic)),
                   u2 = __float_as_uint(fmaf(b.x, inverse, kMagic)),
                   u3 = __float_as_uint(fmaf(b.y, inverse, kMagic));
    high = __byte_perm(__byte_perm(u0 + u0, u1 + u1, 0x0051), __byte_perm(u2 + u2, u3 + u3, 0x0051),
                       0x5410);
    low = __byte_perm(__byte_perm(u0, u1, 0x0040), __byte_perm(u2, u3, 0x0040), 0x5410);
    low = ((low | 0x80808080u) - 0x40404040u) ^ 0x80808080u;  // each byte minus 64
  }
  const DecodeInstruction& in_;
  const uint16_t* from_ = nullptr;
  uint32_t mask_, pattern_;
};

// What the tensor cores take of eight elements from `element` on, to the place that
// stage_vectors() describes.
template <DecodeWeight kType>
__device__ __forceinline__ void put_staged(uint4* to, float* scales, int element, uint4 x,
                                           float scale) {
  if constexpr (decode_integers(kType)) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    auto* planes = reinterpret_cast<uint2*>(to + element / 32 * 4);
    planes[lane % 4] = make_uint2(x.x, x.y);
    planes[lane % 4 + 4] = make_uint2(x.z, x.w);
    if (lane % 4 == 0) scales[element / 32] = scale;
  } else if constexpr (decode_16_bits(kType)) {
    to[element / 8] = make_uint4(x.x, x.z, x.y, x.w);  // see add_16_bits_single()
  } else {
    to[element / 8] = x;
  }
}

// One sequence: the consumer's segments go to shared memory, where the input lies in order;
// `scales` has the scale of each segment of kQ8 and kQ4, and of these a segment has 32 bytes of
// high and 32 of low (decode_weights.cuh). Returns this lane's part of the sum of squares. kAtOnce:
// vectors that a lane loads together.
template <int kAtOnce, bool kNorm, class C, DecodeWeight kType>
__device__ float stage_vectors(DecodeThread<C>& t, const InputReader<C, kType>& reader,
                               const MatvecWork& work, uint4* to, float* scales) {
  // A lane loads one vector of a part, or two if there are more than eight segments. If there are
  // too few, it loads the last one again.
  const int more = work.segments > 8 ? 1 : 0, last = work.segments * 4 - 1;
  const int count = work.parts << more;
  float squares = 0;
#pragma unroll 1
  for (int first = 0; first < count; first += kAtOnce) {
    uint4 values[kAtOnce] = {};
    uint4 gains[kAtOnce] = {};
    const int here = count - first;
    auto at = [&](int j) {
      const int i = first + j;
      return (i >> more) * work.width + work.first * 32 + min((i & more) * 32 + t.lane, last) * 8;
    };
    if constexpr (kNorm) {
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j)
        if (j < here) gains[j] = reader.gains(at(j));
    }
    t.poll_each(
        values, here, [&](uint4& v, int j, bool wanted) { reader.load(v, at(j), wanted); },
        [&](uint4 v, int) { return reader.ready(v); },
        [&](uint4 v, int j) {
          float more_squares = 0, scale = 0;
          uint4 x = reader.template convert<kNorm>(v, gains[j], more_squares, scale);
          if ((first + j & more) * 32 + t.lane > last) return;
          squares += more_squares;
          put_staged<kType>(to, scales, at(j), x, scale);
        });
  }
  return squares;
}

// bf16 become f16 after they are multiplied with a power of two, so that the largest is below 2^14.
class HalfScale {
 public:
  // The largest magnitudes so far, as the bits of two bf16.
  __device__ static uint32_t larger(uint32_t most, uint4 v) {
    return __vmaxu2(most, __vmaxu2(__vmaxu2(v.x & 0x7fff7fffu, v.y & 0x7fff7fffu),
                                   __vmaxu2(v.z & 0x7fff7fffu, v.w & 0x7fff7fffu)));
  }
  __device__ static uint32_t larger_half(uint32_t most) { return max(most >> 16, most & 0xffffu); }
  __device__ explicit HalfScale(uint32_t most)  // of larger_half()
      : exponent_(max(most >> 7, 24u)), scale_(__uint_as_float((2 * 127 + 13 - exponent_) << 23)) {}
  __device__ uint32_t operator()(float a, float b) const {
    const __half2 h = __floats2half2_rn(a * scale_, b * scale_);
    return *reinterpret_cast<const uint32_t*>(&h);
  }
  __device__ uint32_t operator()(uint32_t word) const {
    const float2 x = unpack2(word);
    return (*this)(x.x, x.y);
  }
  __device__ float inverse() const { return __uint_as_float((exponent_ - 13) << 23); }

 private:
  uint32_t exponent_;
  float scale_;
};

// kFp8, kF16: the bf16 that this consumer has staged become f16; kFp8: of each four, the even ones
// come first. Returns the inverse of their scale.
template <DecodeWeight kType, class C>
__device__ float scale_to_half(DecodeThread<C>& t, const MatvecWork& work, uint4* staged) {
  const int more = work.segments > 8 ? 1 : 0, last = work.segments * 4 - 1;
  const int count = work.parts << more;
  auto at = [&](int i) {  // as in stage_vectors(): a lane finds what it wrote
    return ((i >> more) * work.width + work.first * 32) / 8 + (i & more) * 32 + t.lane;
  };
  auto inside = [&](int i) { return (i & more) * 32 + t.lane <= last; };
  uint32_t most = 0;
#pragma unroll 4
  for (int i = 0; i < count; ++i)
    if (inside(i)) most = HalfScale::larger(most, staged[at(i)]);
  const HalfScale half(__reduce_max_sync(kAllLanes, HalfScale::larger_half(most)));
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    if (!inside(i)) continue;
    const uint4 v = staged[at(i)];
    if constexpr (kType == DecodeWeight::kF16) {
      staged[at(i)] = make_uint4(half(v.x), half(v.y), half(v.z), half(v.w));
    } else {
      const float2 a = unpack2(v.x), b = unpack2(v.y), c = unpack2(v.z), d = unpack2(v.w);
      staged[at(i)] = make_uint4(half(a.x, b.x), half(a.y, b.y), half(c.x, d.x), half(c.y, d.y));
    }
  }
  return half.inverse();
}

// Returns the scale of the sums.
template <DecodeWeight kType, class C>
__device__ float stage_single(DecodeThread<C>& t, const DecodeInstruction& in,
                              const MatvecWork& work, uint4* to, float* scales, int turn) {
  InputReader<C, kType> reader(t, in, 0);
  if (opaque(in.flags) & kNormInput) {
    float squares = warp_sum(stage_vectors<4, true>(t, reader, work, to, scales));
    if (t.lane == 0) t.shared.squares[turn][0][t.warp] = squares;
  } else {
    stage_vectors<8, false>(t, reader, work, to, scales);
  }
  float scale = 1;
  if constexpr (kType == DecodeWeight::kFp8 || kType == DecodeWeight::kF16)
    scale = scale_to_half<kType>(t, work, to);
  __syncwarp();
  return scale;
}

// Several sequences: lane l keeps the input of sequence l / 4 in registers, kHeldSegments of it.
template <class C, DecodeWeight kType>
class BatchInput {
 public:
  // scales: of this consumer, kQ8, kQ4 and kF16.
  __device__ BatchInput(DecodeThread<C>& t, const DecodeInstruction& in, const MatvecWork& work,
                        float (*scales)[kMaxBatch])
      : scales_(scales),
        t_(t),
        work_(work),
        reader_(t, in, min(t.lane / 4, t.launch.batch - 1)),
        norm_(in.flags & kNormInput),
        mine_(t.lane / 4 < t.launch.batch) {}
  // Where segments of this part are kept; a second part follows the first.
  __device__ static constexpr int place(int part, int s) { return part * 8 + s; }
  __device__ int element(int part, int s) const {
    return part * work_.width + (work_.first + s) * 32 + t_.lane % 4 * 8;
  }
  // Asks for a segment; lanes without a sequence get the last one's and multiply by nothing.
  __device__ __forceinline__ void load(int place, int part, int s) {
    reader_.load(x[place], element(part, s), true);
  }
  // Waits for parts [part, part + parts), the first at place 0, and converts them. `asked`: all
  // was loaded with load().
  __device__ void settle(int part, int parts, int turn, bool asked) {
    auto at = [&](int i) { return element(part + part_of(i, parts), segment_of(i, parts)); };
    auto load = [&](uint4& v, int i, bool wanted) {
      reader_.load(v, at(i), wanted && exists(i, parts));
    };
    auto ready = [&](uint4 v, int i) { return !exists(i, parts) || reader_.ready(v); };
    // A lane loads the gains of every eighth segment, before it waits if it has registers for them.
    uint4 gains[kHeldSegments / 8] = {};
    auto load_gains = [&] {
#pragma unroll
      for (int h = 0; norm_ && h < kHeldSegments / 8; ++h)
        if (exists(8 * h + t_.lane / 4, parts)) gains[h] = reader_.gains(at(8 * h + t_.lane / 4));
    };
    constexpr bool kEarly = kType != DecodeWeight::kF16;
    if constexpr (kEarly) load_gains();
    t_.poll_all(x, load, ready, !asked);
    if constexpr (!kEarly) load_gains();
    if (norm_)
      convert_all<true>(parts, gains);
    else
      convert_all<false>(parts, gains);
    if constexpr (kType == DecodeWeight::kF16) scale_to_half(parts);
    if constexpr (decode_integers(kType) || kType == DecodeWeight::kF16) __syncwarp();
    if (!norm_) return;
    float squares = squares_ + __shfl_xor_sync(kAllLanes, squares_, 1);
    squares += __shfl_xor_sync(kAllLanes, squares, 2);
    if (t_.lane % 4 == 0 && mine_) t_.shared.squares[turn][t_.lane / 4][t_.warp] = squares;
  }

  // The scales of this lane's columns of the tensor cores.
  __device__ __forceinline__ float2 scale(int place) const {
    if constexpr (!decode_integers(kType)) return make_float2(1, 1);
    return reinterpret_cast<const float2*>(scales_[place])[t_.lane % 4];
  }

  uint4 x[kHeldSegments] = {};

 private:
  // The first scale of a sequence becomes that of its sums.
  __device__ __forceinline__ void scale_to_half(int parts) {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < kHeldSegments; ++i)
      if (exists(i, parts)) most = HalfScale::larger(most, x[i]);
    most = HalfScale::larger_half(most);
    most = max(most, __shfl_xor_sync(kAllLanes, most, 1));
    most = max(most, __shfl_xor_sync(kAllLanes, most, 2));
    const HalfScale half(most);
#pragma unroll
    for (int i = 0; i < kHeldSegments; ++i)
      x[i] = make_uint4(half(x[i].x), half(x[i].y), half(x[i].z), half(x[i].w));
    if (t_.lane % 4 == 0) scales_[0][t_.lane / 4] = half.inverse();
  }
  template <bool kNorm>
  __device__ __forceinline__ void convert_all(int parts, const uint4 (&all)[kHeldSegments / 8]) {
#pragma unroll
    for (int i = 0; i < kHeldSegments; ++i) {
      if (!exists(i, parts)) continue;
      uint4 gains = make_uint4(0, 0, 0, 0);
      if constexpr (kNorm) {
        const int from = i % 8 * 4 + t_.lane % 4;
        gains.x = __shfl_sync(kAllLanes, all[i / 8].x, from);
        gains.y = __shfl_sync(kAllLanes, all[i / 8].y, from);
        gains.z = __shfl_sync(kAllLanes, all[i / 8].z, from);
        gains.w = __shfl_sync(kAllLanes, all[i / 8].w, from);
      }
      float squares = 0, scale = 0;
      uint4 v = reader_.template convert<kNorm>(x[i], gains, squares, scale);
      x[i] = mine_ ? v : make_uint4(0, 0, 0, 0);
      squares_ += squares;
      if (decode_integers(kType) && t_.lane % 4 == 0) scales_[i][t_.lane / 4] = scale;
    }
  }
  // With two parts each has eight places, with one it has all.
  __device__ static __forceinline__ int part_of(int i, int parts) { return parts > 1 ? i / 8 : 0; }
  __device__ static __forceinline__ int segment_of(int i, int parts) {
    return parts > 1 ? i % 8 : i;
  }
  __device__ __forceinline__ bool exists(int i, int parts) const {
    return segment_of(i, parts) < work_.segments;
  }
  float (*scales_)[kMaxBatch];
  DecodeThread<C>& t_;
  const MatvecWork& work_;
  InputReader<C, kType> reader_;
  bool norm_, mine_;
  float squares_ = 0;  // of this lane, over all parts so far
};

}  // namespace tokamak::cuda
