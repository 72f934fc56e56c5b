// lora: a low-rank product whose matrices each row selects. Rows are sorted by adapter, so that a
// matrix is read once per step and only if a row selects it. First the inner values a x of all
// rows, which are shared out among the threads; then b times them, whose panels are. A row's result
// does not depend on the other rows (linear_kernel.h).
#include <algorithm>
#include <cstring>

#include "backend/cpu/kernels.h"
#include "backend/cpu/linear_kernel.h"
#include "base/error.h"

namespace tokamak::cpu {
namespace {

// The matrices of all slots.
struct SlotKernels {
  SlotKernels(const OpSite& site, const Weight* w) {
    need_matrix(site, w);
    slots.reserve(static_cast<size_t>(w->groups));  // kernels refer to them
    for (int64_t s = 0; s < w->groups; ++s) {
      slots.push_back(w->group(s));
      kernels.push_back(make_float_kernel(site, &slots.back()));
    }
  }
  const LinearKernel& operator[](int64_t slot) const { return *kernels[static_cast<size_t>(slot)]; }
  int64_t packed_bytes() const {
    return (kernels[0]->chunk_tiles() * kernels[0]->tile_bytes() + 63) / 64 * 64;
  }
  std::vector<Weight> slots;
  std::vector<std::unique_ptr<LinearKernel>> kernels;
};

class Lora final : public CpuOp {
 public:
  explicit Lora(const OpSite& site)
      : a_(site, site.in[1].weight),
        b_(site, site.in[2].weight),
        whole_(*site.in[1].weight),
        rank_(a_.slots[0].n),
        k_(a_.slots[0].k),
        n_(b_.slots[0].n),
        most_rows_(site.in[0].rows()) {}
  int stages(const Tensor*, const Tensor*, const StepContext&) const override { return 2; }
  int64_t shared_bytes() const override { return most_rows_ * rank_ * 4; }
  int64_t scratch_bytes() const override {
    int64_t kernel = std::max(a_[0].scratch_bytes(), b_[0].scratch_bytes());
    int64_t packed = std::max(a_.packed_bytes(), b_.packed_bytes());
    return order_bytes() + packed + side_bytes() + kernel;
  }
  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    const int32_t* adapter = in[3].i32();
    const int64_t rows = in[0].rows();
    Work work;
    work.begin = reinterpret_cast<int32_t*>(c.thread_scratch());
    work.order = work.begin + slots() + 2;
    work.packed = c.thread_scratch() + order_bytes();
    work.side =
        reinterpret_cast<float*>(work.packed + std::max(a_.packed_bytes(), b_.packed_bytes()));
    work.scratch = reinterpret_cast<uint8_t*>(work.side) + side_bytes();
    work.inner = reinterpret_cast<float*>(c.shared_scratch);
    sort(adapter, rows, work);
    if (c.stage == 0)
      inner_values(in[0].f32(), inner_part(rows, c), work, c.kernels);
    else
      outer_values(out[0].f32(), rows, panels(rows, c), work, c.kernels);
  }
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    const int64_t rows = in[0].rows();
    list.read(in[3]);
    if (c.stage == 0) {
      Part part = inner_part(rows, c);
      if (part.begin >= part.end) return;
      list.read(in[0]);
      list.memory(reinterpret_cast<float*>(c.shared_scratch) + part.begin * rank_,
                  (part.end - part.begin) * rank_ * 4, true);
      return;
    }
    Part part = panels(rows, c);
    if (part.begin >= part.end || rows == 0) return;
    list.memory(c.shared_scratch, rows * rank_ * 4, false);
    int64_t from = part.begin * kPanel, to = std::min(part.end * kPanel, n_);
    list.columns(out[0], n_ * 4, 0, rows, from * 4, (to - from) * 4, true);
  }

 private:
  static constexpr int64_t kSidePanels = 4;

  // Rows in the order of their slots; those without an adapter, or whose adapter does not change
  // this matrix, come last.
  struct Work {
    int32_t *begin, *order;  // [slots + 2]: where each slot's rows begin; [rows]
    uint8_t *packed, *scratch;
    float *side, *inner;  // results before they are spread to their rows; [rows, rank]
  };
  int64_t slots() const { return static_cast<int64_t>(a_.slots.size()); }
  int64_t order_bytes() const { return ((slots() + 2 + most_rows_) * 4 + 63) / 64 * 64; }
  int64_t side_bytes() const {
    const int64_t rows = b_[0].chunk_tiles() * kTile;
    return (std::max(kTile * k_, rows * kSidePanels * kPanel) * 4 + 63) / 64 * 64;
  }
  int64_t slot_of(int32_t adapter) const {
    TK_CHECK(adapter < slots(), "lora: adapter {} of {}", adapter, slots());
    // A stack that is a plain weight of the model has no empty slots.
    bool used =
        adapter >= 0 && (whole_.filled.empty() || whole_.filled[static_cast<size_t>(adapter)]);
    return used ? adapter : slots();
  }
  void sort(const int32_t* adapter, int64_t rows, Work& work) const {
    int64_t all = slots();
    std::fill_n(work.begin, all + 2, 0);
    for (int64_t t = 0; t < rows; ++t) ++work.begin[slot_of(adapter[t]) + 1];
    for (int64_t s = 0; s <= all; ++s) work.begin[s + 1] += work.begin[s];
    for (int64_t t = 0; t < rows; ++t)
      work.order[work.begin[slot_of(adapter[t])]++] = static_cast<int32_t>(t);
    for (int64_t s = all + 1; s > 0; --s) work.begin[s] = work.begin[s - 1];
    work.begin[0] = 0;
  }

