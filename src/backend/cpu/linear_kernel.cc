#include "backend/cpu/linear_kernel.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "tensor/block_formats.h"

namespace tokamak::cpu {
namespace {

constexpr int64_t kPanelPart = 256;  // k values of a panel decoded at a time
constexpr int kDigits = 3;           // int8 numbers that a float of a row becomes

// Activations q8a, weights of a format with integer dot products.
class QuantLinear final : public LinearKernel {
 public:
  QuantLinear(const KernelTable& kernels, const Weight* w)
      : LinearKernel(w), blocks_(w->k / kQuantBlock) {
    int f = static_cast<int>(w_->qformat);
    dot1_ = kernels.qdot1[f];
    dot1x2_ = kernels.qdot1x2[f];
    dot4_ = kernels.qdot4[f];
    dot4x2_ = kernels.qdot4x2[f];
    widen_ = kernels.qwiden[f];
    wide_ = kernels.qwide[f];
    panels_ = kernels.wide_panels;
    part_ = std::min<int64_t>(blocks_, kernels.wide_blocks);
    group_ = part_ < blocks_ ? std::max<int64_t>(panels_, kernels.wide_group) : panels_;
    tiles_ = kernels.x_tiles;
    most_rows_ = kernels.chunk_tiles * kTile;
    int64_t parts = kernels.wide_group > 1 ? (blocks_ + part_ - 1) / part_ : 1;
    limit_chunk(kernels.chunk_bytes * parts, kernels.chunk_tiles, kernels.x_tiles);
    wide_rows_ = kernels.wide_rows[f];
    few_rows_ = kernels.few_rows;
  }
  int64_t row_bytes() const override { return blocks_ * kActivationBlock; }
  int64_t single_bytes() const override { return blocks_ * static_cast<int64_t>(sizeof(XBlock1)); }
  int64_t tile_bytes() const override { return blocks_ * static_cast<int64_t>(sizeof(XBlock4)); }
  int64_t scratch_bytes() const override {
    if (!wide_) return 0;
    return panels_ * part_ * kWideBlock + group_ * most_rows_ * kPanel * 4;
  }
  int64_t panels_at_once() const override { return group_; }

  void pack_single(const KernelTable& k, const void* x, uint8_t* to) const override {
    k.pack_x1(x, blocks_, reinterpret_cast<XBlock1*>(to));
  }
  void pack_tile(const KernelTable& k, const void* x, int64_t n, uint8_t* to,
                 int64_t tile) const override {
    const void* rows[kTile];
    for (int64_t i = 0; i < n; ++i)
      rows[i] = static_cast<const uint8_t*>(x) + i * blocks_ * kActivationBlock;
    k.pack_x4(rows, static_cast<int>(n), blocks_, static_cast<int>(tile % tiles_),
              reinterpret_cast<XBlock4*>(to + tile / tiles_ * tiles_ * tile_bytes()));
  }
  void single(const KernelTable&, const void* packed, int64_t begin, int64_t end,
              const LinearSink& sink, uint8_t*) const override {
    const auto* x = static_cast<const XBlock1*>(packed);
    float sums[2 * kPanel];
    int64_t half = dot1x2_ ? (end - begin) / 2 : 0;  // the two halves side by side
    for (int64_t p = begin; p < begin + half; ++p) {
      dot1x2_(w_->panel(p), w_->panel(p + half), x, blocks_, sums);
      store(sink, begin, p, 0, 1, sums);
      store(sink, begin, p + half, 0, 1, sums + kPanel);
    }
    for (int64_t p = begin + 2 * half; p < end; ++p) {
      dot1_(w_->panel(p), x, blocks_, sums);
      store(sink, begin, p, 0, 1, sums);
    }
  }
  void tiles(const KernelTable&, const uint8_t* packed, int64_t rows, int64_t begin, int64_t end,
             const LinearSink& sink, uint8_t* scratch) const override {
    const auto* x = reinterpret_cast<const XBlock4*>(packed);
    if (wide_ && rows >= wide_rows_) return wide_tiles(x, rows, begin, end, sink, scratch);
    TK_CHECK(rows <= few_rows_ || tiles_ == 1);
    float sums[2 * kMostFewRows * kPanel];
    auto each_few = [&](auto&& product) {
      for (int64_t r = 0; r < rows; r += few_rows_)
        product(x + r / kTile * blocks_, r, static_cast<int>(std::min(few_rows_, rows - r)));
    };
    int64_t half = dot4x2_ ? (end - begin) / 2 : 0;  // the two halves side by side
    for (int64_t p = begin; p < begin + half; ++p)
      each_few([&](const XBlock4* first, int64_t r, int n) {
        dot4x2_(w_->panel(p), w_->panel(p + half), first, blocks_, n, sums);
        store(sink, begin, p, r, n, sums);
        store(sink, begin, p + half, r, n, sums + kMostFewRows * kPanel);
      });
    for (int64_t p = begin + 2 * half; p < end; ++p)
      each_few([&](const XBlock4* first, int64_t r, int n) {
        dot4_(w_->panel(p), first, blocks_, n, sums);
        store(sink, begin, p, r, n, sums);
      });
  }

