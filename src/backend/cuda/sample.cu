// Sampling on the device (sample.h). Nothing sorts the vocabulary: top-k sorts a few candidates,
// and the other filters need none. They keep a prefix of the tokens in the order of their logits,
// so the winner among all tokens is the winner among those kept if it is kept itself; if it is not,
// neither is any token after it, and the next winner is looked for among those before it.
#include "backend/cuda/sample.h"

#include "backend/cuda/device.cuh"
#include "backend/cuda/keyed_noise.cuh"

namespace tokamak::cuda {
namespace {

constexpr int kWarps = kSampleThreads / 32;
constexpr double kMaxNoise = 36.75;  // what the noise cannot exceed

struct Best {
  double score = -INFINITY;
  int token = 0x7fffffff;
  __device__ void take(double s, int t) {
    if (s > score || (s == score && t < token)) {
      score = s;
      token = t;
    }
  }
};

struct SampleShared {
  unsigned long long keys[kSampleCandidates];
  double sums[kWarps];
  Best best[kWarps];
  int count, bad;
};

// The best of all threads, in all threads.
__device__ Best block_best(Best b, SampleShared& shared) {
  for (int d = 16; d > 0; d /= 2) {
    double score = __shfl_xor_sync(kAllLanes, b.score, d);
    int token = __shfl_xor_sync(kAllLanes, b.token, d);
    b.take(score, token);
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared.best[threadIdx.x / 32] = b;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) b.take(shared.best[w].score, shared.best[w].token);
  return b;
}

__device__ double warp_total(double v) {
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(kAllLanes, v, d);
  return v;
}
__device__ double block_total(double v, SampleShared& shared) {
  v = warp_total(v);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared.sums[threadIdx.x / 32] = v;
  __syncthreads();
  double total = 0;
  for (int w = 0; w < kWarps; ++w) total += shared.sums[w];
  return total;
}

// The host's e^x for x <= 0 (backend/common/logits_math.h), to the bit: no fused operations.
__device__ float host_exp(float x) {
  float clamped = x < -86.0f ? -86.0f : x;
  float whole = __fadd_rn(__fmul_rn(clamped, 1.44269504f), 12582912.0f);
  int exponent = __float_as_int(whole) - 0x4B400000;
  whole = __fsub_rn(whole, 12582912.0f);
  float r = __fsub_rn(__fsub_rn(clamped, __fmul_rn(whole, 0.693359375f)),
                      __fmul_rn(whole, -2.12194440e-4f));
  float p = 1.9875691500e-4f;
  p = __fadd_rn(__fmul_rn(p, r), 1.3981999507e-3f);
  p = __fadd_rn(__fmul_rn(p, r), 8.3334519073e-3f);
  p = __fadd_rn(__fmul_rn(p, r), 4.1665795894e-2f);
  p = __fadd_rn(__fmul_rn(p, r), 1.6666665459e-1f);
  p = __fadd_rn(__fmul_rn(p, r), 5.0000001201e-1f);
  p = __fadd_rn(__fadd_rn(__fmul_rn(__fmul_rn(p, r), r), r), 1.0f);
  float scaled = __fmul_rn(p, __int_as_float((exponent + 127) << 23));
  return x < -86.0f ? 0.0f : scaled;
}

// Larger for better tokens: by logit, then by lower id.
__device__ unsigned long long order_key(float logit, int token) {
  uint32_t bits = __float_as_uint(logit == 0 ? 0.0f : logit);  // -0 and 0 are equal
  bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(bits) << 32 | (0xffffffffu - static_cast<uint32_t>(token));
}
__device__ float key_logit(unsigned long long key) {
  uint32_t bits = static_cast<uint32_t>(key >> 32);
  return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}
__device__ int key_token(unsigned long long key) {
  return static_cast<int>(0xffffffffu - static_cast<uint32_t>(key));
}

// Descending; n is a power of two.
__device__ void sort_keys(unsigned long long* keys, int n) {
  for (int size = 2; size <= n; size *= 2)
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      for (int i = threadIdx.x; i < n / 2; i += kSampleThreads) {
        int low = 2 * stride * (i / stride) + i % stride, high = low + stride;
        bool descending = (low & size) == 0;
        unsigned long long a = keys[low], b = keys[high];
        if ((a < b) == descending) {
          keys[low] = b;
          keys[high] = a;
        }
      }
    }
  __syncthreads();
}

class RowSampler {
 public:
  __device__ RowSampler(const SampleLaunch& l, SampleShared& shared)
      : p_(l.rows[blockIdx.x]),
        logits_(l.logits + static_cast<int64_t>(blockIdx.x) * l.vocab),
        vocab_(l.vocab),
        shared_(shared) {}

  __device__ int choose() {
    if (threadIdx.x == 0) shared_.bad = shared_.count = 0;
    __syncthreads();
    Best top;
    bool bad = false;
    for (int i = threadIdx.x; i < vocab_; i += kSampleThreads) {
      float x = logits_[i];
      bad = bad || !isfinite(x);
      top.take(x, i);
    }
    if (bad) shared_.bad = 1;
    own_peak_ = static_cast<float>(top.score);
    top = block_best(top, shared_);
    if (shared_.bad) return kSampleFailed;
    if (p_.temperature <= 0 || p_.top_k == 1) return top.token;
    top_ = top.token;
    peak_ = static_cast<float>(top.score);
    inverse_ = __frcp_rn(p_.temperature);
    bound_ = __fadd_rn(peak_, __fmul_rn(p_.log_min_p, p_.temperature));
    return p_.top_k > 0 && p_.top_k < vocab_ ? choose_sorted() : choose_by_order();
  }

