// append: writes the step's rows into the planes of a state, converted to the plane's type and
// spread into its panels.
#include <algorithm>
#include <cstring>

#include "backend/cpu/kernels.h"
#include "base/error.h"
#include "tensor/plane.h"

namespace tokamak::cpu {
namespace {

template <class T>
void spread_head(const KvPlane& plane, uint8_t* panel, int64_t lane, const T* x) {
  auto* to = reinterpret_cast<T*>(panel);
  if (plane.key) {
    for (int64_t d = 0; d < plane.width; ++d) to[d * kPanel + lane] = x[d];
  } else {
    for (int64_t d = 0; d < plane.width; d += kPanel)
      std::memcpy(to + (d + lane) * kPanel, x + d,
                  static_cast<size_t>(std::min<int64_t>(kPanel, plane.width - d)) * sizeof(T));
  }
}
template <class T>
void spread(const KvPlane& plane, int64_t block, int64_t token, const T* x, Part heads) {
  for (int64_t h = heads.begin; h < heads.end; ++h, x += plane.width)
    spread_head(plane, plane.panel(block, h, token / kPanel), token % kPanel, x);
}
void append_i8(const KvPlane& plane, int64_t block, int64_t token, const float* x, Part heads,
               int8_t* q) {
  for (int64_t h = heads.begin; h < heads.end; ++h, x += plane.width) {
    uint8_t* panel = plane.panel(block, h, token / kPanel);
    plane.scales(panel)[token % kPanel] = quantize_plane_row(x, plane.width, q);
    spread_head(plane, panel, token % kPanel, q);
  }
}

class Append final : public CpuOp {
 public:
  explicit Append(const OpSite& site) : state_(&site.kv.state(site.in[0].index)) {
    for (const KvPlane& p : state_->planes) widest_ = std::max(widest_, p.heads * p.width);
    if (site.in.size() < 4 + state_->planes.size())
      fail(ErrorCode::kCorrupt, "{}: append needs a tensor for each plane", site.label);
  }
  int64_t scratch_bytes() const override { return widest_ * 4; }

  void run(const Tensor* in, const Tensor*, const StepContext& c) const override {
    const StepInputs::Table& table = c.step->tables[state_->group];
    const int32_t *seq = in[2].i32(), *slot = in[3].i32();
    int64_t size = state_->block_size;
    Cells mine = cells(in, c);
    if (mine.empty()) return;
    for (int64_t i = mine.rows.begin; i < mine.rows.end; ++i) {
      if (slot[i] < 0) continue;  // padding
      int64_t block = table.blocks[static_cast<size_t>(seq[i] * table.stride + slot[i] / size)];
      TK_CHECK(block >= 0, "append: row {} has no block", i);
      for (size_t p = 0; p < state_->planes.size(); ++p) {
        const KvPlane& plane = state_->planes[p];
        const float* x = in[4 + p].f32() + i * plane.heads * plane.width;
        store_plane_row(c.kernels, plane, block, slot[i] % size, x, heads_of(plane, mine),
                        c.thread_scratch());
      }
    }
  }
  void touch(const Tensor* in, const Tensor*, const StepContext& c,
             AccessList& list) const override {
    Cells mine = cells(in, c);
    if (mine.empty()) return;
    list.read(in[2]);
    list.read(in[3]);
    for (size_t p = 0; p < state_->planes.size(); ++p) {
      const KvPlane& plane = state_->planes[p];
      Part h = heads_of(plane, mine);
      int64_t head = plane.width * 4;
      list.columns(in[4 + p], plane.heads * head, mine.rows.begin, mine.rows.end, h.begin * head,
                   (h.end - h.begin) * head, false);
    }
    list.cells(*state_, mine.rows.begin, mine.rows.end, mine.heads.begin, mine.heads.end, true);
  }

 private:
  Cells cells(const Tensor* in, const StepContext& c) const {
    return cells_of(c, in[2].elements(), state_->heads(),
                    std::max<int64_t>(1, kLightGrain / (4 * widest_ + 1)));
  }
  // Planes that differ in heads are not cut.
  Part heads_of(const KvPlane& plane, const Cells& cells) const {
    return state_->heads() == plane.heads ? cells.heads : Part{0, plane.heads};
  }

  const KvState* state_;
  int64_t widest_ = 1;
};

}  // namespace

Cells cells_of(const StepContext& c, int64_t rows, int64_t heads, int64_t row_grain) {
  if (c.threads > 1 && heads % c.threads == 0) return {{0, rows}, c.part(heads, 1)};
  return {c.part(rows, row_grain), {0, heads}};
}

void store_plane_row(const KernelTable& kernels, const KvPlane& plane, int64_t block, int64_t token,
                     const float* x, Part heads, uint8_t* scratch) {
  x += heads.begin * plane.width;
  if (plane.type == FType::kI8)
    return append_i8(plane, block, token, x, heads, reinterpret_cast<int8_t*>(scratch));
  kernels.narrow[static_cast<int>(plane.type)](x, scratch, (heads.end - heads.begin) * plane.width);
  if (plane.element == 2)
    spread(plane, block, token, reinterpret_cast<const uint16_t*>(scratch), heads);
  else
    spread(plane, block, token, reinterpret_cast<const uint32_t*>(scratch), heads);
}

std::unique_ptr<CpuOp> make_append(const OpSite& site) { return std::make_unique<Append>(site); }

void add_append_kernels(KernelList& list) {
  list.add("append", "append(*, *, i32, i32, f32, *, *, *, *, *, *, *)",
           "rounded to the plane's type, nearest even", make_append);
}

}  // namespace tokamak::cpu