 private:
  // Parts of a few panels are widened and multiplied with all rows while they are in the cache.
  void wide_tiles(const XBlock4* x, int64_t rows, int64_t begin, int64_t end,
                  const LinearSink& sink, uint8_t* scratch) const {
    TK_CHECK(rows <= most_rows_);
    auto* sums = reinterpret_cast<float*>(scratch + panels_ * part_ * kWideBlock);
    for (int64_t first = begin; first < end; first += group_) {
      int64_t last = std::min(end, first + group_);
      for (int64_t b = 0; b < blocks_; b += part_)
        for (int64_t p = first; p < last; p += panels_) {
          int64_t n = std::min(part_, blocks_ - b), panels = std::min(panels_, last - p);
          float* to = sums + (p - first) * rows * kPanel;
          if (b == 0) std::fill_n(to, panels * rows * kPanel, 0.0f);
          for (int64_t i = 0; i < panels; ++i)
            widen_(panel_at(p + i, b), n, scratch + i * n * kWideBlock);
          fetch_part(p + panels, std::min(end, p + 2 * panels), b, n);
          wide_(scratch, panels, x + b * tiles_, blocks_, rows, n, to);
        }
      for (int64_t r = 0; r < rows; ++r)  // rows are far apart: whole stretches
        for (int64_t p = first; p < last; ++p)
          store(sink, begin, p, r, 1, sums + ((p - first) * rows + r) * kPanel);
    }
  }
  // What is widened next comes from memory while this part is multiplied.
  void fetch_part(int64_t begin, int64_t end, int64_t b, int64_t blocks) const {
    for (int64_t p = begin; p < end; ++p)
      for (const uint8_t *at = panel_at(p, b), *stop = panel_at(p, b + blocks); at < stop; at += 64)
        __builtin_prefetch(at, 0, 2);
  }
  const uint8_t* panel_at(int64_t panel, int64_t block) const {
    const QLayout& layout = qlayout(w_->qformat);
    return w_->panel(panel) + block / layout.blocks * layout.bytes();
  }

