#include <algorithm>

#include "backend/cpu/linear_kernel.h"

namespace tokamak::cpu {
namespace {

// Activations f32 and weights int16_g128: a row is rounded to int16 in blocks of the same form.
class PairLinear final : public LinearKernel {
 public:
  PairLinear(const KernelTable& kernels, const Weight* w)
      : LinearKernel(w), blocks_(w->k / kPairBlock), panels_(kernels.float_panels) {
    limit_chunk(kChunkBytes, kChunkTiles, 1);
  }
  int64_t single_bytes() const override { return tile_bytes(); }
  int64_t tile_bytes() const override { return blocks_ * static_cast<int64_t>(sizeof(XPairs4)); }
  int64_t scratch_bytes() const override { return 0; }
  // Wide enough for whole stretches of memory where results go through further ops.
  int64_t panels_at_once() const override { return 4 * panels_; }

  void pack_single(const KernelTable& k, const void* x, uint8_t* to) const override {
    pack_tile(k, x, 1, to, 0);
  }
  void pack_tile(const KernelTable& k, const void* x, int64_t n, uint8_t* to,
                 int64_t tile) const override {
    k.pairs.pack(static_cast<const float*>(x), w_->k, n, w_->k,
                 reinterpret_cast<XPairs4*>(to + tile * tile_bytes()));
  }
  void single(const KernelTable& k, const void* packed, int64_t begin, int64_t end,
              const LinearSink& sink, uint8_t* scratch) const override {
    tiles(k, static_cast<const uint8_t*>(packed), 1, begin, end, sink, scratch);
  }
  // Results are where they stay from the start: a part of k is added to them at a time, while it
  // is in the L1 cache for a few panels.
  void tiles(const KernelTable& kernels, const uint8_t* packed, int64_t rows, int64_t begin,
             int64_t end, const LinearSink& sink, uint8_t*) const override {
    PairProduct p{};
    p.panel_bytes = w_->panel_bytes;
    p.x_tile = blocks_;
    p.stride = sink.stride;
    for (int64_t first = begin; first < end; first += panels_) {
      p.count = std::min(panels_, end - first);
      p.columns = std::min(p.count * kPanel, w_->n - first * kPanel);
      p.bias = sink.bias ? sink.bias + first * kPanel : nullptr;
      for (int64_t b = 0; b < blocks_; b += kPart) {
        p.blocks = std::min(kPart, blocks_ - b);
        p.panels = w_->panel(first) + b * kPairPanelBlock;
        p.is_new = b == 0;
        bool last = b + kPart >= blocks_;
        int64_t next = last ? first + panels_ : first, next_block = last ? 0 : b + kPart;
        for (int64_t r = 0; r < rows; r += kRows) {
          prefetch(next, std::min(next + panels_, end), next_block * kPairPanelBlock,
                   std::min(kPart, blocks_ - next_block) * kPairPanelBlock, r, kRows, rows);
          p.rows = std::min(kRows, rows - r);
          p.x = reinterpret_cast<const XPairs4*>(packed) + r / kTile * blocks_ + b;
          p.out = sink.to + r * sink.stride + (first - begin) * kPanel;
          kernels.pairs.multiply(p);
        }
      }
    }
  }

 private:
  static constexpr int64_t kPart = 2, kRows = 32, kChunkTiles = 64, kChunkBytes = 1 << 20;

  int64_t blocks_, panels_;
};

}  // namespace

std::unique_ptr<LinearKernel> make_pair_linear(const KernelTable& kernels, const Weight* weight) {
  return std::make_unique<PairLinear>(kernels, weight);
}

}  // namespace tokamak::cpu
