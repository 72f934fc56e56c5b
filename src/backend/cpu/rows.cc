// Ops over the last axis: norms, softmax, quantize, rope; reductions, over any axis.
#include <algorithm>
#include <limits>

#include "backend/cpu/kernels.h"
#include "backend/cpu/rope_angles.h"
#include "base/error.h"

namespace tokamak::cpu {
namespace {

Part rows_of_last(const Tensor& x, const StepContext& c) {
  return c.part(x.rows(), std::max<int64_t>(1, kLightGrain / (x.last() + 1)));
}

template <class Body>
void each_row(const Tensor& x, const StepContext& c, Body&& body) {
  auto [begin, end] = rows_of_last(x, c);
  for (int64_t r = begin; r < end; ++r) body(r);
}

// Ops that make a row of the result from the same row of the first input.
class RowOp : public CpuOp {
 public:
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    auto [begin, end] = rows_of_last(in[0], c);
    if (begin >= end) return;
    int64_t n = in[0].last();
    list.read_rows(in[0], n * 4, begin, end);
    list.read(in[1]);
    list.read(in[2]);
    list.write_rows(out[0], static_cast<int64_t>(dtype_bytes(out[0].dtype, n)), begin, end);
  }
};

class RmsNorm final : public RowOp {
 public:
  explicit RmsNorm(const OpSite& site)
      : eps_(static_cast<float>(site.attrs.at("eps").as_double())) {}
  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    int64_t n = in[0].last();
    each_row(in[0], c, [&](int64_t r) {
      c.kernels.rms_norm(in[0].f32() + r * n, in[1].f32(), out[0].f32() + r * n, n, eps_);
    });
  }

 private:
  float eps_;
};

class LayerNorm final : public RowOp {
 public:
  explicit LayerNorm(const OpSite& site)
      : eps_(static_cast<float>(site.attrs.at("eps").as_double())) {}
  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    int64_t n = in[0].last();
    const float* bias = in[2].data ? in[2].f32() : nullptr;
    each_row(in[0], c, [&](int64_t r) {
      c.kernels.layer_norm(in[0].f32() + r * n, in[1].f32(), bias, out[0].f32() + r * n, n, eps_);
    });
  }

 private:
  float eps_;
};

class Softmax final : public RowOp {
 public:
  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    int64_t n = in[0].last();
    each_row(in[0], c,
             [&](int64_t r) { c.kernels.softmax(in[0].f32() + r * n, out[0].f32() + r * n, n); });
  }
};

class Quantize final : public RowOp {
 public:
  explicit Quantize(const OpSite& site) {
    std::string format = site.attrs.get_string("format", "q8a");
    bool whole = site.in[0].last() % kQuantBlock == 0;
    if (format != "bf16" && (format != "q8a" || !whole))
      fail(ErrorCode::kUnsupported, "{}: quantize gives bf16, or q8a of rows of a multiple of {}",
           site.label, kQuantBlock);
  }
  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    int64_t n = in[0].last();
    auto bytes = static_cast<int64_t>(dtype_bytes(out[0].dtype, n));
    each_row(in[0], c, [&](int64_t r) {
      encode_activations(c.kernels, out[0].dtype, in[0].f32() + r * n, n,
                         static_cast<uint8_t*>(out[0].data) + r * bytes);
    });
  }
};