  int64_t blocks_, part_, panels_ = 1, group_ = 1, tiles_ = 1, wide_rows_ = 1, few_rows_ = kTile,
                          most_rows_;
  void (*dot1_)(const uint8_t*, const XBlock1*, int64_t, float*);
  void (*dot1x2_)(const uint8_t*, const uint8_t*, const XBlock1*, int64_t, float*);
  void (*dot4_)(const uint8_t*, const XBlock4*, int64_t, int, float*);
  void (*dot4x2_)(const uint8_t*, const uint8_t*, const XBlock4*, int64_t, int, float*);
  void (*widen_)(const uint8_t*, int64_t, uint8_t*);
  void (*wide_)(const uint8_t*, int64_t, const XBlock4*, int64_t, int64_t, int64_t, float*);
};

// Activations f32 and weights of a format with integer dot products. A row becomes three rows of
// q8a: its rounded values, what rounding left, and what rounding that left: about the 24 bits of a
// float for the largest value of each block of 32. The three products are added in this order.
class DigitsLinear final : public LinearKernel {
 public:
  DigitsLinear(const KernelTable& kernels, const Weight* w)
      : LinearKernel(w),
        blocks_(w->k / kQuantBlock),
        inner_(kernels, w),
        tiles_(kernels.x_tiles),
        dot4_(kernels.qdot4[static_cast<int>(w->qformat)]),
        dot4x2_(kernels.qdot4x2[static_cast<int>(w->qformat)]) {
    limit_chunk(kernels.chunk_bytes, kernels.chunk_tiles, kernels.x_tiles);
  }
  int64_t single_bytes() const override { return tiles_ * inner_.tile_bytes(); }
  int64_t tile_bytes() const override { return kDigits * inner_.tile_bytes(); }
  int64_t scratch_bytes() const override {
    return (inner_.scratch_bytes() + 63) / 64 * 64 +
           (kDigits * kRowsAtOnce * kPanelsAtOnce + kRowsAtOnce) * kPanel * 4;
  }

  void pack_single(const KernelTable& k, const void* x, uint8_t* to) const override {
    pack(k, x, 1, to, 0);
  }
  void pack_tile(const KernelTable& k, const void* x, int64_t n, uint8_t* to,
                 int64_t tile) const override {
    pack(k, x, n, to, kDigits * tile);
  }
  void single(const KernelTable&, const void* packed, int64_t begin, int64_t end,
              const LinearSink& sink, uint8_t*) const override {
    const auto* x = static_cast<const XBlock4*>(packed);
    float parts[2 * kMostFewRows * kPanel], sums[kPanel];
    auto add = [&](int64_t panel, const float* from) {
      add_digits(from, kPanel, 1, sums);
      store(sink, begin, panel, 0, 1, sums);
    };
    int64_t half = dot4x2_ ? (end - begin) / 2 : 0;  // the two halves side by side
    for (int64_t p = begin; p < begin + half; ++p) {
      dot4x2_(w_->panel(p), w_->panel(p + half), x, blocks_, kDigits, parts);
      add(p, parts);
      add(p + half, parts + kMostFewRows * kPanel);
    }
    for (int64_t p = begin + 2 * half; p < end; ++p) {
      dot4_(w_->panel(p), x, blocks_, kDigits, parts);
      add(p, parts);
    }
  }

  void tiles(const KernelTable& k, const uint8_t* packed, int64_t rows, int64_t begin, int64_t end,
             const LinearSink& sink, uint8_t* scratch) const override {
    auto* parts = reinterpret_cast<float*>(scratch + (inner_.scratch_bytes() + 63) / 64 * 64);
    float* sums = parts + kDigits * kRowsAtOnce * kPanelsAtOnce * kPanel;
    constexpr int64_t stride = kPanelsAtOnce * kPanel;
    std::memset(parts, 0, kDigits * kRowsAtOnce * stride * sizeof(float));
    for (int64_t p = begin; p < end; p += kPanelsAtOnce)
      for (int64_t r = 0; r < rows; r += kRowsAtOnce) {
        int64_t last = std::min(end, p + kPanelsAtOnce), n = std::min(rows - r, kRowsAtOnce);
        inner_.tiles(k, packed + r / kTile * tile_bytes(), kDigits * n, p, last,
                     {parts, stride, nullptr}, scratch);
        for (int64_t q = p; q < last; ++q) {
          add_digits(parts + (q - p) * kPanel, stride, n, sums);
          store(sink, begin, q, r, n, sums);
        }
      }
  }

 private:
  static constexpr int64_t kRowsAtOnce = 32, kPanelsAtOnce = 4;

