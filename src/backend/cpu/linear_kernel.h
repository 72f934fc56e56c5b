#pragma once
// The product of activation rows with the panels of one matrix: used by linear and by regions of
// several matrices. Activations are first packed, one row or tiles of kTile rows; matrices of
// the same input type and length read the same packing. What a row's result is does not depend on
// the tile, the chunk or the thread (kernel_table.h).
#include <algorithm>
#include <memory>

#include "backend/cpu/exec.h"

namespace tokamak::cpu {

constexpr int64_t kGrainWork = 96 * 1024;  // multiply-adds that are worth a thread
constexpr int64_t kMaxTiles = 32;

// The size of kTile activation rows of length k, packed for any weight.
int64_t most_tile_bytes(DType activations, int64_t k);

// Where results go: row r, column c of panel p at to[r * stride + (p - first panel) * kPanel + c].
struct LinearSink {
  float* to;
  int64_t stride;
  const float* bias;  // of the whole matrix; may be nullptr
};

// Owned by an op; refers to the weight. Stateless: any thread, its own scratch.
class LinearKernel {
 public:
  explicit LinearKernel(const Weight* w) : w_(w) {}
  virtual ~LinearKernel() = default;
  const Weight& weight() const { return *w_; }
  virtual int64_t row_bytes() const { return w_->k * 4; }  // of a row as ops exchange it

  virtual int64_t single_bytes() const = 0;  // of one packed row; 0: rows are read as they are
  virtual int64_t tile_bytes() const = 0;    // of kTile packed rows
  virtual void pack_single(const KernelTable& k, const void* x, uint8_t* to) const = 0;
  // `n` consecutive rows to tile number `tile` of those at `to`; absent rows of it become zero.
  virtual void pack_tile(const KernelTable& k, const void* x, int64_t n, uint8_t* to,
                         int64_t tile) const = 0;
  virtual int64_t scratch_bytes() const = 0;  // for the two below
  virtual void single(const KernelTable& k, const void* packed, int64_t begin, int64_t end,
                      const LinearSink& sink, uint8_t* scratch) const = 0;
  // `packed`: the first tile of a chunk.
  virtual void tiles(const KernelTable& k, const uint8_t* packed, int64_t rows, int64_t begin,
                     int64_t end, const LinearSink& sink, uint8_t* scratch) const = 0;

  // How many panels are best multiplied in one call with many rows.
  virtual int64_t panels_at_once() const { return 1; }

  int64_t chunk_tiles() const;                      // tiles that stay in a core's cache
  int64_t tile_step() const { return tile_step_; }  // tiles that lie together
  int64_t packed_bytes(int64_t rows) const {
    int64_t group = kTile * tile_step_;
    return (rows + group - 1) / group * tile_step_ * tile_bytes();
  }

 protected:
  void store(const LinearSink& sink, int64_t begin, int64_t panel, int64_t row, int64_t count,
             const float* sums) const;
  // One row with panels of 16-bit numbers, the two halves of them side by side: two read streams.
  using TwoPanels = void (*)(const void* panel, const void* other, const uint16_t* x, int64_t k,
                             float* out);
  void single_by_halves(TwoPanels product, const uint16_t* x, int64_t begin, int64_t end,
                        const LinearSink& sink) const;
  void limit_chunk(int64_t bytes, int64_t tiles, int64_t step);
  // What is multiplied next comes from memory during this product: prefetches `bytes` bytes at
  // `offset` of the panels [panel, end), of which rows [row, row + some) of `rows` do their share.
  void prefetch(int64_t panel, int64_t end, int64_t offset, int64_t bytes, int64_t row,
                int64_t some, int64_t rows) const {
    int64_t from = bytes * row / rows / 64 * 64, to = bytes * std::min(row + some, rows) / rows;
    for (; panel < end; ++panel)
      for (int64_t at = from; at < to; at += 64)
        __builtin_prefetch(w_->panel(panel) + offset + at, 0, 2);
  }
  const Weight* w_;

 private:
  int64_t chunk_bytes_ = 384 * 1024, chunk_tiles_ = kMaxTiles, tile_step_ = 1;
};

// Throws Error(kUnsupported) when there is no kernel for these activations and this weight.
std::unique_ptr<LinearKernel> make_linear_kernel(const OpSite& site, const Weight* weight,
                                                 DType activations);
// Activations bf16, on levels with a tile_unit.
std::unique_ptr<LinearKernel> make_tile_linear(const KernelTable& kernels, const Weight* weight);
// Activations f32, weights int16_g128, on levels with products of pairs.
std::unique_ptr<LinearKernel> make_pair_linear(const KernelTable& kernels, const Weight* weight);
// Activations f32, or bf16 that are brought to f32; weights of any type but those in quantised
// panels.
std::unique_ptr<LinearKernel> make_float_linear(const KernelTable& kernels, const Weight* weight,
                                                DType activations);
// Reads rows as they are (single_bytes is 0), whatever the type of the weight, which has no integer
// dot products.
std::unique_ptr<LinearKernel> make_float_kernel(const OpSite& site, const Weight* weight);
// Throws Error(kUnsupported) unless the operand is a weight in panels.
void need_matrix(const OpSite& site, const Weight* weight);

}  // namespace tokamak::cpu
