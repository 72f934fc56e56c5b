// Stacks of matrices. Mixture of experts: routing, rows sorted by expert, products of each expert
// with its rows, and their weighted sum; and a matrix per head. Only the experts that have rows are
// read. A row's product does not depend on the other rows (linear_kernel.h).
#include <algorithm>
#include <cstring>

#include "backend/cpu/kernels.h"
#include "backend/cpu/linear_kernel.h"
#include "base/error.h"
#include "ops/route.h"

namespace tokamak::cpu {
namespace {

class Route final : public CpuOp {
 public:
  explicit Route(const OpSite& site)
      : rule_(route_rule(site.attrs)), count_(site.in[0].last()), biased_(site.in.size() > 1) {}
  int64_t scratch_bytes() const override { return (3 * count_ + rule_.used) * 8; }
  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    auto [begin, end] = rows(in[0], c);
    auto n = static_cast<size_t>(count_), k = static_cast<size_t>(rule_.used);
    auto* memory = reinterpret_cast<double*>(c.thread_scratch());
    std::span<double> scores(memory, n), choice(memory + n, n), bias(memory + 2 * n, n),
        weights(memory + 3 * n, k);
    if (biased_)
      std::copy_n(in[1].f32(), n, bias.begin());
    else
      bias = {};
    for (int64_t r = begin; r < end; ++r) {
      std::copy_n(in[0].f32() + r * count_, n, scores.begin());
      route_row(rule_, scores, bias, choice, weights, {out[1].i32() + r * rule_.used, k});
      for (size_t j = 0; j < k; ++j)
        out[0].f32()[r * rule_.used + static_cast<int64_t>(j)] = static_cast<float>(weights[j]);
    }
  }
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    auto [begin, end] = rows(in[0], c);
    if (begin >= end) return;
    list.read_rows(in[0], count_ * 4, begin, end);
    list.read(in[1]);
    for (int i = 0; i < 2; ++i) list.write_rows(out[i], rule_.used * 4, begin, end);
  }

 private:
  Part rows(const Tensor& x, const StepContext& c) const {
    return c.part(x.rows(), std::max<int64_t>(1, kLightGrain / (20 * count_)));
  }
  RouteRule rule_;
  int64_t count_;
  bool biased_;
};

// Every thread sorts the ids for itself and copies its columns of the rows.
class Dispatch final : public CpuOp {
 public:
  explicit Dispatch(const OpSite& site) : count_(site.attrs.at("count").as_int()) {}
  int64_t scratch_bytes() const override { return (count_ + 1) * 4; }
  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    const int32_t* ids = in[1].i32();
    int64_t entries = in[1].elements(), k = in[1].last(), d = in[0].last();
    auto [begin, end] = columns(d, entries, c);
    if (begin >= end && c.thread != 0) return;
    auto* next = reinterpret_cast<int32_t*>(c.thread_scratch());
    std::fill_n(next, count_ + 1, 0);
    for (int64_t i = 0; i < entries; ++i) {
      TK_CHECK(ids[i] < count_, "moe_dispatch: expert {} of {}", ids[i], count_);
      if (ids[i] >= 0) ++next[ids[i] + 1];
    }
    for (int64_t e = 0; e < count_; ++e) next[e + 1] += next[e];
    int64_t used = next[count_];
    bool first = c.thread == 0;
    if (first) std::copy_n(next, count_ + 1, out[1].i32());
    float* rows = out[0].f32();
    for (int64_t i = 0; i < entries; ++i) {
      if (ids[i] < 0) continue;
      int64_t row = next[ids[i]]++;
      if (begin < end)
        std::copy_n(in[0].f32() + i / k * d + begin, end - begin, rows + row * d + begin);
      if (first) out[2].i32()[row] = static_cast<int32_t>(i);
    }
    for (int64_t row = used; row < entries; ++row) {
      std::fill(rows + row * d + begin, rows + row * d + std::max(begin, end), 0.0f);
      if (first) out[2].i32()[row] = -1;
    }
  }
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    int64_t d = in[0].last(), entries = in[1].elements();
    auto [begin, end] = columns(d, entries, c);
    bool any = begin < end && entries > 0;
    if (!any && c.thread != 0) return;
    list.read(in[1]);
    if (any) {
      list.columns(in[0], d * 4, 0, in[0].rows(), begin * 4, (end - begin) * 4, false);
      list.columns(out[0], d * 4, 0, entries, begin * 4, (end - begin) * 4, true);
    }
    if (c.thread != 0) return;
    list.write(out[1]);
    list.write(out[2]);
  }

 private:
  static Part columns(int64_t d, int64_t entries, const StepContext& c) {
    return c.part(d, std::max<int64_t>(16, kLightGrain / (entries + 1)));
  }
  int64_t count_;
};

