// Ops over the last axis: norms, softmax, quantize, rope.
#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/exec.h"
#include "base/error.h"

namespace tokamak::cpu {
namespace {

template <class Body>
void each_row(const Tensor& x, StepContext& c, Body&& body) {
  int64_t row = x.last();
  c.pool.split(x.rows(), std::max<int64_t>(1, kLightGrain / (row + 1)),
               [&](int64_t begin, int64_t end, int) {
                 for (int64_t r = begin; r < end; ++r) body(r);
               });
}

class RmsNorm final : public Op {
 public:
  explicit RmsNorm(const OpSite& site)
      : eps_(static_cast<float>(site.attrs.at("eps").as_double())) {}
  void run(const Tensor* in, const Tensor* out, StepContext& c) override {
    int64_t n = in[0].last();
    each_row(in[0], c, [&](int64_t r) {
      c.kernels.rms_norm(in[0].f32() + r * n, in[1].f32(), out[0].f32() + r * n, n, eps_);
    });
  }

 private:
  float eps_;
};

class LayerNorm final : public Op {
 public:
  explicit LayerNorm(const OpSite& site)
      : eps_(static_cast<float>(site.attrs.at("eps").as_double())) {}
  void run(const Tensor* in, const Tensor* out, StepContext& c) override {
    int64_t n = in[0].last();
    const float* bias = in[2].data ? in[2].f32() : nullptr;
    each_row(in[0], c, [&](int64_t r) {
      c.kernels.layer_norm(in[0].f32() + r * n, in[1].f32(), bias, out[0].f32() + r * n, n, eps_);
    });
  }

 private:
  float eps_;
};

class Softmax final : public Op {
 public:
  void run(const Tensor* in, const Tensor* out, StepContext& c) override {
    int64_t n = in[0].last();
    each_row(in[0], c,
             [&](int64_t r) { c.kernels.softmax(in[0].f32() + r * n, out[0].f32() + r * n, n); });
  }
};

class Quantize final : public Op {
 public:
  explicit Quantize(const OpSite& site) {
    if (site.attrs.get_string("format", "q8a") != "q8a" || site.in[0].last() % kQuantBlock != 0)
      fail(ErrorCode::kUnsupported, "{}: quantize gives q8a of rows of a multiple of {}",
           site.label, kQuantBlock);
  }
  void run(const Tensor* in, const Tensor* out, StepContext& c) override {
    int64_t n = in[0].last(), bytes = n / kQuantBlock * 40;
    each_row(in[0], c, [&](int64_t r) {
      c.kernels.quantize_row(in[0].f32() + r * n, n,
                             static_cast<uint8_t*>(out[0].data) + r * bytes);
    });
  }
};

// cos and sin are computed in double once per step for all layers that rotate by the same
// frequencies and positions.
class Rope final : public Op {
 public:
  explicit Rope(const OpSite& site)
      : scale_(static_cast<float>(site.attrs.get_double("scale", 1.0))) {
    half_ = site.in[2].last();
    values_.resize(static_cast<size_t>(site.in[1].elements() * half_ * 2));
  }
  uint64_t own_bytes() const override { return values_.capacity() * sizeof(float); }

  void run(const Tensor* in, const Tensor* out, StepContext& c) override {
    int64_t rows = in[0].dims[0], heads = in[0].dims[1], d = in[0].dims[2];
    const float* table = source_ ? source_->values_.data() : values_.data();
    if (!source_) fill(in[1].i32(), in[2].f32(), rows);
    each_row(in[0], c, [&](int64_t r) {
      const float* t = table + r / heads * half_ * 2;
      c.kernels.rope(in[0].f32() + r * d, t, t + half_, out[0].f32() + r * d, half_, d);
    });
  }

  bool same_angles(const Rope& o) const { return half_ == o.half_ && scale_ == o.scale_; }
  // Takes the table of an earlier call of the same plan with the same frequencies and positions.
  void share(const Rope* source) {
    source_ = source->source_ ? source->source_ : source;
    values_ = {};
  }

 private:
  void fill(const int32_t* positions, const float* frequencies, int64_t rows) {
    for (int64_t t = 0; t < rows; ++t) {
      float* to = values_.data() + t * half_ * 2;
      for (int64_t j = 0; j < half_; ++j) {
        double angle = static_cast<double>(positions[t]) * static_cast<double>(frequencies[j]);
        to[j] = static_cast<float>(std::cos(angle) * static_cast<double>(scale_));
        to[half_ + j] = static_cast<float>(std::sin(angle) * static_cast<double>(scale_));
      }
    }
  }

  float scale_;
  int64_t half_;
  const Rope* source_ = nullptr;
  std::vector<float> values_;
};

}  // namespace

std::unique_ptr<Op> make_row_op(const OpSite& site) {
  if (site.op == "rms_norm") return std::make_unique<RmsNorm>(site);
  if (site.op == "layer_norm") return std::make_unique<LayerNorm>(site);
  if (site.op == "softmax") return std::make_unique<Softmax>();
  if (site.op == "quantize") return std::make_unique<Quantize>(site);
  if (site.op == "rope") return std::make_unique<Rope>(site);
  return nullptr;
}

bool is_rope(const Op& op) { return dynamic_cast<const Rope*>(&op) != nullptr; }

bool share_rope_table(Op& op, const Op& earlier) {
  auto& a = dynamic_cast<Rope&>(op);
  const auto& b = dynamic_cast<const Rope&>(earlier);
  if (!a.same_angles(b)) return false;
  a.share(&b);
  return true;
}

}  // namespace tokamak::cpu
