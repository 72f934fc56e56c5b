#pragma once
// Attention of one warp over tiles of 16 cached positions: up to eight query heads that share a
// key/value head, on the tensor cores, with a running softmax. Queries, keys and values are bf16
// or, where kHalf is set, f16; weights are rounded to the same type.
#include "backend/cuda/device.cuh"

namespace tokamak::cuda {

constexpr int kTilePositions = 16;

// Four matrices of 8 x 8 values; a lane gives the address of one of the 32 rows.
TK_DEVICE void load_matrices(uint32_t (&m)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row)
               : "memory");
}
TK_DEVICE void load_transposed(uint32_t (&m)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row)
               : "memory");
}

template <int kHead, bool kHalf>
class AttendTiles {
 public:
  // queries: [heads, stride] in shared memory.
  __device__ AttendTiles(const uint16_t* queries, int stride, int heads, float scale)
      : lane_(threadIdx.x % 32), scale_(scale * 1.44269504f) {
    const uint16_t* row = queries + lane_ / 4 * stride + lane_ % 4 * 2;
#pragma unroll
    for (int j = 0; j < kSteps; ++j)
#pragma unroll
      for (int k = 0; k < 2; ++k)
        queries_[j][k] =
            lane_ / 4 < heads ? *reinterpret_cast<const uint32_t*>(row + j * 16 + k * 8) : 0;
  }

  // Swizzled tiles (cache_map.h) of keys and of values; the first `valid` positions count.
  __device__ void add(uint32_t keys, uint32_t values, int valid) {
    float score[2][2][4] = {};  // of eight positions; even and odd steps
    const uint32_t row = lane_ % 8 * 128, key = row + (lane_ / 8 ^ lane_ % 8) * 16;
#pragma unroll
    for (int j = 0; j < kHead / 32; ++j)
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        uint32_t k[4];  // 32 dimensions
        load_matrices(k, keys + (g * kAtoms + j / 2) * kAtom + (key ^ j % 2 * 64));
        mma_low_rows<kHalf>(score[g][0], queries_[2 * j][0], queries_[2 * j][1], k[0], k[1]);
        mma_low_rows<kHalf>(score[g][1], queries_[2 * j + 1][0], queries_[2 * j + 1][1], k[2],
                            k[3]);
      }
    uint32_t v[kSteps][4];  // before the weights: they need not wait for them
    const uint32_t value = lane_ / 16 * kAtoms * kAtom + row + (lane_ / 8 % 2 ^ lane_ % 8) * 16;
#pragma unroll
    for (int j = 0; j < kSteps; ++j)
      load_transposed(v[j], values + j / 4 * kAtom + (value ^ j % 4 * 32));
    float s[4] = {score[0][0][0] + score[0][1][0], score[0][0][1] + score[0][1][1],
                  score[1][0][0] + score[1][1][0], score[1][0][1] + score[1][1][1]};
    weigh(s, valid);
    if (valid < kTilePositions) clear(v, valid);
    const uint32_t low = pack(s[0], s[1]), high = pack(s[2], s[3]);
#pragma unroll
    for (int j = 0; j < kSteps; ++j) multiply(sums_[j], v[j], low, high);
  }

  // Base-2 logarithm of the largest score, sum of the weights relative to it; for head lane / 4.
  __device__ float peak() const { return peak_; }
  __device__ float mass() const { return mass_; }
  __device__ bool any() const { return mass_ > 0; }
  // to: [heads, stride]
  __device__ void store_sums(float* to, int stride, int heads) const {
#pragma unroll
    for (int j = 0; j < kSteps; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int head = lane_ % 4 * 2 + i % 2;
        if (head < heads) to[head * stride + j * 16 + i / 2 * 8 + lane_ / 4] = sums_[j][i];
      }
  }

 private:
  static constexpr int kSteps = kHead / 16;                // of 16 dimensions
  static constexpr int kAtoms = kHead / 64, kAtom = 1024;  // of eight positions; bytes

  // Scores -> weights. This lane has head lane / 4 at positions 2 * (lane % 4), the next, and both
  // plus 8.
  __device__ void weigh(float (&s)[4], int valid) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      s[i] = lane_ % 4 * 2 + i / 2 * 8 + i % 2 < valid ? s[i] * scale_ : -INFINITY;
    float top = fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3]));
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
    const float peak = fmaxf(peak_, top), rescale = exp2f(peak_ - peak);
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = exp2f(s[i] - peak);
    float mass = (s[0] + s[1]) + (s[2] + s[3]);
    mass += __shfl_xor_sync(kAllLanes, mass, 1);
    mass += __shfl_xor_sync(kAllLanes, mass, 2);
    mass_ = mass_ * rescale + mass;
    peak_ = peak;
    if (!__any_sync(kAllLanes, rescale != 1)) return;
    // This lane's sums are of heads 2 * (lane % 4) and the next.
    const float even = __shfl_sync(kAllLanes, rescale, lane_ % 4 * 8);
    const float odd = __shfl_sync(kAllLanes, rescale, lane_ % 4 * 8 + 4);
#pragma unroll
    for (int j = 0; j < kSteps; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums_[j][i] *= i % 2 ? odd : even;
  }
  // Values that do not count become zero, whatever memory holds there.
  __device__ void clear(uint32_t (&v)[kSteps][4], int valid) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int left = valid - (lane_ % 4 * 2 + half * 8);
      const uint32_t kept = left >= 2 ? 0xffffffffu : left == 1 ? 0xffffu : 0;
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        v[j][2 * half] &= kept;
        v[j][2 * half + 1] &= kept;
      }
    }
  }
  __device__ static uint32_t pack(float a, float b) {
    if constexpr (kHalf) {
      const __half2 v = __floats2half2_rn(a, b);
      return *reinterpret_cast<const uint32_t*>(&v);
    }
    return pack2(a, b);
  }
  // sums[16 dimensions x 8 heads] += values[16 dimensions x 16 positions] * weights
  __device__ static void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (kHalf)
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
          "{%0,%1,%2,%3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
      mma(c, a[0], a[1], a[2], a[3], b0, b1);
  }

  int lane_;
  float scale_, peak_ = -INFINITY, mass_ = 0;
  uint32_t queries_[kSteps][2];
  float sums_[kSteps][4] = {};
};

}  // namespace tokamak::cuda