// Threads share the panels of every expert: which experts have rows is known only in the step.
class GroupedLinear final : public CpuOp {
 public:
  explicit GroupedLinear(const OpSite& site) : biased_(site.in.size() > 3) {
    const Weight* w = site.in[1].weight;
    need_matrix(site, w);
    n_ = w->n;
    k_ = w->k;
    experts_.reserve(static_cast<size_t>(w->groups));  // kernels refer to them
    for (int64_t e = 0; e < w->groups; ++e) {
      experts_.push_back(w->group(e));
      kernels_.push_back(make_linear_kernel(site, &experts_.back(), site.in[0].dtype));
    }
  }
  int64_t scratch_bytes() const override { return packed_bytes() + kernels_[0]->scratch_bytes(); }
  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    auto [begin, end] = panels(in[0].rows(), c);
    if (begin >= end) return;
    const int32_t* offsets = in[2].i32();
    float* y = out[0].f32() + begin * kPanel;
    for (size_t e = 0; e < kernels_.size(); ++e) {
      int64_t first = offsets[e], rows = offsets[e + 1] - first;
      if (rows == 0) continue;
      const float* bias = biased_ ? in[3].f32() + static_cast<int64_t>(e) * n_ : nullptr;
      const auto* x = static_cast<const uint8_t*>(in[0].data) + first * kernels_[e]->row_bytes();
      one_expert(*kernels_[e], x, rows, begin, end, {y + first * n_, n_, bias}, c);
    }
    int64_t width = std::min(end * kPanel, n_) - begin * kPanel;
    for (int64_t r = offsets[kernels_.size()]; r < in[0].rows(); ++r)
      std::fill_n(y + r * n_, width, 0.0f);
  }
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    int64_t rows = in[0].rows();
    auto [begin, end] = panels(rows, c);
    if (begin >= end) return;
    list.read(in[0]);
    list.read(in[2]);
    list.read(in[3]);
    int64_t from = begin * kPanel, to = std::min(end * kPanel, n_);
    list.columns(out[0], n_ * 4, 0, rows, from * 4, (to - from) * 4, true);
  }

 private:
  Part panels(int64_t rows, const StepContext& c) const {
    int64_t work = kPanel * k_ * std::min<int64_t>(rows, 64);
    return c.part(panels_of(n_), std::max<int64_t>(1, kGrainWork / (work + 1)));
  }
  void one_expert(const LinearKernel& kernel, const uint8_t* x, int64_t rows, int64_t begin,
                  int64_t end, LinearSink sink, const StepContext& c) const {
    uint8_t *packed = c.thread_scratch(), *scratch = packed + packed_bytes();
    if (rows == 1) {
      const void* row = x;
      if (kernel.single_bytes() > 0) {
        kernel.pack_single(c.kernels, x, packed);
        row = packed;
      }
      return kernel.single(c.kernels, row, begin, end, sink, scratch);
    }
    int64_t chunk = kernel.chunk_tiles() * kTile;
    for (int64_t first = 0; first < rows; first += chunk) {
      int64_t count = std::min(rows - first, chunk);
      for (int64_t r = 0; r < count; r += kTile)
        kernel.pack_tile(c.kernels, x + (first + r) * kernel.row_bytes(),
                         std::min<int64_t>(kTile, count - r), packed, r / kTile);
      kernel.tiles(c.kernels, packed, count, begin, end, sink, scratch);
      sink.to += count * sink.stride;
    }
  }
  int64_t packed_bytes() const {
    return (kernels_[0]->chunk_tiles() * kernels_[0]->tile_bytes() + 63) / 64 * 64;
  }

  bool biased_;
  int64_t n_ = 0, k_ = 0;
  std::vector<Weight> experts_;
  std::vector<std::unique_ptr<LinearKernel>> kernels_;
};