  // Rows 3 r .. 3 r + 2 of the tiles are the digits of row r.
  void pack(const KernelTable& k, const void* x, int64_t n, uint8_t* to, int64_t first) const {
    auto* out = reinterpret_cast<XBlock4*>(to);
    for (int64_t b = 0; b < blocks_; ++b) {
      BlockQ8A digits[kDigits * kTile];
      const void* rows[kDigits * kTile];
      for (int64_t r = 0; r < n; ++r)
        split(k, static_cast<const float*>(x) + r * w_->k + b * kQuantBlock, digits + kDigits * r);
      for (int64_t i = 0; i < kDigits * n; ++i) rows[i] = digits + i;
      for (int64_t i = 0; i < kDigits * n; i += kTile) {
        int64_t tile = first + i / kTile, in_block = tile % tiles_;
        k.pack_x4(rows + i, static_cast<int>(std::min<int64_t>(kTile, kDigits * n - i)), 1,
                  static_cast<int>(in_block), out + (tile - in_block) * blocks_ + b * tiles_);
      }
    }
  }
  static void split(const KernelTable& k, const float* x, BlockQ8A* digits) {
    float rest[kQuantBlock];
    std::copy_n(x, kQuantBlock, rest);
    for (int i = 0; i < kDigits; ++i) {
      k.quantize_row(rest, kQuantBlock, digits + i);
      for (int j = 0; j < kQuantBlock; ++j)
        rest[j] -= digits[i].scale * static_cast<float>(digits[i].q[j]);
    }
  }
  static void add_digits(const float* parts, int64_t stride, int64_t rows, float* sums) {
    for (int64_t r = 0; r < rows; ++r, parts += kDigits * stride)
      for (int64_t i = 0; i < kPanel; ++i)
        sums[r * kPanel + i] = (parts[i] + parts[stride + i]) + parts[2 * stride + i];
  }

  int64_t blocks_;
  QuantLinear inner_;
  int64_t tiles_;
  void (*dot4_)(const uint8_t*, const XBlock4*, int64_t, int, float*);
  void (*dot4x2_)(const uint8_t*, const uint8_t*, const XBlock4*, int64_t, int, float*);
};

// Activations f32, weights bf16, on levels that multiply bf16 numbers.
class BfloatLinear final : public LinearKernel {
 public:
  explicit BfloatLinear(const Weight* w) : LinearKernel(w), row_((w->k + 3) / 4 * 8) {}
  int64_t single_bytes() const override { return row_ * 2; }
  int64_t tile_bytes() const override { return kTile * row_ * 2; }
  int64_t scratch_bytes() const override {
    return kPanelPart * kPanel * 2 + kMaxTiles * kTile * 3 * kPanel * 4;
  }
  void pack_single(const KernelTable& k, const void* x, uint8_t* to) const override {
    k.bf16_split(static_cast<const float*>(x), w_->k, reinterpret_cast<uint16_t*>(to));
  }
  // One row after the other.
  void pack_tile(const KernelTable& k, const void* x, int64_t n, uint8_t* to,
                 int64_t tile) const override {
    auto* out = reinterpret_cast<uint16_t*>(to + tile * tile_bytes());
    for (int64_t r = 0; r < n; ++r)
      k.bf16_split(static_cast<const float*>(x) + r * w_->k, w_->k, out + r * row_);
    std::memset(out + n * row_, 0, static_cast<size_t>((kTile - n) * row_) * 2);
  }

  void single(const KernelTable& kernels, const void* packed, int64_t begin, int64_t end,
              const LinearSink& sink, uint8_t*) const override {
    single_by_halves(kernels.bf16_dot1x2, static_cast<const uint16_t*>(packed), begin, end, sink);
  }

  void tiles(const KernelTable& kernels, const uint8_t* packed, int64_t rows, int64_t begin,
             int64_t end, const LinearSink& sink, uint8_t* scratch) const override {
    TK_CHECK(rows <= kMaxTiles * kTile);
    const auto* x = reinterpret_cast<const uint16_t*>(packed);
    auto* part = reinterpret_cast<uint16_t*>(scratch);
    auto* sums = reinterpret_cast<float*>(part + kPanelPart * kPanel);
    float* joined = sums + rows * 2 * kPanel;
    for (int64_t p = begin; p < end; ++p) {
      std::memset(sums, 0, static_cast<size_t>(rows * 2 * kPanel) * sizeof(float));
      for (int64_t k = 0; k < w_->k; k += kPanelPart) {
        int64_t n = std::min(kPanelPart, w_->k - k);
        kernels.bf16_spread(w_->panel(p) + k * kPanel * 2, n, part);
        kernels.bf16_rows(part, x + 2 * k, row_, rows, n, sums);
      }
      kernels.bf16_join(sums, rows, joined);
      store(sink, begin, p, 0, rows, joined);
    }
  }