// Sums as loops do, so that a reduction has the same bits alone and in a region.
class Reduction final : public CpuOp {
 public:
  explicit Reduction(const OpSite& site)
      : max_(site.op == "reduce_max"), mean_(site.op == "reduce_mean") {
    int64_t axis = site.attrs.at("axis").as_int();
    axis_ = static_cast<int>(axis < 0 ? axis + site.in[0].rank : axis);
    extent_ = site.in[0].dims[axis_];
  }
  int64_t scratch_bytes() const override { return extent_ * 4; }
  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    auto which = static_cast<int>(max_ ? Reduce::kMax : Reduce::kSum);
    Shape s = shape_of(in[0]);
    auto* buffer = reinterpret_cast<float*>(c.thread_scratch());
    Part mine = part_of(s, c);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const float* x = in[0].f32() + i / s.inner * s.n * s.inner + i % s.inner;
      if (s.inner > 1)
        for (int64_t j = 0; j < s.n; ++j) buffer[j] = x[j * s.inner];
      alignas(64) float lanes[16];
      std::fill_n(lanes, 16, max_ ? -std::numeric_limits<float>::infinity() : 0.0f);
      c.kernels.reduce[which](s.inner > 1 ? buffer : x, s.n, lanes);
      float all = c.kernels.join_lanes[which](lanes);
      out[0].f32()[i] = mean_ ? all / static_cast<float>(s.n) : all;
    }
  }
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    Part mine = part_of(shape_of(in[0]), c);
    if (mine.begin >= mine.end) return;
    list.read(in[0]);
    list.write_rows(out[0], 4, mine.begin, mine.end);
  }

 private:
  struct Shape {
    int64_t outer = 1, n = 1, inner = 1;
  };
  Shape shape_of(const Tensor& x) const {
    Shape s;
    for (int d = 0; d < x.rank; ++d)
      (d < axis_ ? s.outer : d == axis_ ? s.n : s.inner) *= x.dims[d];
    return s;
  }
  static Part part_of(const Shape& s, const StepContext& c) {
    return c.part(s.outer * s.inner, std::max<int64_t>(1, kLightGrain / (s.n + 1)));
  }
  bool max_, mean_;
  int axis_;
  int64_t extent_;
};

class Rope final : public CpuOp {
 public:
  explicit Rope(const OpSite& site) {
    use_.angles = std::make_shared<RopeAngles>(
        site.in[2].last(), static_cast<float>(site.attrs.get_double("scale", 1.0)),
        site.in[1].elements());
  }
  uint64_t own_bytes() const override {  // shared among its users
    return use_.angles->bytes() / static_cast<uint64_t>(use_.angles.use_count());
  }
  RopeUse* rope_use() override { return &use_; }

  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    int64_t heads = in[0].dims[1], d = in[0].dims[2], half = use_.angles->half();
    if (!use_.made_before && c.stage == 0) return use_.angles->make(in[1], in[2].f32(), c);
    each_row(in[0], c, [&](int64_t r) {
      c.kernels.rope(in[0].f32() + r * d, use_.angles->cosines(r / heads),
                     use_.angles->sines(r / heads), out[0].f32() + r * d, half, d);
    });
  }
  int stages(const Tensor*, const Tensor*, const StepContext&) const override {
    return use_.made_before ? 1 : 2;
  }
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    if (!use_.made_before && c.stage == 0) return use_.angles->touch(in[1], c, list);
    auto [begin, end] = rows_of_last(in[0], c);
    if (begin >= end) return;
    int64_t heads = in[0].dims[1], row = in[0].dims[2] * 4;
    list.read_rows(in[0], row, begin, end);
    use_.angles->touch_rows(begin / heads, (end - 1) / heads + 1, false, list);
    list.write_rows(out[0], row, begin, end);
  }

 private:
  RopeUse use_;
};

}  // namespace

std::unique_ptr<CpuOp> make_rms_norm(const OpSite& site) { return std::make_unique<RmsNorm>(site); }
std::unique_ptr<CpuOp> make_layer_norm(const OpSite& site) {
  return std::make_unique<LayerNorm>(site);
}
std::unique_ptr<CpuOp> make_softmax(const OpSite&) { return std::make_unique<Softmax>(); }
std::unique_ptr<CpuOp> make_quantize(const OpSite& site) {
  return std::make_unique<Quantize>(site);
}
std::unique_ptr<CpuOp> make_reduction(const OpSite& site) {
  return std::make_unique<Reduction>(site);
}
std::unique_ptr<CpuOp> make_rope(const OpSite& site) { return std::make_unique<Rope>(site); }

void add_row_kernels(KernelList& list) {
  constexpr const char* kRowClass = "f32, sums in 16 lanes and a fixed tree";
  list.add("quantize", "quantize(f32)", "q8a: scale = max / 127, nearest even; bf16: nearest even",
           make_quantize);
  list.add("rms_norm", "rms_norm(f32, *, *)", kRowClass, make_rms_norm);
  list.add("layer_norm", "layer_norm(f32, *, *)", kRowClass, make_layer_norm);
  list.add("softmax", "softmax(f32)", kRowClass, make_softmax);
  for (const char* op : {"reduce_sum", "reduce_max", "reduce_mean"})
    list.add(op, fmt::format("{}(f32)", op), kRowClass, make_reduction);
  list.add("rope", "rope(f32, i32, *)", "angles f64, rotation f32 fma", make_rope);
}

}  // namespace tokamak::cpu