// A matrix per head. The rows of a head lie apart; they are brought together a chunk at a time.
class HeadLinear final : public CpuOp {
 public:
  explicit HeadLinear(const OpSite& site) {
    const Weight* w = site.in[1].weight;
    need_matrix(site, w);
    heads_.reserve(static_cast<size_t>(w->groups));  // kernels refer to them
    for (int64_t h = 0; h < w->groups; ++h) {
      heads_.push_back(w->group(h));
      kernels_.push_back(make_linear_kernel(site, &heads_.back(), site.in[0].dtype));
    }
  }
  int64_t scratch_bytes() const override {
    return packed_bytes() + kTile * kernels_[0]->row_bytes() + 64 + kernels_[0]->scratch_bytes();
  }
  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    auto [begin, end] = heads(c);
    for (int64_t h = begin; h < end; ++h) one_head(h, in[0], out[0], c);
  }
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    const Part part = heads(c);
    if (part.begin >= part.end) return;
    auto count = static_cast<int64_t>(heads_.size());
    auto columns = [&](const Tensor& t, int64_t head, bool write) {
      list.columns(t, count * head, 0, t.dims[0], part.begin * head, (part.end - part.begin) * head,
                   write);
    };
    columns(in[0], kernels_[0]->row_bytes(), false);
    columns(out[0], heads_[0].n * 4, true);
  }

 private:
  Part heads(const StepContext& c) const { return c.part(static_cast<int64_t>(heads_.size()), 1); }
  void one_head(int64_t h, const Tensor& x, const Tensor& y, const StepContext& c) const {
    const LinearKernel& kernel = *kernels_[static_cast<size_t>(h)];
    int64_t rows = x.dims[0], count = x.dims[1], row = kernel.row_bytes(), n = heads_[0].n;
    const auto* from = static_cast<const uint8_t*>(x.data) + h * row;
    uint8_t *packed = c.thread_scratch(), *tile = packed + packed_bytes(),
            *scratch = tile + (kTile * row + 63) / 64 * 64;
    LinearSink sink{y.f32() + h * n, count * n, nullptr};
    if (rows == 1) {
      const void* one = from;
      if (kernel.single_bytes() > 0) {
        kernel.pack_single(c.kernels, from, packed);
        one = packed;
      }
      return kernel.single(c.kernels, one, 0, panels_of(n), sink, scratch);
    }
    int64_t chunk = kernel.chunk_tiles() * kTile;
    for (int64_t first = 0; first < rows; first += chunk) {
      int64_t size = std::min(rows - first, chunk);
      for (int64_t r = 0; r < size; r += kTile) {
        int64_t some = std::min<int64_t>(kTile, size - r);
        for (int64_t i = 0; i < some; ++i)
          std::memcpy(tile + i * row, from + (first + r + i) * count * row,
                      static_cast<size_t>(row));
        kernel.pack_tile(c.kernels, tile, some, packed, r / kTile);
      }
      kernel.tiles(c.kernels, packed, size, 0, panels_of(n), sink, scratch);
      sink.to += size * sink.stride;
    }
  }
  int64_t packed_bytes() const {
    return (kernels_[0]->chunk_tiles() * kernels_[0]->tile_bytes() + 63) / 64 * 64;
  }

  std::vector<Weight> heads_;
  std::vector<std::unique_ptr<LinearKernel>> kernels_;
};

