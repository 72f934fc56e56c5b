#include <algorithm>
#include <cstring>

#include "backend/cpu/linear_kernel.h"
#include "base/error.h"
#include "tensor/block_formats.h"

namespace tokamak::cpu {
namespace {

// Float weights are read as they are for few rows; quantised ones, and any for many rows, are
// decoded to f32 a part of a few panels at a time.
class FloatLinear final : public LinearKernel {
 public:
  FloatLinear(const KernelTable& kernels, const Weight* w, bool bf16)
      : LinearKernel(w), bf16_(bf16), panels_(kernels.float_panels) {
    direct_ = w_->matrix == Weight::Matrix::kFPanel;
    int64_t step = dtype_info(w_->dtype).block_elements;
    // A part of the panels stays in the L1 cache; the rows may come from the L3 cache.
    part_ = std::max(step, (panels_ > 1 ? 128 : 256) / step * step);
    few_rows_ = panels_ > 1 ? 32 : 2 * kTile;
    if (panels_ > 1) limit_chunk(kChunkBytes, kChunkTiles, 1);
  }
  int64_t row_bytes() const override { return w_->k * (bf16_ ? 2 : 4); }
  int64_t single_bytes() const override { return bf16_ ? w_->k * 4 : 0; }
  int64_t tile_bytes() const override { return w_->k * kTile * 4; }
  int64_t scratch_bytes() const override {
    return panels_ * (part_ + chunk_tiles() * kTile) * kPanel * 4;
  }
  int64_t panels_at_once() const override { return panels_; }

  void pack_single(const KernelTable& k, const void* x, uint8_t* to) const override {
    k.widen[static_cast<int>(FType::kBF16)](x, reinterpret_cast<float*>(to), w_->k);
  }
  // [k][4].
  void pack_tile(const KernelTable& kernels, const void* x, int64_t n, uint8_t* to,
                 int64_t tile) const override {
    uint8_t* at = to + tile * tile_bytes();
    if (!bf16_ && n == kTile)
      return kernels.pack_x4_floats(static_cast<const float*>(x), w_->k, w_->k,
                                    reinterpret_cast<float*>(at));
    auto pack = [&]<class T>(const T* from) {  // the bits of a bf16 number are a float's upper half
      auto* out = reinterpret_cast<uint32_t*>(at);
      for (int64_t k = 0; k < w_->k; ++k)
        for (int64_t r = 0; r < kTile; ++r, ++out)
          *out = r < n ? static_cast<uint32_t>(from[r * w_->k + k]) << (32 - 8 * sizeof(T)) : 0;
    };
    if (bf16_)
      pack(static_cast<const uint16_t*>(x));
    else
      pack(static_cast<const uint32_t*>(x));
  }

  void single(const KernelTable& kernels, const void* packed, int64_t begin, int64_t end,
              const LinearSink& sink, uint8_t* scratch) const override {
    const auto* x = static_cast<const float*>(packed);
    int type = direct_ ? static_cast<int>(w_->ftype) : 0;
    bool halves = kernels.hdot1x4 && w_->finite_f16;
    // Quarters of the panels side by side: several long streams of memory are read faster than one.
    int64_t quarter = direct_ ? (end - begin) / 4 : 0, stride = quarter * w_->panel_bytes;
    int64_t p = begin;
    for (; p < begin + quarter; ++p) {
      float sums[4 * kPanel] = {};
      halves = halves && kernels.hdot1x4(w_->panel(p), stride, x, w_->k, sums);
      if (!halves) kernels.fdot1x4[type](w_->panel(p), stride, x, w_->k, sums);
      for (int i = 0; i < 4; ++i) store(sink, begin, p + i * quarter, 0, 1, sums + i * kPanel);
    }
    p = begin + 4 * quarter;
    auto* decoded = reinterpret_cast<float*>(scratch);
    for (; p < end; ++p) {
      float sums[kPanel] = {};
      if (direct_) {
        kernels.fdot1[type](w_->panel(p), x, w_->k, sums);
      } else {
        for (int64_t k = 0; k < w_->k; k += part_) {
          int64_t n = std::min(part_, w_->k - k);
          w_->decode_panel(kernels, p, k, n, decoded);
          kernels.fdot1[0](decoded, x + k, n, sums);
        }
      }
      store(sink, begin, p, 0, 1, sums);
    }
  }

