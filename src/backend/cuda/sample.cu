// Sampling on the device (sample.h). Nothing sorts the vocabulary: top-k sorts a few candidates,
// and the other filters need none. They keep a prefix of the tokens in the order of their logits,
// so the winner among all tokens is the winner among those kept if it is kept itself; if it is not,
// neither is any token after it, and the next winner is looked for among those before it.
#include "backend/cuda/sample.h"

#include "backend/cuda/keyed_noise.cuh"
#include "backend/cuda/ops/number.cuh"

namespace tokamak::cuda {
namespace sampling {

constexpr int kWarps = kSampleThreads / 32;
constexpr double kMaxNoise = 36.75;  // what the noise cannot exceed

struct Best {
  double score = -INFINITY;
  int token = 0x7fffffff;
  TK_DEVICE void take(double s, int t) {
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
template <int threads = kSampleThreads>
TK_DEVICE Best block_best(Best b, SampleShared& shared) {
  for (int d = 16; d > 0; d /= 2) {
    double score = lane_xor(b.score, d);
    int token = lane_xor(b.token, d);
    b.take(score, token);
  }
  sync_block();
  if (threadIdx.x % 32 == 0) shared.best[threadIdx.x / 32] = b;
  sync_block();
  for (int w = 0; w < threads / 32; ++w) b.take(shared.best[w].score, shared.best[w].token);
  return b;
}

TK_DEVICE double warp_total(double v) {
  for (int d = 16; d > 0; d /= 2) v += lane_xor(v, d);
  return v;
}
TK_DEVICE double block_total(double v, SampleShared& shared) {
  v = warp_total(v);
  sync_block();
  if (threadIdx.x % 32 == 0) shared.sums[threadIdx.x / 32] = v;
  sync_block();
  double total = 0;
  for (int w = 0; w < kWarps; ++w) total += shared.sums[w];
  return total;
}

// The host's e^x for x <= 0 (backend/common/logits_math.h), to the bit: no fused operations.
TK_DEVICE float host_exp(float x) {
  float clamped = x < -86.0f ? -86.0f : x;
  float whole = add_rn(mul_rn(clamped, 1.44269504f), 12582912.0f);
  int exponent = static_cast<int>(float_bits(whole)) - 0x4B400000;
  whole = add_rn(whole, -12582912.0f);
  float r = add_rn(add_rn(clamped, -mul_rn(whole, 0.693359375f)), -mul_rn(whole, -2.12194440e-4f));
  float p = 1.9875691500e-4f;
  p = add_rn(mul_rn(p, r), 1.3981999507e-3f);
  p = add_rn(mul_rn(p, r), 8.3334519073e-3f);
  p = add_rn(mul_rn(p, r), 4.1665795894e-2f);
  p = add_rn(mul_rn(p, r), 1.6666665459e-1f);
  p = add_rn(mul_rn(p, r), 5.0000001201e-1f);
  p = add_rn(add_rn(mul_rn(mul_rn(p, r), r), r), 1.0f);
  float scaled = mul_rn(p, bits_float(static_cast<uint32_t>(exponent + 127) << 23));
  return x < -86.0f ? 0.0f : scaled;
}

// Larger for better tokens: by logit, then by lower id.
TK_DEVICE unsigned long long order_key(float logit, int token) {
  uint32_t bits = float_bits(logit == 0 ? 0.0f : logit);  // -0 and 0 are equal
  bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(bits) << 32 | (0xffffffffu - static_cast<uint32_t>(token));
}
TK_DEVICE float key_logit(unsigned long long key) {
  uint32_t bits = static_cast<uint32_t>(key >> 32);
  return bits_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}
TK_DEVICE int key_token(unsigned long long key) {
  return static_cast<int>(0xffffffffu - static_cast<uint32_t>(key));
}

// Descending; n is a power of two.
TK_DEVICE void sort_keys(unsigned long long* keys, int n) {
  for (int size = 2; size <= n; size *= 2)
    for (int stride = size / 2; stride > 0; stride /= 2) {
      sync_block();
      for (int i = static_cast<int>(threadIdx.x); i < n / 2; i += kSampleThreads) {
        int low = 2 * stride * (i / stride) + i % stride, high = low + stride;
        bool descending = (low & size) == 0;
        unsigned long long a = keys[low], b = keys[high];
        if ((a < b) == descending) {
          keys[low] = b;
          keys[high] = a;
        }
      }
    }
  sync_block();
}

// At least k logits reach the result: the k-th largest of the threads' own maxima.
TK_DEVICE float best_bound(float own_peak, int k, SampleShared& shared) {
  if (k > kSampleThreads) return -INFINITY;
  sync_block();
  shared.keys[threadIdx.x] = order_key(own_peak, static_cast<int>(threadIdx.x));
  sort_keys(shared.keys, kSampleThreads);
  float bound = key_logit(shared.keys[k - 1]);
  sync_block();
  return bound;
}

// Sorts the tokens that reach `least`, best first, into shared.keys. Their number, which may be
// more than there is room for.
TK_DEVICE int collect_best(const float* logits, int vocab, float least, SampleShared& shared) {
  if (threadIdx.x == 0) shared.count = 0;
  sync_block();
  for (int i = static_cast<int>(threadIdx.x); i < vocab; i += kSampleThreads) {
    float x = logits[i];
    if (x < least || x == -INFINITY) continue;
    int at = shared_add(&shared.count, 1);
    if (at < kSampleCandidates) shared.keys[at] = order_key(x, i);
  }
  sync_block();
  const int found = shared.count;
  if (found > kSampleCandidates) return found;
  int size = 2;
  while (size < found) size *= 2;
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kSampleThreads)
    if (i >= found) shared.keys[i] = 0;
  sort_keys(shared.keys, size);
  return found;
}

// The largest of the logits that a thread looks at. They come in ascending order of tokens, so the
// first of equal ones stays.
struct OwnPeak {
  float logit = -INFINITY;
  int token = 0x7fffffff;
  bool edited = false;  // -infinity is a removed token
  bool bad = false;     // not a number, or infinite

