// Activations bf16 on levels with a matrix unit for them (KernelTable::tile_unit). A part of a few
// panels is brought to tiles once and multiplied with all rows of a chunk.
#include <algorithm>
#include <cstring>

#include "backend/cpu/linear_kernel.h"
#include "backend/cpu/pack.h"
#include "base/error.h"

namespace tokamak::cpu {
namespace {

constexpr int64_t kPart = 256;       // values of k; whole super-blocks of every format
constexpr int64_t kParts = 4;        // at once: sums are loaded and stored once for all
constexpr int64_t kManyPanels = 16;  // at once with many rows: rows come from memory once for all
constexpr int64_t kFewPanels = 2;    // with up to kTileRows rows
constexpr int64_t kMostRows = 512;   // of a chunk: panels are brought to tiles once for all
constexpr int64_t kPackedBytes = 8 << 20;  // of a chunk

class TileLinear final : public LinearKernel {
 public:
  TileLinear(const KernelTable& kernels, const Weight* w)
      : LinearKernel(w), steps_(((w->k + kTileStep - 1) / kTileStep) | 1) {
    bool quantized = w->matrix == Weight::Matrix::kQPanel;
    spread_ = quantized ? kernels.tile_unit.spread[static_cast<int>(w->qformat)]
                        : kernels.tile_unit.spread_float[static_cast<int>(w->ftype)];
    row_ = quantized ? kernels.tile_unit.row[static_cast<int>(w->qformat)]
                     : kernels.tile_unit.row_float[static_cast<int>(w->ftype)];
    terms_ = !quantized && w->ftype == FType::kF16 ? 2 : 1;
    if (quantized) {
      const QLayout& layout = qlayout(w->qformat);
      part_bytes_ = kPart / kQuantBlock / layout.blocks * layout.bytes();
    } else {
      part_bytes_ = kPart * kPanel * 2;
    }
    limit_chunk(kPackedBytes, kMostRows / kTile, kTileRows / kTile);
  }
  int64_t row_bytes() const override { return w_->k * 2; }
  int64_t single_bytes() const override { return steps_ * kTileStep * 4; }
  int64_t tile_bytes() const override { return kTile * steps_ * kTileStep * 2; }
  int64_t scratch_bytes() const override {
    return weight_numbers() * 2 + kManyPanels * kMostRows * kPanel * 4;
  }
  // Half of what is best for the product: what follows it reads several buffers of this size.
  int64_t panels_at_once() const override { return kManyPanels / 2; }

  void pack_single(const KernelTable& kernels, const void* x, uint8_t* to) const override {
    auto* wide = reinterpret_cast<float*>(to);
    kernels.widen[static_cast<int>(FType::kBF16)](x, wide, w_->k);
    std::fill(wide + w_->k, wide + steps_ * kTileStep, 0.0F);
  }
  // [step][kTileRows][kTileStep]; rows that are absent are not read.
  void pack_tile(const KernelTable&, const void* x, int64_t n, uint8_t* to,
                 int64_t tile) const override {
    constexpr int64_t group = kTileRows / kTile, step_bytes = kTileStep * 2;
    const auto* from = static_cast<const uint8_t*>(x);
    to += tile / group * group * tile_bytes() + tile % group * kTile * step_bytes;
    for (int64_t r = 0; r < n; ++r, from += row_bytes(), to += step_bytes)
      for (int64_t at = 0; at < row_bytes(); at += step_bytes) {
        uint8_t* place = to + at * kTileRows;
        if (row_bytes() - at >= step_bytes) {
          std::memcpy(place, from + at, step_bytes);
        } else {
          std::memset(place, 0, step_bytes);
          std::memcpy(place, from + at, static_cast<size_t>(row_bytes() - at));
        }
      }
  }

  void single(const KernelTable&, const void* packed, int64_t begin, int64_t end,
              const LinearSink& sink, uint8_t* scratch) const override {
    const auto* x = static_cast<const float*>(packed);
    auto* sums = reinterpret_cast<float*>(scratch);
    int64_t half = (end - begin + 1) / 2;  // the two halves side by side
    for (int64_t p = begin; p < begin + half; ++p) {
      bool both = p + half < end;
      row_(w_->panel(p), w_->panel(both ? p + half : p), x, w_->k, sums);
      store(sink, begin, p, 0, 1, sums);
      if (both) store(sink, begin, p + half, 0, 1, sums + kPanel);
    }
  }
  void tiles(const KernelTable& kernels, const uint8_t* packed, int64_t rows, int64_t begin,
             int64_t end, const LinearSink& sink, uint8_t* scratch) const override {
    TK_CHECK(rows <= kMostRows);
    const auto* x = reinterpret_cast<const uint16_t*>(packed);
    int64_t at_once = rows > kTileRows ? kManyPanels : kFewPanels;
    for (int64_t p = begin; p < end; p += at_once)
      multiply(kernels, x, rows, p, std::min(at_once, end - p), begin, sink, scratch);
  }

 private:
  // Tiles of this size stay in the second cache.
  static constexpr int64_t weight_numbers() { return kManyPanels * kPart * kParts * kPanel; }

  void multiply(const KernelTable& kernels, const uint16_t* x, int64_t rows, int64_t panel,
                int64_t count, int64_t begin, const LinearSink& sink, uint8_t* scratch) const {
    auto* weights = reinterpret_cast<uint16_t*>(scratch);
    auto* sums = reinterpret_cast<float*>(scratch + weight_numbers() * 2);
    int64_t part = kPart * kParts / terms_;
    TileProduct t{.weights = weights,
                  .panels = count,
                  .panel_numbers = part * kPanel * terms_,
                  .terms = terms_,
                  .x = x,
                  .x_tile = steps_ * kTileStep * kTileRows,
                  .rows = rows,
                  .steps = 0,
                  .sums = sums,
                  .panel_sums = rows * kPanel,
                  .is_new = true};
    bool direct = !sink.bias && (panel + count) * kPanel <= w_->n;
    for (int64_t k = 0; k < w_->k; k += part, t.is_new = false) {
      int64_t n = std::min(part, w_->k - k);
      for (int64_t i = 0; i < count; ++i)
        spread_(w_->panel(panel + i) + k / kPart * part_bytes_, n, weights + i * t.panel_numbers);
      t.steps = (n + kTileStep - 1) / kTileStep;
      if (direct && k + part >= w_->k) {
        t.out = sink.to + (panel - begin) * kPanel;
        t.out_row = sink.stride;
      }
      kernels.tile_unit.multiply(t);
      t.x += t.steps * kTileRows * kTileStep;
    }
    for (int64_t r = 0; r < rows && !direct; ++r)  // rows are far apart: whole stretches
      for (int64_t i = 0; i < count; ++i)
        store(sink, begin, panel + i, r, 1, sums + i * t.panel_sums + r * kPanel);
  }

  // Steps of a packed row, an odd number: rows that are a power of two apart would share a few
  // cache sets.
  int64_t steps_;
  int terms_ = 1;           // tiles of a step of weights
  int64_t part_bytes_ = 0;  // of a panel
  void (*spread_)(const uint8_t*, int64_t, uint16_t*);
  void (*row_)(const uint8_t*, const uint8_t*, const float*, int64_t, float*);
};

}  // namespace

std::unique_ptr<LinearKernel> make_tile_linear(const KernelTable& kernels, const Weight* weight) {
  return std::make_unique<TileLinear>(kernels, weight);
}

}  // namespace tokamak::cpu
