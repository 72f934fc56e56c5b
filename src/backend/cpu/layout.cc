// Data movement: reshape, slice, concat, gather, transpose, broadcast, iota. Elements are 4 bytes
// (f32 or i32).
#include <algorithm>
#include <cstring>

#include "backend/cpu/exec.h"
#include "base/error.h"

namespace tokamak::cpu {
namespace {

int axis_of(const OpSite& site, int rank) {
  int64_t axis = site.attrs.get_int("axis", 0);
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}
int64_t product(const Tensor& t, int from, int to) {
  int64_t n = 1;
  for (int i = from; i < to; ++i) n *= t.dims[i];
  return n;
}

// `outer` runs of `run` words, with different strides in two tensors.
struct Runs {
  int64_t from = 0, from_stride = 0, to = 0, to_stride = 0, outer = 0, run = 0;

  Part part(const StepContext& c) const {
    return c.part(outer, std::max<int64_t>(1, kLightGrain / (run + 1)));
  }
  void copy(const Tensor& in, const Tensor& out, const StepContext& c) const {
    auto [begin, end] = part(c);
    for (int64_t o = begin; o < end; ++o)
      std::memcpy(out.f32() + to + o * to_stride, in.f32() + from + o * from_stride,
                  static_cast<size_t>(run) * 4);
  }
  void touch(const Tensor& in, const Tensor& out, const StepContext& c, AccessList& list) const {
    auto [begin, end] = part(c);
    list.columns(in, from_stride * 4, begin, end, from * 4, run * 4, false);
    list.columns(out, to_stride * 4, begin, end, to * 4, run * 4, true);
  }
};

class Reshape final : public CpuOp {
 public:
  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    if (c.thread == 0)
      std::memmove(out[0].data, in[0].data, dtype_bytes(in[0].dtype, in[0].elements()));
  }
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    if (c.thread != 0) return;
    list.read(in[0]);
    list.write(out[0]);
  }
};

class Slice final : public CpuOp {
 public:
  explicit Slice(const OpSite& site) : axis_(axis_of(site, site.in[0].rank)) {
    const Value& start = site.attrs.at("start");
    start_ = start.is_string() ? std::stoll(start.as_string()) : start.as_int();
  }
  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    TK_CHECK(start_ >= 0 && start_ + out[0].dims[axis_] <= in[0].dims[axis_]);
    runs(in, out).copy(in[0], out[0], c);
  }
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    runs(in, out).touch(in[0], out[0], c, list);
  }

 private:
  Runs runs(const Tensor* in, const Tensor* out) const {
    int64_t inner = product(in[0], axis_ + 1, in[0].rank), run = out[0].dims[axis_] * inner;
    return {start_ * inner, in[0].dims[axis_] * inner, 0, run, product(in[0], 0, axis_), run};
  }
  int axis_;
  int64_t start_;
};

class Concat final : public CpuOp {
 public:
  explicit Concat(const OpSite& site)
      : axis_(axis_of(site, site.out[0].rank)), count_(site.in.size()) {}
  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    each(in, out, [&](size_t i, const Runs& runs) { runs.copy(in[i], out[0], c); });
  }
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    each(in, out, [&](size_t i, const Runs& runs) { runs.touch(in[i], out[0], c, list); });
  }

 private:
  template <class Body>
  void each(const Tensor* in, const Tensor* out, Body&& body) const {
    int64_t inner = product(out[0], axis_ + 1, out[0].rank), at = 0,
            stride = out[0].dims[axis_] * inner;
    for (size_t i = 0; i < count_; ++i) {
      int64_t run = in[i].dims[axis_] * inner;
      body(i, Runs{0, run, at, stride, product(out[0], 0, axis_), run});
      at += run;
    }
  }
  int axis_;
  size_t count_;
};

