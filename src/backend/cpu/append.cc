// append: writes the step's rows into the planes of a state, converted to the plane's type and
// spread into its panels.
#include <cstring>

#include "backend/cpu/exec.h"
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
    for (int64_t d = 0; d < plane.width; ++d)
      to[(d / kPanel * kPanel + lane) * kPanel + d % kPanel] = x[d];
  }
}
template <class T>
void spread(const KvPlane& plane, int64_t block, int64_t token, const T* x) {
  for (int64_t h = 0; h < plane.heads; ++h, x += plane.width)
    spread_head(plane, plane.panel(block, h, token / kPanel), token % kPanel, x);
}
void append_i8(const KvPlane& plane, int64_t block, int64_t token, const float* x, int8_t* q) {
  for (int64_t h = 0; h < plane.heads; ++h, x += plane.width) {
    uint8_t* panel = plane.panel(block, h, token / kPanel);
    plane.scales(panel)[token % kPanel] = quantize_plane_row(x, plane.width, q);
    spread_head(plane, panel, token % kPanel, q);
  }
}

class Append final : public Op {
 public:
  explicit Append(const OpSite& site) : state_(&site.kv.state(site.in[0].index)) {
    for (const KvPlane& p : state_->planes) widest_ = std::max(widest_, p.heads * p.width);
    if (site.in.size() < 4 + state_->planes.size())
      fail(ErrorCode::kCorrupt, "{}: append needs a tensor for each plane", site.label);
  }
  int64_t scratch_bytes() const override { return widest_ * 4; }

  void run(const Tensor* in, const Tensor*, StepContext& c) override {
    const StepInputs::Table& table = c.step->tables[state_->group];
    const int32_t *seq = in[2].i32(), *slot = in[3].i32();
    int64_t size = state_->block_size;
    c.pool.split(in[2].elements(), std::max<int64_t>(1, kLightGrain / (4 * widest_ + 1)),
                 [&](int64_t begin, int64_t end, int thread) {
                   for (int64_t i = begin; i < end; ++i) {
                     if (slot[i] < 0) continue;  // padding
                     int64_t block =
                         table.blocks[static_cast<size_t>(seq[i] * table.stride + slot[i] / size)];
                     TK_CHECK(block >= 0, "append: row {} has no block", i);
                     for (size_t p = 0; p < state_->planes.size(); ++p) {
                       const KvPlane& plane = state_->planes[p];
                       const float* x = in[4 + p].f32() + i * plane.heads * plane.width;
                       store_plane_row(c.kernels, plane, block, slot[i] % size, x,
                                       c.thread_scratch(thread));
                     }
                   }
                 });
  }

 private:
  const KvState* state_;
  int64_t widest_ = 1;
};

}  // namespace

void store_plane_row(const KernelTable& kernels, const KvPlane& plane, int64_t block, int64_t token,
                     const float* x, uint8_t* scratch) {
  if (plane.type == FType::kI8)
    return append_i8(plane, block, token, x, reinterpret_cast<int8_t*>(scratch));
  kernels.narrow[static_cast<int>(plane.type)](x, scratch, plane.heads * plane.width);
  if (plane.element == 2)
    spread(plane, block, token, reinterpret_cast<const uint16_t*>(scratch));
  else
    spread(plane, block, token, reinterpret_cast<const uint32_t*>(scratch));
}

std::unique_ptr<Op> make_state_op(const OpSite& site) {
  if (site.op == "append") return std::make_unique<Append>(site);
  return nullptr;
}

}  // namespace tokamak::cpu