// Every thread finds the rows of its tokens.
class Combine final : public CpuOp {
 public:
  explicit Combine(const OpSite& site) : entries_(site.in[3].elements()) {}
  int64_t scratch_bytes() const override { return entries_ * 4; }
  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    auto [begin, end] = tokens(out[0], c);
    if (begin >= end) return;
    int64_t d = in[0].last(), k = in[3].last();
    auto* row_of = reinterpret_cast<int32_t*>(c.thread_scratch());
    std::fill_n(row_of, (end - begin) * k, -1);
    int64_t used = in[2].i32()[in[2].elements() - 1];
    for (int64_t r = 0; r < used; ++r) {
      int64_t entry = in[1].i32()[r];
      if (entry >= begin * k && entry < end * k)
        row_of[entry - begin * k] = static_cast<int32_t>(r);
    }
    for (int64_t t = begin; t < end; ++t)
      add_rows(in[0].f32(), row_of + (t - begin) * k, in[3].f32() + t * k, k, d,
               out[0].f32() + t * d);
  }
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    auto [begin, end] = tokens(out[0], c);
    if (begin >= end) return;
    for (int i = 0; i < 3; ++i) list.read(in[i]);
    list.read_rows(in[3], in[3].last() * 4, begin, end);
    list.write_rows(out[0], out[0].last() * 4, begin, end);
  }

 private:
  // As defined: summed in double, in the order of the token's experts, rounded once.
  static void add_rows(const float* rows, const int32_t* row_of, const float* weights, int64_t k,
                       int64_t d, float* out) {
    constexpr int64_t kPart = 256;
    double sums[kPart];
    for (int64_t from = 0; from < d; from += kPart) {
      int64_t n = std::min(kPart, d - from);
      std::fill_n(sums, n, 0.0);
      for (int64_t i = 0; i < k; ++i) {
        if (row_of[i] < 0) continue;
        const float* row = rows + row_of[i] * d + from;
        double weight = weights[i];
        for (int64_t j = 0; j < n; ++j) sums[j] += weight * static_cast<double>(row[j]);
      }
      for (int64_t j = 0; j < n; ++j) out[from + j] = static_cast<float>(sums[j]);
    }
  }
  static Part tokens(const Tensor& y, const StepContext& c) {
    return c.part(y.rows(), std::max<int64_t>(1, kLightGrain / (4 * y.last() + 1)));
  }
  int64_t entries_;
};

}  // namespace

std::unique_ptr<CpuOp> make_route(const OpSite& site) { return std::make_unique<Route>(site); }
std::unique_ptr<CpuOp> make_dispatch(const OpSite& site) {
  return std::make_unique<Dispatch>(site);
}
std::unique_ptr<CpuOp> make_grouped_linear(const OpSite& site) {
  return std::make_unique<GroupedLinear>(site);
}
std::unique_ptr<CpuOp> make_head_linear(const OpSite& site) {
  return std::make_unique<HeadLinear>(site);
}
std::unique_ptr<CpuOp> make_combine(const OpSite& site) { return std::make_unique<Combine>(site); }

// Products with a stack of matrices: each row as the kernels of linear compute it.
void add_expert_kernels(KernelList& list) {
  auto product = [&](const std::string& name, const std::string& operands, const char* layout,
                     const char* numeric_class) {
    list.add({.name = "cpu.grouped_linear." + name,
              .pattern = "grouped_linear(" + operands + ", i32, *)",
              .weight_layout = layout,
              .numeric_class = numeric_class,
              .cost = matrix_cost},
             make_grouped_linear);
    list.add({.name = "cpu.head_linear." + name,
              .pattern = "head_linear(" + operands + ")",
              .weight_layout = layout,
              .numeric_class = numeric_class,
              .cost = matrix_cost},
             make_head_linear);
  };
  for (const char* format : kIntegerFormats)
    product(format, std::string("q8a, weight ") + format, kQuantPanels, kIntegerClass);
  for (const char* format : kMinimumFormats)
    product(format, std::string("q8a, weight ") + format, kQuantPanels, kMinimumClass);
  for (const MatrixForm& form : kMatrixForms)
    product(std::string("f32") + form.suffix, "f32, weight " + form.weights(), form.layout,
            form.numeric_class);
  list.add("moe_route", "moe_route(f32, *)", "f64, rounded once", make_route);
  list.add("moe_dispatch", "moe_dispatch(f32, i32)", "exact", make_dispatch);
  list.add("moe_combine", "moe_combine(f32, i32, i32, f32)", "f64 in the order of experts",
           make_combine);
}

}  // namespace tokamak::cpu