class Gather final : public CpuOp {
 public:
  explicit Gather(const OpSite& site) : axis_(axis_of(site, site.in[0].rank)) {}
  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    int64_t extent = in[0].dims[axis_], inner = product(in[0], axis_ + 1, in[0].rank),
            count = in[1].elements();
    const int32_t* index = in[1].i32();
    auto [begin, end] = rows(in, c);
    for (int64_t r = begin; r < end; ++r) {
      int64_t o = r / count, row = index[r % count];
      TK_CHECK(row < extent, "gather: index {} of {}", row, extent);
      float* to = out[0].f32() + r * inner;
      if (row < 0)
        std::memset(to, 0, static_cast<size_t>(inner) * 4);
      else
        std::memcpy(to, in[0].f32() + (o * extent + row) * inner, static_cast<size_t>(inner) * 4);
    }
  }
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    auto [begin, end] = rows(in, c);
    if (begin >= end) return;
    list.read(in[0]);
    list.read(in[1]);
    list.write_rows(out[0], product(in[0], axis_ + 1, in[0].rank) * 4, begin, end);
  }

 private:
  Part rows(const Tensor* in, const StepContext& c) const {
    int64_t inner = product(in[0], axis_ + 1, in[0].rank);
    return c.part(product(in[0], 0, axis_) * in[1].elements(),
                  std::max<int64_t>(1, kLightGrain / (inner + 1)));
  }
  int axis_;
};

// transpose and broadcast: the result is walked in order, the source by strides.
class Strided final : public CpuOp {
 public:
  explicit Strided(const OpSite& site)
      : transpose_(site.op == "transpose"), rank_(site.out[0].rank) {
    if (!transpose_) return;
    const Value::Array& perm = site.attrs.at("perm").as_array();
    for (int i = 0; i < rank_; ++i)
      perm_[i] = static_cast<int>(perm[static_cast<size_t>(i)].as_int());
  }
  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    int64_t strides[kMaxRank] = {};
    if (transpose_) {
      for (int i = 0; i < rank_; ++i) strides[i] = product(in[0], perm_[i] + 1, rank_);
    } else {
      for (int back = 1; back <= in[0].rank; ++back)
        if (in[0].dims[in[0].rank - back] != 1)
          strides[rank_ - back] = product(in[0], in[0].rank - back + 1, in[0].rank);
    }
    int64_t row = out[0].last(), step = rank_ > 0 ? strides[rank_ - 1] : 0;
    auto [begin, end] = rows(out, c);
    for (int64_t r = begin; r < end; ++r) {
      int64_t rest = r, offset = 0;
      for (int i = rank_ - 2; i >= 0; --i) {
        offset += rest % out[0].dims[i] * strides[i];
        rest /= out[0].dims[i];
      }
      const int32_t* from = in[0].i32() + offset;
      int32_t* to = out[0].i32() + r * row;
      for (int64_t j = 0; j < row; ++j) to[j] = from[j * step];
    }
  }
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    auto [begin, end] = rows(out, c);
    if (begin >= end) return;
    list.read(in[0]);
    list.write_rows(out[0], out[0].last() * 4, begin, end);
  }

 private:
  static Part rows(const Tensor* out, const StepContext& c) {
    return c.part(out[0].rows(), std::max<int64_t>(1, kLightGrain / (out[0].last() + 1)));
  }
  bool transpose_;
  int rank_;
  int perm_[kMaxRank] = {};
};

class Iota final : public CpuOp {
 public:
  void run(const Tensor*, const Tensor* out, const StepContext& c) const override {
    if (c.thread != 0) return;
    for (int64_t i = 0, n = out[0].elements(); i < n; ++i)
      out[0].i32()[i] = static_cast<int32_t>(i);
  }
  void touch(const Tensor*, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    if (c.thread == 0) list.write(out[0]);
  }
};

}  // namespace

std::unique_ptr<CpuOp> make_reshape(const OpSite&) { return std::make_unique<Reshape>(); }
std::unique_ptr<CpuOp> make_slice(const OpSite& site) { return std::make_unique<Slice>(site); }
std::unique_ptr<CpuOp> make_concat(const OpSite& site) { return std::make_unique<Concat>(site); }
std::unique_ptr<CpuOp> make_gather(const OpSite& site) { return std::make_unique<Gather>(site); }
std::unique_ptr<CpuOp> make_strided(const OpSite& site) { return std::make_unique<Strided>(site); }
std::unique_ptr<CpuOp> make_iota(const OpSite&) { return std::make_unique<Iota>(); }

}  // namespace tokamak::cpu
