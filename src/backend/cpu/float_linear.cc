#include <algorithm>

#include "backend/cpu/linear_kernel.h"
#include "base/error.h"
#include "tensor/block_formats.h"

namespace tokamak::cpu {
namespace {

constexpr int64_t kPanelPart = 256;  // k values of a panel decoded at a time

// Activations f32, or bf16 that are brought to f32; other weights. Float weights are read as they
// are for few rows; quantised ones, and any for many rows, are decoded to f32 a part of a panel at
// a time.
class FloatLinear final : public LinearKernel {
 public:
  explicit FloatLinear(const Weight* w, bool bf16 = false) : LinearKernel(w), bf16_(bf16) {
    direct_ = w_->matrix == Weight::Matrix::kFPanel;
    int64_t step = dtype_info(w_->dtype).block_elements;
    part_ = std::max(step, kPanelPart / step * step);
    limit_chunk(kChunkBytes, kMaxTiles, 1);
  }
  int64_t row_bytes() const override { return w_->k * (bf16_ ? 2 : 4); }
  int64_t single_bytes() const override { return bf16_ ? w_->k * 4 : 0; }
  int64_t tile_bytes() const override { return w_->k * kTile * 4; }
  int64_t scratch_bytes() const override {
    return (part_ * kPanel + kGroup * kMaxTiles * kTile * kPanel) * 4;
  }
  int64_t panels_at_once() const override { return kGroup; }
  void pack_single(const KernelTable& k, const void* x, uint8_t* to) const override {
    k.widen[static_cast<int>(FType::kBF16)](x, reinterpret_cast<float*>(to), w_->k);
  }
  // [k][4].
  void pack_tile(const KernelTable&, const void* x, int64_t n, uint8_t* to,
                 int64_t tile) const override {
    auto pack = [&]<class T>(const T* from) {  // the bits of a bf16 number are a float's upper half
      auto* out = reinterpret_cast<uint32_t*>(to + tile * tile_bytes());
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
    TK_CHECK(rows <= kMaxTiles * kTile);
    const auto* x = reinterpret_cast<const float*>(packed);
    auto* decoded = reinterpret_cast<float*>(scratch);
    float* sums = decoded + part_ * kPanel;
    bool as_stored = direct_ && (w_->ftype == FType::kF32 || rows <= 2 * kTile);
    auto dot = kernels.fdot_rows[as_stored ? static_cast<int>(w_->ftype) : 0];
    int64_t element = w_->panel_bytes / (w_->k * kPanel);  // bytes, of float weights
    // A part of k of all rows stays in the cache while a few panels go by. Few rows stay there as
    // they are: their panels are read in one go.
    int64_t group = rows > 2 * kTile ? kGroup : 1;
    for (int64_t first = begin; first < end; first += group) {
      int64_t last = std::min(end, first + group);
      std::fill_n(sums, (last - first) * rows * kPanel, 0.0f);
      for (int64_t k = 0; k < w_->k; k += part_)
        for (int64_t p = first; p < last; ++p) {
          int64_t n = std::min(part_, w_->k - k);
          const void* part = w_->panel(p) + k * kPanel * element;
          if (!as_stored) {
            w_->decode_panel(kernels, p, k, n, decoded);
            part = decoded;
          }
          dot(part, x + k * kTile, kTile * w_->k, rows, n, sums + (p - first) * rows * kPanel);
        }
      for (int64_t r = 0; r < rows; ++r)  // rows are far apart: whole stretches
        for (int64_t p = first; p < last; ++p)
          store(sink, begin, p, r, 1, sums + ((p - first) * rows + r) * kPanel);
    }
  }

 private:
  static constexpr int64_t kGroup = 8;             // panels
  static constexpr int64_t kChunkBytes = 4 << 20;  // of activations
  bool direct_, bf16_;
  int64_t part_;
};

}  // namespace

std::unique_ptr<LinearKernel> make_float_linear(const Weight* weight, DType activations) {
  return std::make_unique<FloatLinear>(weight, activations == DType::kBF16);
}

}  // namespace tokamak::cpu