  TK_DEVICE void take(float x, int t) {
    if (x > logit) {
      logit = x;
      token = t;
    }
    bad = bad || !(edited ? x < INFINITY : fabsf(x) < INFINITY);
  }
  // Tokens [begin, end) of a row, by a block. Rows of whole vectors: several are asked for at once.
  TK_DEVICE void look_through(const float* logits, int vocab, int begin, int end, int threads) {
    const int thread = static_cast<int>(threadIdx.x);
    if (vocab % 4 != 0) {
      for (int i = begin + thread; i < end; i += threads) take(logits[i], i);
      return;
    }
    constexpr int kAtOnce = 8;
    const auto* from = reinterpret_cast<const Vec4*>(logits);
    for (int first = begin / 4 + thread; first < end / 4; first += kAtOnce * threads) {
      Vec4 x[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int at = first + k * threads;
        x[k] = from[at < end / 4 ? at : 0];
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int at = first + k * threads;
        if (at >= end / 4) break;  // a token must not count for two threads
        take(x[k].x, at * 4);
        take(x[k].y, at * 4 + 1);
        take(x[k].z, at * 4 + 2);
        take(x[k].w, at * 4 + 3);
      }
    }
  }
};

class RowSampler {
 public:
  // edited: tokens may have been removed, which then are -infinity.
  TK_DEVICE RowSampler(const SampleRowParams& params, const float* logits, int vocab, bool edited,
                       SampleShared& shared)
      : p_(params), logits_(logits), vocab_(vocab), edited_(edited), shared_(shared) {}

  // peaks: of the row's parts, or null.
  TK_DEVICE int choose(const SamplePeak* peaks = nullptr) {
    if (threadIdx.x == 0) shared_.bad = 0;
    sync_block();
    OwnPeak own{.edited = edited_};
    if (!peaks || keeps_best()) {
      own.look_through(logits_, vocab_, 0, vocab_, kSampleThreads);
    } else if (threadIdx.x < kSampleParts) {
      own.logit = peaks[threadIdx.x].logit;
      own.token = peaks[threadIdx.x].token;
      own.bad = own.token == kSampleFailed;
    }
    own_peak_ = own.logit;
    if (own.bad) shared_.bad = 1;
    Best top;
    if (own.logit > -INFINITY) top.take(own.logit, own.token);
    top = block_best(top, shared_);
    if (shared_.bad) return kSampleFailed;
    if (top.score == -INFINITY) return kSampleNothing;
    if (p_.temperature <= 0 || p_.top_k == 1) return top.token;
    top_ = top.token;
    peak_ = static_cast<float>(top.score);
    inverse_ = 1.0f / p_.temperature;
    bound_ = add_rn(peak_, mul_rn(p_.log_min_p, p_.temperature));
    return p_.top_k > 0 && p_.top_k < vocab_ ? choose_sorted() : choose_by_order();
  }