  Part inner_part(int64_t rows, const StepContext& c) const {
    return c.part(rows, std::max<int64_t>(1, kGrainWork / (rank_ * k_ + 1)));
  }
  Part panels(int64_t rows, const StepContext& c) const {
    int64_t work = kPanel * rank_ * std::min<int64_t>(rows, 64);
    return c.part(panels_of(n_), std::max<int64_t>(1, kGrainWork / (work + 1)));
  }

  // Sorted rows [begin, end) of inner.
  void inner_values(const float* x, Part part, const Work& work, const KernelTable& k) const {
    for (int64_t s = 0; s < slots(); ++s) {
      int64_t first = std::max<int64_t>(part.begin, work.begin[s]),
              last = std::min<int64_t>(part.end, work.begin[s + 1]);
      const LinearKernel& kernel = a_[s];
      int64_t chunk = kernel.chunk_tiles() * kTile;
      for (; first < last; first += chunk) {
        int64_t count = std::min(last - first, chunk);
        LinearSink sink{work.inner + first * rank_, rank_, nullptr};
        if (count == 1) {
          kernel.single(k, x + work.order[first] * k_, 0, panels_of(rank_), sink, work.scratch);
          continue;
        }
        for (int64_t r = 0; r < count; r += kTile) {
          int64_t some = std::min<int64_t>(kTile, count - r);
          for (int64_t i = 0; i < some; ++i)
            std::copy_n(x + work.order[first + r + i] * k_, k_, work.side + i * k_);
          kernel.pack_tile(k, work.side, some, work.packed, r / kTile);
        }
        kernel.tiles(k, work.packed, count, 0, panels_of(rank_), sink, work.scratch);
      }
    }
  }

  // Columns of the panels [begin, end) of all rows.
  void outer_values(float* y, int64_t rows, Part part, const Work& work,
                    const KernelTable& k) const {
    if (part.begin >= part.end) return;
    for (int64_t s = 0; s < slots(); ++s) {
      int64_t chunk = b_[s].chunk_tiles() * kTile;
      for (int64_t first = work.begin[s], last = work.begin[s + 1]; first < last; first += chunk) {
        int64_t count = std::min(last - first, chunk);
        const int32_t* order = work.order + first;
        const float* inner = work.inner + first * rank_;
        if (count == 1) {
          LinearSink sink{y + order[0] * n_ + part.begin * kPanel, n_, nullptr};
          b_[s].single(k, inner, part.begin, part.end, sink, work.scratch);
        } else {
          many(b_[s], inner, order, count, y, part, work, k);
        }
      }
    }
    int64_t from = part.begin * kPanel, width = std::min(part.end * kPanel, n_) - from;
    for (int64_t i = work.begin[slots()]; i < rows; ++i)
      std::fill_n(y + work.order[i] * n_ + from, width, 0.0f);
  }
  void many(const LinearKernel& kernel, const float* inner, const int32_t* order, int64_t count,
            float* y, Part part, const Work& work, const KernelTable& k) const {
    for (int64_t r = 0; r < count; r += kTile)
      kernel.pack_tile(k, inner + r * rank_, std::min<int64_t>(kTile, count - r), work.packed,
                       r / kTile);
    constexpr int64_t kStride = kSidePanels * kPanel;
    for (int64_t p = part.begin; p < part.end; p += kSidePanels) {
      int64_t end = std::min(part.end, p + kSidePanels);
      int64_t width = std::min(end * kPanel, n_) - p * kPanel;
      kernel.tiles(k, work.packed, count, p, end, {work.side, kStride, nullptr}, work.scratch);
      for (int64_t r = 0; r < count; ++r)
        std::copy_n(work.side + r * kStride, width, y + order[r] * n_ + p * kPanel);
    }
  }

  SlotKernels a_, b_;
  const Weight& whole_;
  int64_t rank_, k_, n_, most_rows_;
};

}  // namespace

std::unique_ptr<CpuOp> make_lora(const OpSite& site) { return std::make_unique<Lora>(site); }

void add_lora_kernels(KernelList& list) {
  std::string types = weight_types(kFloatPanels);
  list.add(
      {.name = "cpu.lora",
       .pattern = fmt::format("lora(f32, weight {}, weight {}, i32)", types, types),
       .weight_layout = kFloatPanels,
       .numeric_class = "two products, each f32 fma in k order, one accumulator, rounded to f32",
       .cost = matrix_cost,
       .scratch = lora_scratch},
      make_lora);
}

}  // namespace tokamak::cpu