 private:
  int64_t row_;  // numbers of a packed row
};

// Activations bf16, weights bf16 or f16, on levels with matrix instructions for them.
class RoundedLinear final : public LinearKernel {
 public:
  RoundedLinear(const KernelTable& kernels, const Weight* w)
      : LinearKernel(w),
        product_(kernels.rounded[static_cast<int>(w->ftype)]),
        row_((w->k + kernels.bf16_group - 1) / kernels.bf16_group * kernels.bf16_group) {
    limit_chunk(kernels.chunk_bytes, kMaxTiles, 1);
  }
  int64_t row_bytes() const override { return w_->k * 2; }
  int64_t single_bytes() const override { return row_ * 2; }
  int64_t tile_bytes() const override { return kTile * row_ * 2; }
  int64_t scratch_bytes() const override {
    return kPanelPart * kSpread * 2 + (kMaxTiles * kTile + 1) * 2 * kPanel * 4;
  }
  void pack_single(const KernelTable&, const void* x, uint8_t* to) const override {
    std::memcpy(to, x, static_cast<size_t>(w_->k) * 2);
    std::memset(to + w_->k * 2, 0, static_cast<size_t>(row_ - w_->k) * 2);
  }
  void pack_tile(const KernelTable& k, const void* x, int64_t n, uint8_t* to,
                 int64_t tile) const override {
    k.bf16_pack(static_cast<const uint16_t*>(x), n, w_->k,
                reinterpret_cast<uint16_t*>(to + tile * tile_bytes()));
  }

  void single(const KernelTable&, const void* packed, int64_t begin, int64_t end,
              const LinearSink& sink, uint8_t*) const override {
    single_by_halves(product_.row, static_cast<const uint16_t*>(packed), begin, end, sink);
  }

  void tiles(const KernelTable& kernels, const uint8_t* packed, int64_t rows, int64_t begin,
             int64_t end, const LinearSink& sink, uint8_t* scratch) const override {
    TK_CHECK(rows <= kMaxTiles * kTile);
    const auto* x = reinterpret_cast<const uint16_t*>(packed);
    auto* part = reinterpret_cast<uint16_t*>(scratch);
    auto* sums = reinterpret_cast<float*>(part + kPanelPart * kSpread);
    int64_t even = (rows + 1) / 2 * 2;
    float* apart = kernels.bf16_part ? sums + even * kPanel : sums;
    bool few = product_.few && rows <= kMostFewRows;
    if (few) apart = sums;
    for (int64_t p = begin; p < end; ++p) {
      std::memset(sums, 0, static_cast<size_t>(even * kPanel) * sizeof(float));
      for (int64_t k = 0; k < w_->k; k += kPanelPart) {
        int64_t n = std::min(kPanelPart, w_->k - k);
        const uint8_t* from = w_->panel(p) + k * kPanel * 2;
        if (few) {
          product_.few(from, x, kTile * row_, k, rows, n, sums);
          continue;
        }
        product_.spread(from, n, part);
        product_.tiles(part, x, kTile * row_, k, rows, n, sums);
      }
      if (apart != sums) kernels.bf16_part(sums, rows, apart);
      store(sink, begin, p, 0, rows, apart);
    }
  }

