// causal_conv, ssm_scan and gated_delta: threads divide the channels or heads, and each advances
// the states of all sequences in its part, row by row. The order of a row's arithmetic depends on
// nothing else in the step, and the state is stored as f32 after every row, so results do not
// depend on how rows are divided among steps.
#include <algorithm>
#include <cmath>

#include "backend/cpu/kernels.h"
#include "base/error.h"

namespace tokamak::cpu {
namespace {

// The states of the step's sequences. A block of the state's group is one sequence.
class SequenceStates {
 public:
  enum Input : int { kState, kView, kQStart, kKvLen, kX };

  explicit SequenceStates(const OpSite& site) : state_(&site.kv.state(site.in[kState].index)) {
    if (!state_->per_sequence)
      fail(ErrorCode::kCorrupt, "{}: the state is not kept per sequence", site.label);
  }

  // run(first row, end, state, whether the sequence begins) for every sequence, clear(first row,
  // end) for rows of padding.
  template <class Run, class Clear>
  void visit(const Tensor* in, int64_t rows, const StepContext& c, Run&& run, Clear&& clear) const {
    const int32_t *starts = in[kQStart].i32(), *lengths = in[kKvLen].i32();
    const StepInputs::Table& table = c.step->tables[state_->group];
    const KvPlane& plane = state_->planes[0];
    int64_t end = 0;
    for (int64_t b = 0; b < in[kKvLen].elements(); ++b) {
      int64_t first = starts[b];
      end = starts[b + 1];
      if (first == end) continue;
      if (lengths[b] <= 0) {
        clear(first, end);
        continue;
      }
      int64_t block = table.blocks[static_cast<size_t>(b * table.stride)];
      TK_CHECK(block >= 0, "sequence {} has no state", b);
      run(first, end, reinterpret_cast<float*>(plane.panel(block, 0, 0)),
          lengths[b] == end - first);
    }
    if (end < rows) clear(end, rows);
  }

  // No other call of a step uses the state, and threads use different parts of it.
  void touch(const Tensor* in, AccessList& list) const {
    list.read(in[kQStart]);
    list.read(in[kKvLen]);
    const Buffer& memory = state_->planes[0].memory;
    list.memory(memory.data(), static_cast<int64_t>(memory.bytes()), true, true);
  }

 private:
  const KvState* state_;
};

class CausalConv final : public CpuOp {
 public:
  explicit CausalConv(const OpSite& site)
      : states_(site),
        channels_(site.in[kX].dims[1]),
        taps_(site.in[kX + 1].dims[1]),
        bias_(site.in.size() > kX + 2) {}

  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    Part mine = part(c);
    if (mine.empty()) return;
    const float* x = in[kX].f32();
    const float* w = in[kX + 1].f32();
    const float* bias = bias_ ? in[kX + 2].f32() : nullptr;
    float* y = out[1].f32();
    int64_t older = taps_ - 1;
    auto clear = [&](int64_t first, int64_t end) {
      for (int64_t i = first; i < end; ++i)
        std::fill(y + i * channels_ + mine.begin, y + i * channels_ + mine.end, 0.0f);
    };
    auto advance = [&](int64_t first, int64_t end, float* state, bool begins) {
      for (int64_t j = 0; begins && j < older; ++j)
        std::fill(state + j * channels_ + mine.begin, state + j * channels_ + mine.end, 0.0f);
      auto row = [&](int64_t r) {
        return r < 0 ? state + (older + r) * channels_ : x + (first + r) * channels_;
      };
      for (int64_t i = first; i < end; ++i) {
        float* to = y + i * channels_;
        for (int64_t k = mine.begin; k < mine.end; ++k) to[k] = bias ? bias[k] : 0.0f;
        for (int64_t j = 0; j < taps_; ++j) {
          const float* from = row(i - first - older + j);
          for (int64_t k = mine.begin; k < mine.end; ++k)
            to[k] = std::fma(w[k * taps_ + j], from[k], to[k]);
        }
      }
      // In ascending order: a row of the state is only replaced by a later one.
      for (int64_t j = 0; j < older; ++j) {
        const float* from = row(end - first - older + j);
        std::copy(from + mine.begin, from + mine.end, state + j * channels_ + mine.begin);
      }
    };
    states_.visit(in, in[kX].dims[0], c, advance, clear);
  }

  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    Part mine = part(c);
    if (mine.empty()) return;
    states_.touch(in, list);
    int64_t rows = in[kX].dims[0], from = mine.begin * 4, width = (mine.end - mine.begin) * 4;
    list.columns(in[kX], channels_ * 4, 0, rows, from, width, false);
    list.columns(out[1], channels_ * 4, 0, rows, from, width, true);
    for (int i = kX + 1; i <= kX + (bias_ ? 2 : 1); ++i)
      if (!in[i].weight) list.read(in[i]);
  }

 private:
  static constexpr int kX = SequenceStates::kX;
  Part part(const StepContext& c) const { return c.part(channels_, 64); }

  SequenceStates states_;
  int64_t channels_, taps_;
  bool bias_;
};

// One channel: s = s * decay + input * b, returns s . c. Sixteen sums, added in a fixed order.
float advance_channel(float* s, float decay, float input, const float* b, const float* c,
                      int64_t n) {
  constexpr int64_t kLanes = 16;
  float sum[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t l = 0; l < kLanes; ++l) {
      s[i + l] = std::fma(s[i + l], decay, input * b[i + l]);
      sum[l] = std::fma(s[i + l], c[i + l], sum[l]);
    }
  for (int64_t l = 0; i < n; ++i, ++l) {
    s[i] = std::fma(s[i], decay, input * b[i]);
    sum[l] = std::fma(s[i], c[i], sum[l]);
  }
  for (int64_t width = kLanes / 2; width > 0; width /= 2)
    for (int64_t l = 0; l < width; ++l) sum[l] += sum[l + width];
  return sum[0];
}