 private:
  // Whether the threads' own peaks are used (choose_sorted).
  TK_DEVICE bool keeps_best() const { return p_.temperature > 0 && p_.top_k > 1; }
  TK_DEVICE float weight(float logit) const {
    return host_exp(mul_rn(add_rn(logit, -peak_), inverse_));
  }
  TK_DEVICE double relative(float logit) const {
    return (static_cast<double>(logit) - static_cast<double>(peak_)) /
           static_cast<double>(p_.temperature);
  }
  TK_DEVICE double score(float logit, int token) const {
    return relative(logit) + keyed_gumbel(p_.seed, p_.choice, p_.position, token);
  }

  // The winner among tokens that are better than `pivot` and reach the bound.
  TK_DEVICE Best winner(unsigned long long pivot) {
    Best best;
    if (order_key(peak_, top_) > pivot) best.take(score(peak_, top_), top_);
    uint64_t counter = static_cast<uint64_t>(static_cast<uint32_t>(p_.choice)) << 32 |
                       static_cast<uint32_t>(p_.position);
    for (int first = 2 * static_cast<int>(threadIdx.x); first < vocab_;
         first += 2 * kSampleThreads) {
      PhiloxBlock block = philox(p_.seed, counter, static_cast<uint32_t>(first) / 2);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        int token = first + j;
        if (token >= vocab_) continue;
        float x = logits_[token];
        if (x < bound_ || x == -INFINITY || order_key(x, token) <= pivot) continue;
        // noise <= -log(1 - u): most tokens are ruled out without a logarithm. The margin covers
        // the rounding of float.
        float lead = static_cast<float>(relative(x) - best.score);
        float rest = 1.0f - static_cast<float>(block.word[2 * j]) * 0x1p-32f;
        if (lead < -kMaxNoise || fast_exp(lead) * 1.001f + 1e-6f < rest) continue;
        best.take(score(x, token), token);
      }
    }
    return block_best(best, shared_);
  }

  TK_DEVICE int choose_by_order() {
    double wanted = 0;
    if (p_.top_p < 1) {
      double mass = 0;
      for (int i = static_cast<int>(threadIdx.x); i < vocab_; i += kSampleThreads)
        if (logits_[i] >= bound_) mass += weight(logits_[i]);
      wanted = static_cast<double>(p_.top_p) * block_total(mass, shared_);
    }
    for (unsigned long long pivot = 0;;) {
      Best best = winner(pivot);
      if (best.token == 0x7fffffff) return top_;  // nothing before the pivot: top_p is 0
      if (p_.top_p >= 1) return best.token;
      unsigned long long key = order_key(logits_[best.token], best.token);
      double better = 0;
      for (int i = static_cast<int>(threadIdx.x); i < vocab_; i += kSampleThreads)
        if (order_key(logits_[i], i) > key) better += weight(logits_[i]);
      if (block_total(better, shared_) < wanted) return best.token;
      pivot = key;
    }
  }

  TK_DEVICE int choose_sorted() {
    float least = fmaxf(bound_, best_bound(own_peak_, p_.top_k, shared_));
    const int found = collect_best(logits_, vocab_, least, shared_);
    if (found > kSampleCandidates) return kSampleOnHost;
    int kept = found < p_.top_k ? found : p_.top_k;
    if (p_.top_p < 1) kept = keep_top_p(kept);
    Best best;
    for (int i = static_cast<int>(threadIdx.x); i < kept; i += kSampleThreads) {
      int token = key_token(shared_.keys[i]);
      best.take(score(logits_[token], token), token);
    }
    return block_best(best, shared_).token;
  }
  // How many of the sorted candidates stay: those with less than top_p of the mass before them.
  TK_DEVICE int keep_top_p(int count) {
    constexpr int kEach = kSampleCandidates / kSampleThreads;
    const int first = static_cast<int>(threadIdx.x) * kEach,
              lane = static_cast<int>(threadIdx.x % 32);
    const int end = first + kEach < count ? first + kEach : count;
    double own = 0;
    for (int i = first; i < end; ++i) own += weight(key_logit(shared_.keys[i]));
    double before = own;
    for (int d = 1; d < 32; d *= 2) {
      double below = lane_up(before, d);
      if (lane >= d) before += below;
    }
    double wanted = static_cast<double>(p_.top_p) * block_total(own, shared_);
    before -= own;
    for (int w = 0; w < static_cast<int>(threadIdx.x) / 32; ++w) before += shared_.sums[w];
    int kept = 0;
    for (int i = first; i < end; ++i) {
      if (i == 0 || before < wanted) ++kept;
      before += weight(key_logit(shared_.keys[i]));
    }
    return static_cast<int>(block_total(kept, shared_));
  }