  void tiles(const KernelTable& kernels, const uint8_t* packed, int64_t rows, int64_t begin,
             int64_t end, const LinearSink& sink, uint8_t* scratch) const override {
    TK_CHECK(rows <= chunk_tiles() * kTile);
    const auto* x = reinterpret_cast<const float*>(packed);
    auto* decoded = reinterpret_cast<float*>(scratch);
    float* sums = decoded + panels_ * part_ * kPanel;  // [rows / kRows][panels][kRows][kPanel]
    if (direct_ && rows <= few_rows_) return few(kernels, x, rows, begin, end, sink, sums);
    bool floats = direct_ && w_->ftype == FType::kF32;
    for (int64_t first = begin; first < end; first += panels_) {
      int64_t count = std::min(panels_, end - first);
      std::memset(sums, 0, static_cast<size_t>(count * rows * kPanel) * sizeof(float));
      for (int64_t k = 0; k < w_->k; k += part_) {
        int64_t n = std::min(part_, w_->k - k);
        bool last = k + n == w_->k;
        int64_t next = last ? first + panels_ : first, next_k = last ? 0 : k + n;
        const float* part = decoded;
        if (floats) part = reinterpret_cast<const float*>(w_->panel(first)) + k * kPanel;
        for (int64_t i = 0; i < count && !floats; ++i)
          w_->decode_panel(kernels, first + i, k, n, decoded + i * n * kPanel);
        for (int64_t r = 0; r < rows; r += kRows) {
          if (floats && panels_ > 1)
            prefetch(next, std::min(next + panels_, end), next_k * kPanel * 4,
                     std::min(part_, w_->k - next_k) * kPanel * 4, r, kRows, rows);
          kernels.fdot_panels(part, floats ? w_->panel_bytes / 4 : n * kPanel, count,
                              x + r * w_->k + k * kTile, kTile * w_->k, std::min(kRows, rows - r),
                              n, sums + r * count * kPanel);
        }
      }
      for (int64_t r = 0; r < rows; r += kRows)
        for (int64_t i = 0, some = std::min(kRows, rows - r); i < count; ++i)
          store(sink, begin, first + i, r, some, sums + (r * count + i * some) * kPanel);
    }
  }

 private:
  static constexpr int64_t kRows = 32, kChunkTiles = 64, kChunkBytes = 1 << 21;

  // Few rows wait for memory: panels are read as they are, in as many long streams as panels are
  // multiplied at once.
  void few(const KernelTable& kernels, const float* x, int64_t rows, int64_t begin, int64_t end,
           const LinearSink& sink, float* sums) const {
    int64_t share = (end - begin) / panels_;
    for (int64_t p = begin; p < begin + share; ++p)
      few_panels(kernels, x, rows, begin, p, share, panels_, sink, sums);
    for (int64_t p = begin + share * panels_; p < end; ++p)
      few_panels(kernels, x, rows, begin, p, 0, 1, sink, sums);
  }

  // `count` panels from `panel` on, each `step` after the one before.
  void few_panels(const KernelTable& kernels, const float* x, int64_t rows, int64_t begin,
                  int64_t panel, int64_t step, int64_t count, const LinearSink& sink,
                  float* sums) const {
    constexpr int64_t kPart = 256, kSome = 2 * kTile;  // all rows read a part from the cache
    int64_t k_bytes = w_->panel_bytes / w_->k;
    std::memset(sums, 0, static_cast<size_t>(count * rows * kPanel) * sizeof(float));
    for (int64_t k = 0; k < w_->k; k += kPart)
      for (int64_t r = 0; r < rows; r += kSome)
        kernels.fdot_far[static_cast<int>(w_->ftype)](
            w_->panel(panel) + k * k_bytes, step * w_->panel_bytes, count,
            x + r * w_->k + k * kTile, kTile * w_->k, std::min(kSome, rows - r),
            std::min(kPart, w_->k - k), sums + r * count * kPanel);
    for (int64_t r = 0; r < rows; r += kSome)
      for (int64_t i = 0, some = std::min(kSome, rows - r); i < count; ++i)
        store(sink, begin, panel + i * step, r, some, sums + (r * count + i * some) * kPanel);
  }

  bool direct_, bf16_;
  int64_t panels_, part_, few_rows_;
};

}  // namespace

std::unique_ptr<LinearKernel> make_float_linear(const KernelTable& kernels, const Weight* weight,
                                                DType activations) {
  return std::make_unique<FloatLinear>(kernels, weight, activations == DType::kBF16);
}

}  // namespace tokamak::cpu