// The same with a decay for each number of the state: exp(step * a).
float advance_channel(float* s, float step, const float* a, float input, const float* b,
                      const float* c, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    s[i] = std::fma(s[i], std::exp(step * a[i]), input * b[i]);
    sum = std::fma(s[i], c[i], sum);
  }
  return sum;
}

// The sum of s . k, sixteen sums added in a fixed order.
float dot_channel(const float* s, const float* k, int64_t n) {
  constexpr int64_t kLanes = 16;
  float sum[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t l = 0; l < kLanes; ++l) sum[l] = std::fma(s[i + l], k[i + l], sum[l]);
  for (int64_t l = 0; i < n; ++i, ++l) sum[l] = std::fma(s[i], k[i], sum[l]);
  for (int64_t width = kLanes / 2; width > 0; width /= 2)
    for (int64_t l = 0; l < width; ++l) sum[l] += sum[l + width];
  return sum[0];
}

// ssm_scan and gated_delta. Operands have the same shapes in another order.
template <bool kDelta>
class HeadScan final : public CpuOp {
 public:
  explicit HeadScan(const OpSite& site)
      : states_(site),
        heads_(site.in[kRows].dims[1]),
        width_(site.in[kRows].dims[2]),
        groups_(site.in[kIn].dims[1]),
        n_(site.in[kIn].dims[2]),
        own_decays_(!kDelta && site.in[kScale + 1].rank == 2) {}

  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    Part mine = c.part(heads_, 1);
    if (mine.empty()) return;
    const float *x = in[kRows].f32(), *b = in[kIn].f32(), *v = in[kOut].f32();
    const float *first_scale = in[kScale].f32(), *second_scale = in[kScale + 1].f32();
    float* y = out[1].f32();
    int64_t row = heads_ * width_;
    auto clear = [&](int64_t first, int64_t end) {
      for (int64_t i = first; i < end; ++i)
        std::fill(y + i * row + mine.begin * width_, y + i * row + mine.end * width_, 0.0f);
    };
    auto advance = [&](int64_t first, int64_t end, float* state, bool begins) {
      if (begins) std::fill(state + mine.begin * width_ * n_, state + mine.end * width_ * n_, 0.0f);
      // A head's state stays in cache while it passes all rows.
      for (int64_t h = mine.begin; h < mine.end; ++h)
        for (int64_t i = first; i < end; ++i) {
          float scale = first_scale[i * heads_ + h];  // time step, or decay
          float decay = own_decays_ ? 0 : std::exp(kDelta ? scale : scale * second_scale[h]);
          int64_t vectors = (i * groups_ + h / (heads_ / groups_)) * n_;
          for (int64_t p = 0; p < width_; ++p) {
            int64_t at = i * row + h * width_ + p;
            float* s = state + (h * width_ + p) * n_;
            float input = scale * x[at];
            if (kDelta)
              input = second_scale[i * heads_ + h] *
                      std::fma(-decay, dot_channel(s, b + vectors, n_), x[at]);
            y[at] = own_decays_ ? advance_channel(s, scale, second_scale + h * n_, input,
                                                  b + vectors, v + vectors, n_)
                                : advance_channel(s, decay, input, b + vectors, v + vectors, n_);
          }
        }
    };
    states_.visit(in, in[kRows].dims[0], c, advance, clear);
  }

  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    Part mine = c.part(heads_, 1);
    if (mine.empty()) return;
    states_.touch(in, list);
    int64_t rows = in[kRows].dims[0], head = width_ * 4;
    list.columns(in[kRows], heads_ * head, 0, rows, mine.begin * head,
                 (mine.end - mine.begin) * head, false);
    list.columns(out[1], heads_ * head, 0, rows, mine.begin * head, (mine.end - mine.begin) * head,
                 true);
    for (int i : {kIn, kOut, kScale, kScale + 1})
      if (!in[i].weight) list.read(in[i]);
  }

 private:
  // x, dt, a, b, c or q, k, v, decay, rate
  static constexpr int kX = SequenceStates::kX;
  static constexpr int kRows = kDelta ? kX + 2 : kX, kScale = kDelta ? kX + 3 : kX + 1;
  static constexpr int kIn = kDelta ? kX + 1 : kX + 3, kOut = kDelta ? kX : kX + 4;
  SequenceStates states_;
  int64_t heads_, width_, groups_, n_;
  bool own_decays_;  // one for each number of a state, not one for each head (Mamba)
};

}  // namespace

void add_recurrent_kernels(KernelList& list) {
  list.add("causal_conv", "causal_conv(*, *, i32, i32, f32, f32, f32)",
           "f32 fma in tap order after the bias", [](const OpSite& site) -> std::unique_ptr<CpuOp> {
             return std::make_unique<CausalConv>(site);
           });
  list.add("ssm_scan", "ssm_scan(*, *, i32, i32, f32, f32, f32, f32, f32)",
           "f32 fma, state stored as f32 after every row, 16 sums over the state",
           [](const OpSite& site) -> std::unique_ptr<CpuOp> {
             return std::make_unique<HeadScan<false>>(site);
           });
  list.add("gated_delta", "gated_delta(*, *, i32, i32, f32, f32, f32, f32, f32)",
           "f32 fma, state stored as f32 after every row, 16 sums over the state",
           [](const OpSite& site) -> std::unique_ptr<CpuOp> {
             return std::make_unique<HeadScan<true>>(site);
           });
}

}  // namespace tokamak::cpu