  const SampleRowParams& p_;
  const float* logits_;
  int vocab_, top_ = 0;
  bool edited_;
  float own_peak_ = 0, peak_ = 0, inverse_ = 1, bound_ = 0;
  SampleShared& shared_;
};

// Penalties, bias, mask: the host's arithmetic, without fused operations.
TK_DEVICE void edit_row(const SampleTableLaunch& l, const SampleTableRow& row, float* x) {
  for (int i = static_cast<int>(threadIdx.x); i < row.counts; i += kSampleThreads) {
    const SampleCount c = l.counts[row.first_count + i];
    float v = x[c.token];
    v = v > 0 ? v / row.repetition : mul_rn(v, row.repetition);
    if (c.generated > 0) v = add_rn(v, -add_rn(mul_rn(row.frequency, c.generated), row.presence));
    x[c.token] = v;
  }
  sync_block();
  const SampleBias* biases = l.biases + row.first_bias;
  for (int i = static_cast<int>(threadIdx.x); i < row.biases; i += kSampleThreads) {
    const int token = biases[i].token;
    if (i > 0 && biases[i - 1].token == token) continue;  // added with the first of them
    float v = x[token];
    for (int j = i; j < row.biases && biases[j].token == token; ++j) v = add_rn(v, biases[j].value);
    x[token] = v;
  }
  sync_block();
  if (row.mask < 0) return;
  const uint32_t* mask = l.masks + static_cast<int64_t>(row.mask) * l.mask_words;
  for (int i = static_cast<int>(threadIdx.x); i < l.vocab; i += kSampleThreads)
    if ((mask[i / 32] >> (i % 32) & 1) == 0) x[i] = -INFINITY;
  sync_block();
}

TK_DEVICE int choose_in_table(const SampleTableLaunch& l, SampleShared& shared) {
  const SampleTableRow& row = l.rows[blockIdx.x];
  if (row.target == kSampleTargetNone) return kSampleNone;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * l.vocab;
  if (threadIdx.x == 0) shared.bad = 0;
  sync_block();
  bool bad = false;
  for (int i = static_cast<int>(threadIdx.x); i < l.vocab; i += kSampleThreads) {
    float x = l.logits[first + i];
    bad = bad || !(fabsf(x) < INFINITY);
    l.edited[first + i] = x;
  }
  if (bad) shared.bad = 1;
  sync_block();
  if (shared.bad) return kSampleFailed;
  if (row.target >= 0) return row.target;
  edit_row(l, row, l.edited + first);
  return RowSampler(row.choice, l.edited + first, l.vocab, true, shared).choose();
}

// Log-probabilities of a token and of the best ones.
TK_DEVICE void report_row(const SampleTableLaunch& l, int token, SampleShared& shared) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * l.most_tops;
  for (int i = static_cast<int>(threadIdx.x); i < l.most_tops; i += kSampleThreads) {
    l.tops[first + i] = -1;
    l.values[first + i] = 0;
  }
  if (threadIdx.x == 0) l.logprobs[blockIdx.x] = 0;
  const int wanted = l.rows[blockIdx.x].tops;
  if (wanted < 0 || token < 0) return;
  const float* logits = l.logits + static_cast<int64_t>(blockIdx.x) * l.vocab;
  Best top;
  for (int i = static_cast<int>(threadIdx.x); i < l.vocab; i += kSampleThreads)
    top.take(logits[i], i);
  const float own_peak = static_cast<float>(top.score),
              peak = static_cast<float>(block_best(top, shared).score);
  double mass = 0;
  for (int i = static_cast<int>(threadIdx.x); i < l.vocab; i += kSampleThreads)
    mass += host_exp(add_rn(logits[i], -peak));
  const double total = static_cast<double>(peak) + log(block_total(mass, shared));
  auto logprob = [&](int of) {
    return static_cast<float>(static_cast<double>(logits[of]) - total);
  };
  if (threadIdx.x == 0) l.logprobs[blockIdx.x] = logprob(token);
  if (wanted == 0) return;
  const int found = collect_best(logits, l.vocab, best_bound(own_peak, wanted, shared), shared);
  if (found > kSampleCandidates) {
    if (threadIdx.x == 0) l.tops[first] = kSampleOnHost;
    return;
  }
  for (int i = static_cast<int>(threadIdx.x); i < wanted && i < found; i += kSampleThreads) {
    const int best = key_token(shared.keys[i]);
    l.tops[first + i] = best;
    l.values[first + i] = logprob(best);
  }
}

}  // namespace sampling

