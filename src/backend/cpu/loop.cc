// A region that is one loop program: rows, or tiles of rows, are split over the threads.
#include <algorithm>
#include <cstring>

#include "backend/cpu/loop_plan.h"
#include "base/error.h"

namespace tokamak::cpu {
namespace {

class LoopOp final : public CpuOp {
 public:
  LoopOp(loop::Program program, const OpSite& site)
      : plan_(std::move(program), site.kernels, site) {
    std::vector<std::string> order;
    for (const SymbolDecl& s : site.symbols) order.push_back(s.name);
    bounds_ = loop::Bounds(plan_.program, order);
    in_elements_.resize(plan_.program.in.size());
    out_elements_.resize(plan_.program.out.size());
  }
  int64_t scratch_bytes() const override { return plan_.scratch_bytes(); }

  void bind(const Tensor* in, const Tensor* out, const StepContext& c) override {
    for (size_t i = 0; i < in_elements_.size(); ++i) in_elements_[i] = in[i].elements();
    for (size_t i = 0; i < out_elements_.size(); ++i) out_elements_[i] = out[i].elements();
    bounds_.bind(c.symbols, in_elements_, out_elements_);
  }

  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    if (plan_.scatters && c.thread == 0)
      for (size_t s = 0; s < plan_.program.stores.size(); ++s)
        if (plan_.program.stores[s].to.by >= 0)
          std::memset(out[s].data, 0, dtype_bytes(out[s].dtype, out[s].elements()));
    auto [begin, end] = units(c);
    if (begin < end)
      LoopRunner(plan_, bounds_, c.kernels, in, out, c.thread_scratch()).run(begin, end);
  }

  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    if (plan_.scatters) {
      if (c.thread != 0) return;
      for (size_t i = 0; i < in_elements_.size(); ++i) list.read(in[i]);
      for (size_t i = 0; i < out_elements_.size(); ++i) list.write(out[i]);
      return;
    }
    auto [begin, end] = units(c);
    if (begin >= end) return;
    int64_t columns = bounds_.columns();
    if (plan_.whole_rows) return touch_rows(in, out, begin, end, 0, columns, list);
    // The rest of a row, whole rows, the beginning of one.
    int64_t tiles = (columns + plan_.tile - 1) / plan_.tile;
    while (begin < end) {
      int64_t row = begin / tiles, first = begin % tiles, stop = std::min(end, (row + 1) * tiles),
              next = row + 1;
      if (first == 0 && stop == (row + 1) * tiles) next = end / tiles, stop = next * tiles;
      touch_rows(in, out, row, next, first * plan_.tile,
                 std::min(columns, ((stop - 1) % tiles + 1) * plan_.tile), list);
      begin = stop;
    }
  }

 private:
  // Rows, or tiles of rows, of this thread.
  Part units(const StepContext& c) const {
    int64_t columns = bounds_.columns(), rows = columns == 0 ? 0 : bounds_.row_count();
    if (plan_.scatters) return c.thread == 0 ? Part{0, rows} : Part{};
    if (plan_.whole_rows)
      return c.part(rows, std::max<int64_t>(1, kLightGrain / (columns * plan_.cost + 1)));
    int64_t tiles = (columns + plan_.tile - 1) / plan_.tile;
    return c.part(rows * tiles, std::max<int64_t>(1, kLightGrain / (plan_.tile * plan_.cost)));
  }

  // Columns [from, to) of some rows.
  void touch_rows(const Tensor* in, const Tensor* out, int64_t row, int64_t end, int64_t from,
                  int64_t to, AccessList& list) const {
    const loop::Program& p = plan_.program;
    for (size_t i = 0; i < p.code.size(); ++i) {
      if (p.code[i].op != loop::Op::kLoad) continue;
      const Tensor& t = in[p.code[i].access.param];
      if (p.code[i].access.by >= 0)
        list.read(t);
      else
        touch_access(t, bounds_.of_instr(i), row, end, from, to, false, list);
    }
    for (size_t s = 0; s < p.stores.size(); ++s)
      touch_access(out[s], bounds_.of_store(s), row, end, from, to, true, list);
  }
  void touch_access(const Tensor& t, const loop::BoundAccess& b, int64_t row, int64_t end,
                    int64_t from, int64_t to, bool write, AccessList& list) const {
    if (t.weight || !t.data) return;
    auto bytes = [&](int64_t elements) {
      if (t.dtype == DType::kQ8A) return elements / kQuantBlock * kActivationBlock;
      return elements * (t.dtype == DType::kF16 || t.dtype == DType::kBF16 ? 2 : 4);
    };
    auto start = [&](int64_t r) {
      int64_t at[loop::kMaxRowAxes] = {};
      bounds_.row_indices(r, at);
      return bounds_.row_offset(b, at) + b.column * from;
    };
    int64_t width = b.column * (to - from - 1) + 1;
    if (t.dtype == DType::kQ8A) width = to - from;
    MemoryAccess a;
    a.write = write;
    auto base = reinterpret_cast<uintptr_t>(t.data);
    size_t axes = plan_.program.rows.size();
    bool dense = b.column <= 1;
    if (axes <= 1 && dense) {
      a.base = base + static_cast<uintptr_t>(bytes(start(row)));
      a.width = bytes(width);
      a.stride = axes == 1 ? bytes(b.rows[0]) : a.width;
      a.rows = a.stride == 0 ? 1 : end - row;
      return list.add(a);
    }
    if (dense && end - row <= kMostRows) {
      for (int64_t r = row; r < end; ++r) {
        a.base = base + static_cast<uintptr_t>(bytes(start(r)));
        a.width = a.stride = bytes(width);
        list.add(a);
      }
      return;
    }
    list.memory(t.data, static_cast<int64_t>(dtype_bytes(t.dtype, t.elements())), write, true);
  }

  static constexpr int64_t kMostRows = 16;  // that are listed one by one
  LoopPlan plan_;
  loop::Bounds bounds_;
  std::vector<int64_t> in_elements_, out_elements_;
};

// The call's arguments must be what the program was made for.
void check_arguments(const loop::Program& program, const OpSite& site) {
  auto check = [&](const std::vector<TensorType>& want, const std::vector<Tensor>& have,
                   std::string_view what) {
    if (want.size() > have.size())
      fail(ErrorCode::kCorrupt, "{}: its loop program has {} {}, the call {}", site.label,
           want.size(), what, have.size());
    for (size_t i = 0; i < want.size(); ++i) {
      auto elements = want[i].elements().constant();  // others are checked in every step
      if (want[i].dtype != have[i].dtype || (elements && *elements != have[i].elements()))
        fail(ErrorCode::kCorrupt, "{}: {} {} of its loop program is {}, the call has {}[{}]",
             site.label, what, i, want[i].text(), dtype_name(have[i].dtype), have[i].elements());
    }
  };
  check(program.in, site.in, "inputs");
  check(program.out, site.out, "outputs");
}

}  // namespace

std::unique_ptr<CpuOp> make_loop(const OpSite& site) {
  const loop::Program* program = site.region->whole_program();
  if (!program)
    fail(ErrorCode::kUnsupported, "{}: this kernel runs regions that are one loop program",
         site.label);
  check_arguments(*program, site);
  return std::make_unique<LoopOp>(loop::merge_rows(*program), site);
}

}  // namespace tokamak::cpu
