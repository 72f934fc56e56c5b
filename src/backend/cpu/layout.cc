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

// Copies `outer` runs of `run` words with different strides.
void copy_runs(StepContext& c, const float* from, int64_t from_stride, float* to, int64_t to_stride,
               int64_t outer, int64_t run) {
  c.pool.split(
      outer, std::max<int64_t>(1, kLightGrain / (run + 1)), [&](int64_t begin, int64_t end, int) {
        for (int64_t o = begin; o < end; ++o)
          std::memcpy(to + o * to_stride, from + o * from_stride, static_cast<size_t>(run) * 4);
      });
}

class Reshape final : public Op {
 public:
  void run(const Tensor* in, const Tensor* out, StepContext&) override {
    std::memmove(out[0].data, in[0].data, dtype_bytes(in[0].dtype, in[0].elements()));
  }
};

class Slice final : public Op {
 public:
  explicit Slice(const OpSite& site) : axis_(axis_of(site, site.in[0].rank)) {
    const Value& start = site.attrs.at("start");
    start_ = start.is_string() ? std::stoll(start.as_string()) : start.as_int();
  }
  void run(const Tensor* in, const Tensor* out, StepContext& c) override {
    int64_t inner = product(in[0], axis_ + 1, in[0].rank), run = out[0].dims[axis_] * inner;
    TK_CHECK(start_ >= 0 && start_ + out[0].dims[axis_] <= in[0].dims[axis_]);
    copy_runs(c, in[0].f32() + start_ * inner, in[0].dims[axis_] * inner, out[0].f32(), run,
              product(in[0], 0, axis_), run);
  }

 private:
  int axis_;
  int64_t start_;
};

class Concat final : public Op {
 public:
  explicit Concat(const OpSite& site)
      : axis_(axis_of(site, site.out[0].rank)), count_(site.in.size()) {}
  void run(const Tensor* in, const Tensor* out, StepContext& c) override {
    int64_t inner = product(out[0], axis_ + 1, out[0].rank), at = 0,
            stride = out[0].dims[axis_] * inner;
    for (size_t i = 0; i < count_; ++i) {
      int64_t run = in[i].dims[axis_] * inner;
      copy_runs(c, in[i].f32(), run, out[0].f32() + at, stride, product(out[0], 0, axis_), run);
      at += run;
    }
  }

 private:
  int axis_;
  size_t count_;
};

class Gather final : public Op {
 public:
  explicit Gather(const OpSite& site) : axis_(axis_of(site, site.in[0].rank)) {}
  void run(const Tensor* in, const Tensor* out, StepContext& c) override {
    int64_t extent = in[0].dims[axis_], inner = product(in[0], axis_ + 1, in[0].rank),
            count = in[1].elements();
    const int32_t* index = in[1].i32();
    int64_t rows = product(in[0], 0, axis_) * count;
    c.pool.split(rows, std::max<int64_t>(1, kLightGrain / (inner + 1)),
                 [&](int64_t begin, int64_t end, int) {
                   for (int64_t r = begin; r < end; ++r) {
                     int64_t o = r / count, row = index[r % count];
                     TK_CHECK(row < extent, "gather: index {} of {}", row, extent);
                     float* to = out[0].f32() + r * inner;
                     if (row < 0)
                       std::memset(to, 0, static_cast<size_t>(inner) * 4);
                     else
                       std::memcpy(to, in[0].f32() + (o * extent + row) * inner,
                                   static_cast<size_t>(inner) * 4);
                   }
                 });
  }

 private:
  int axis_;
};

// transpose and broadcast: the result is walked in order, the source by strides.
class Strided final : public Op {
 public:
  explicit Strided(const OpSite& site)
      : transpose_(site.op == "transpose"), rank_(site.out[0].rank) {
    if (!transpose_) return;
    const Value::Array& perm = site.attrs.at("perm").as_array();
    for (int i = 0; i < rank_; ++i)
      perm_[i] = static_cast<int>(perm[static_cast<size_t>(i)].as_int());
  }
  void run(const Tensor* in, const Tensor* out, StepContext& c) override {
    int64_t strides[kMaxRank] = {};
    if (transpose_) {
      for (int i = 0; i < rank_; ++i) strides[i] = product(in[0], perm_[i] + 1, rank_);
    } else {
      for (int back = 1; back <= in[0].rank; ++back)
        if (in[0].dims[in[0].rank - back] != 1)
          strides[rank_ - back] = product(in[0], in[0].rank - back + 1, in[0].rank);
    }
    int64_t row = out[0].last(), step = rank_ > 0 ? strides[rank_ - 1] : 0;
    c.pool.split(out[0].rows(), std::max<int64_t>(1, kLightGrain / (row + 1)),
                 [&](int64_t begin, int64_t end, int) {
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
                 });
  }

 private:
  bool transpose_;
  int rank_;
  int perm_[kMaxRank] = {};
};

class Iota final : public Op {
 public:
  void run(const Tensor*, const Tensor* out, StepContext&) override {
    for (int64_t i = 0, n = out[0].elements(); i < n; ++i)
      out[0].i32()[i] = static_cast<int32_t>(i);
  }
};

}  // namespace

std::unique_ptr<Op> make_layout_op(const OpSite& site) {
  if (site.op == "reshape") return std::make_unique<Reshape>();
  if (site.op == "slice") return std::make_unique<Slice>(site);
  if (site.op == "concat") return std::make_unique<Concat>(site);
  if (site.op == "gather") return std::make_unique<Gather>(site);
  if (site.op == "transpose" || site.op == "broadcast") return std::make_unique<Strided>(site);
  if (site.op == "iota") return std::make_unique<Iota>();
  return nullptr;
}

}  // namespace tokamak::cpu