 private:
  __device__ float weight(float logit) const {
    return host_exp(__fmul_rn(__fsub_rn(logit, peak_), inverse_));
  }
  __device__ double relative(float logit) const {
    return (static_cast<double>(logit) - static_cast<double>(peak_)) /
           static_cast<double>(p_.temperature);
  }
  __device__ double score(float logit, int token) const {
    return relative(logit) + keyed_gumbel(p_.seed, p_.choice, p_.position, token);
  }

  // The winner among tokens that are better than `pivot` and reach the bound.
  __device__ Best winner(unsigned long long pivot) {
    Best best;
    if (order_key(peak_, top_) > pivot) best.take(score(peak_, top_), top_);
    uint64_t counter = static_cast<uint64_t>(static_cast<uint32_t>(p_.choice)) << 32 |
                       static_cast<uint32_t>(p_.position);
    for (int first = 2 * threadIdx.x; first < vocab_; first += 2 * kSampleThreads) {
      PhiloxBlock block = philox(p_.seed, counter, static_cast<uint32_t>(first) / 2);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        int token = first + j;
        if (token >= vocab_) continue;
        float x = logits_[token];
        if (x < bound_ || order_key(x, token) <= pivot) continue;
        // noise <= -log(1 - u): most tokens are ruled out without a logarithm. The margin covers
        // the rounding of float.
        float lead = static_cast<float>(relative(x) - best.score);
        float rest = 1.0f - static_cast<float>(block.word[2 * j]) * 0x1p-32f;
        if (lead < -kMaxNoise || __expf(lead) * 1.001f + 1e-6f < rest) continue;
        best.take(score(x, token), token);
      }
    }
    return block_best(best, shared_);
  }

  __device__ int choose_by_order() {
    double wanted = 0;
    if (p_.top_p < 1) {
      double mass = 0;
      for (int i = threadIdx.x; i < vocab_; i += kSampleThreads)
        if (logits_[i] >= bound_) mass += weight(logits_[i]);
      wanted = static_cast<double>(p_.top_p) * block_total(mass, shared_);
    }
    for (unsigned long long pivot = 0;;) {
      Best best = winner(pivot);
      if (best.token == 0x7fffffff) return top_;  // nothing before the pivot: top_p is 0
      if (p_.top_p >= 1) return best.token;
      unsigned long long key = order_key(logits_[best.token], best.token);
      double better = 0;
      for (int i = threadIdx.x; i < vocab_; i += kSampleThreads)
        if (order_key(logits_[i], i) > key) better += weight(logits_[i]);
      if (block_total(better, shared_) < wanted) return best.token;
      pivot = key;
    }
  }

  // At least top_k logits reach the result: the k-th largest of the threads' own maxima.
  __device__ float top_k_bound() {
    if (p_.top_k > kSampleThreads) return -INFINITY;
    shared_.keys[threadIdx.x] = order_key(own_peak_, threadIdx.x);
    sort_keys(shared_.keys, kSampleThreads);
    float bound = key_logit(shared_.keys[p_.top_k - 1]);
    __syncthreads();
    return bound;
  }
  __device__ int choose_sorted() {
    float least = fmaxf(bound_, top_k_bound());
    for (int i = threadIdx.x; i < vocab_; i += kSampleThreads) {
      float x = logits_[i];
      if (x < least) continue;
      int at = atomicAdd(&shared_.count, 1);
      if (at < kSampleCandidates) shared_.keys[at] = order_key(x, i);
    }
    __syncthreads();
    const int found = shared_.count;
    if (found > kSampleCandidates) return kSampleOnHost;
    int size = 2;
    while (size < found) size *= 2;
    for (int i = threadIdx.x; i < size; i += kSampleThreads)
      if (i >= found) shared_.keys[i] = 0;
    sort_keys(shared_.keys, size);
    int kept = min(found, p_.top_k);
    if (p_.top_p < 1) kept = keep_top_p(kept);
    Best best;
    for (int i = threadIdx.x; i < kept; i += kSampleThreads) {
      int token = key_token(shared_.keys[i]);
      best.take(score(logits_[token], token), token);
    }
    return block_best(best, shared_).token;
  }
  // How many of the sorted candidates stay: those with less than top_p of the mass before them.
  __device__ int keep_top_p(int count) {
    constexpr int kEach = kSampleCandidates / kSampleThreads;
    const int first = threadIdx.x * kEach, lane = threadIdx.x % 32;
    double own = 0;
    for (int i = first; i < min(first + kEach, count); ++i)
      own += weight(key_logit(shared_.keys[i]));
    double before = own;
    for (int d = 1; d < 32; d *= 2) {
      double below = __shfl_up_sync(kAllLanes, before, d);
      if (lane >= d) before += below;
    }
    double wanted = static_cast<double>(p_.top_p) * block_total(own, shared_);
    before -= own;
    for (int w = 0; w < static_cast<int>(threadIdx.x) / 32; ++w) before += shared_.sums[w];
    int kept = 0;
    for (int i = first; i < min(first + kEach, count); ++i) {
      if (i == 0 || before < wanted) ++kept;
      before += weight(key_logit(shared_.keys[i]));
    }
    return static_cast<int>(block_total(kept, shared_));
  }

  const SampleRowParams p_;
  const float* logits_;
  int vocab_, top_ = 0;
  float own_peak_ = 0, peak_ = 0, inverse_ = 1, bound_ = 0;
  SampleShared& shared_;
};

}  // namespace
}  // namespace tokamak::cuda

extern "C" __global__ void __launch_bounds__(tokamak::cuda::kSampleThreads, 1)
    sample_rows(const __grid_constant__ tokamak::cuda::SampleLaunch launch) {
  __shared__ tokamak::cuda::SampleShared shared;
  int token = tokamak::cuda::RowSampler(launch, shared).choose();
  if (threadIdx.x == 0) launch.tokens[blockIdx.x] = token;
}