// A block per part of a row and row.
TK_KERNEL(sample_peaks, SampleLaunch, kPeakThreads) {
  __shared__ sampling::SampleShared shared;
  allow_next();
  wait_for_earlier();
  const int part = static_cast<int>(blockIdx.x), row = static_cast<int>(blockIdx.y);
  if (a.rows[row].row == kSamplePadding) return;
  const int width = (a.vocab / kSampleParts + 4) / 4 * 4;
  const int begin = part * width, end = begin + width < a.vocab ? begin + width : a.vocab;
  if (threadIdx.x == 0) shared.bad = 0;
  sync_block();
  sampling::OwnPeak own;
  own.look_through(a.logits + static_cast<int64_t>(row) * a.vocab, a.vocab, begin, end,
                   kPeakThreads);
  if (own.bad) shared.bad = 1;
  sampling::Best top;
  if (own.logit > -INFINITY) top.take(own.logit, own.token);
  top = sampling::block_best<kPeakThreads>(top, shared);
  if (threadIdx.x == 0)
    a.peaks[row * kSampleParts + part] = {static_cast<float>(top.score),
                                          shared.bad ? kSampleFailed : top.token};
}

// A block per row.
TK_KERNEL(sample_rows, SampleLaunch, kSampleThreads) {
  __shared__ sampling::SampleShared shared;
  wait_for_earlier();
  if (a.rows[blockIdx.x].row == kSamplePadding) return;
  const float* logits = a.logits + static_cast<int64_t>(blockIdx.x) * a.vocab;
  const SamplePeak* peaks = a.peaks ? a.peaks + blockIdx.x * kSampleParts : nullptr;
  int token =
      sampling::RowSampler(a.rows[blockIdx.x], logits, a.vocab, false, shared).choose(peaks);
  if (threadIdx.x == 0) (*a.host_tokens)[blockIdx.x] = token;
  if (threadIdx.x == 0 && a.last) a.last[a.rows[blockIdx.x].row] = token > 0 ? token : 0;
}

TK_KERNEL(stage_inputs, StageLaunch, kStageThreads) {
  const int i = static_cast<int>(blockIdx.x * kStageThreads + threadIdx.x);
  if (i >= a.pieces) return;
  StagedPiece piece = a.from[i];
  for (int t = 0; t < a.tables && i >= a.plain; ++t) {
    const StagedTable& table = a.table[t];
    const int at = i - table.first;
    if (at >= 0 && at < table.pieces)
      table.to[int64_t{at / table.width} * table.stride + at % table.width] = piece;
  }
  if (i >= a.plain) return;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int id = 4 * i + j - a.first_id;
    if (id >= 0 && id < a.ids && piece.words[j] < 0) piece.words[j] = a.last[-1 - piece.words[j]];
  }
  a.to[i] = piece;
}

// Likewise.
TK_KERNEL(sample_table, SampleTableLaunch, kSampleThreads) {
  __shared__ sampling::SampleShared shared;
  const int token = sampling::choose_in_table(a, shared);
  if (threadIdx.x == 0) a.tokens[blockIdx.x] = token;
  sampling::report_row(a, token, shared);
}

}  // namespace tokamak::cuda