 private:
  KernelTable::RoundedProduct product_;
  int64_t row_;  // numbers of a packed row
};

}  // namespace

int64_t most_tile_bytes(DType activations, int64_t k) {
  int64_t quantized = k / kQuantBlock * static_cast<int64_t>(sizeof(XBlock4));
  if (activations == DType::kQ8A) return quantized;
  if (activations == DType::kBF16) return (k + 31) / 32 * 32 * kTile * 4;
  return std::max((k + 3) / 4 * 4 * kTile * 4, kDigits * quantized);
}

int64_t LinearKernel::chunk_tiles() const {
  int64_t most = std::min(chunk_bytes_ / tile_bytes(), chunk_tiles_);
  return std::max<int64_t>(1, most / tile_step_) * tile_step_;
}
void LinearKernel::limit_chunk(int64_t bytes, int64_t tiles, int64_t step) {
  chunk_bytes_ = bytes;
  chunk_tiles_ = tiles;
  tile_step_ = step;
}

// Writes sums[row][kPanel] of `count` rows, with bias, cutting the panel at n.
void LinearKernel::single_by_halves(TwoPanels product, const uint16_t* x, int64_t begin,
                                    int64_t end, const LinearSink& sink) const {
  int64_t half = (end - begin + 1) / 2;
  for (int64_t p = begin; p < begin + half; ++p) {
    float sums[2 * kPanel];
    int64_t other = std::min(p + half, end - 1);
    product(w_->panel(p), w_->panel(other), x, w_->k, sums);
    store(sink, begin, p, 0, 1, sums);
    store(sink, begin, other, 0, 1, sums + kPanel);
  }
}

void LinearKernel::store(const LinearSink& sink, int64_t begin, int64_t panel, int64_t row,
                         int64_t count, const float* sums) const {
  int64_t n0 = panel * kPanel, lanes = std::min<int64_t>(kPanel, w_->n - n0);
  for (int64_t r = 0; r < count; ++r, sums += kPanel) {
    float* to = sink.to + (row + r) * sink.stride + (panel - begin) * kPanel;
    if (sink.bias && lanes == kPanel) {
      for (int64_t i = 0; i < kPanel; ++i) to[i] = sums[i] + sink.bias[n0 + i];
    } else if (sink.bias) {
      for (int64_t i = 0; i < lanes; ++i) to[i] = sums[i] + sink.bias[n0 + i];
    } else if (lanes == kPanel) {
      std::memcpy(to, sums, kPanel * sizeof(float));
    } else {
      std::memcpy(to, sums, static_cast<size_t>(lanes) * sizeof(float));
    }
  }
}

std::unique_ptr<LinearKernel> make_linear_kernel(const OpSite& site, const Weight* weight,
                                                 DType activations) {
  need_matrix(site, weight);
  if (weight->matrix == Weight::Matrix::kPairPanel) {
    if (activations == DType::kF32 && site.kernels.pairs.multiply)
      return make_pair_linear(site.kernels, weight);
    fail(ErrorCode::kUnsupported, "{}: {} has no products of int16 and {} on {}", site.label,
         site.kernel->name, dtype_name(activations), site.kernels.name);
  }
  if (activations == DType::kF32 && weight->matrix == Weight::Matrix::kQPanel)
    return std::make_unique<DigitsLinear>(site.kernels, weight);
  bool bf16 = weight->matrix == Weight::Matrix::kFPanel && weight->ftype == FType::kBF16;
  if (activations == DType::kF32 && bf16 && site.kernels.bf16_rows)
    return std::make_unique<BfloatLinear>(weight);
  if (activations == DType::kBF16 && site.kernels.tile_unit.multiply)
    return make_tile_linear(site.kernels, weight);
  if (activations == DType::kBF16 && weight->matrix == Weight::Matrix::kFPanel) {
    if (site.kernels.rounded[static_cast<int>(weight->ftype)].row)
      return std::make_unique<RoundedLinear>(site.kernels, weight);
    return make_float_linear(site.kernels, weight, activations);
  }
  if (activations == DType::kF32) return make_float_linear(site.kernels, weight, activations);
  if (activations == DType::kQ8A && weight->matrix == Weight::Matrix::kQPanel)
    return std::make_unique<QuantLinear>(site.kernels, weight);
  fail(ErrorCode::kUnsupported, "{}: {} has no form for {} activations", site.label,
       site.kernel->name, dtype_name(activations));
}

std::unique_ptr<LinearKernel> make_float_kernel(const OpSite& site, const Weight* weight) {
  need_matrix(site, weight);
  return make_float_linear(site.kernels, weight, DType::kF32);
}

}  // namespace tokamak::cpu
