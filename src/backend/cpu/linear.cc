// linear: panels of weights are shared out among the threads; each thread brings the activation
// rows into tiles of its own scratch, then walks its panels once per chunk of rows, so that a panel
// comes from memory once and the rows stay in its cache. What a row's result is does not depend on
// the chunk, the tile or the thread (kernel_table.h).
#include <algorithm>
#include <cstring>

#include "backend/cpu/exec.h"
#include "base/error.h"

namespace tokamak::cpu {
namespace {

constexpr int64_t kRowBytes = sizeof(float) + sizeof(float) + 32;  // of one q8a block
constexpr int64_t kChunkBytes = 384 * 1024;  // activation tiles kept in a core's cache
constexpr int64_t kMaxTiles = 32;
constexpr int64_t kPanelPart = 256;        // k values of a panel decoded at a time
constexpr int64_t kGrainWork = 96 * 1024;  // multiply-adds that are worth a fork

class LinearBase : public Op {
 public:
  explicit LinearBase(const OpSite& site) : w_(site.in[1].weight) {
    if (!w_ || w_->matrix == Weight::Matrix::kNone)
      fail(ErrorCode::kUnsupported, "{}: the second operand of linear must be a weight",
           site.label);
  }

  void run(const Tensor* in, const Tensor* out, StepContext& c) override {
    const float* bias = in[2].data ? in[2].f32() : nullptr;
    int64_t rows = in[0].rows();
    if (rows == 0) return;
    int64_t grain =
        std::max<int64_t>(1, kGrainWork / (kPanel * w_->k * std::min<int64_t>(rows, 64) + 1));
    c.pool.split(panels_of(w_->n), grain, [&](int64_t begin, int64_t end, int thread) {
      Job job{in[0].data, rows, bias, out[0].f32(), begin, end};
      if (rows == 1)
        single(job, c, c.thread_scratch(thread));
      else
        many(job, c, c.thread_scratch(thread));
    });
  }

 protected:
  struct Job {
    const void* x;
    int64_t rows;
    const float* bias;
    float* out;
    int64_t begin, end;  // panels
  };
  virtual void single(const Job& job, StepContext& c, uint8_t* scratch) = 0;
  virtual void many(const Job& job, StepContext& c, uint8_t* scratch) = 0;

  // Writes sums[row][kPanel] of `count` rows, with bias, cutting the panel at n.
  void store(const Job& job, int64_t panel, int64_t row, int64_t count, const float* sums) const {
    int64_t n0 = panel * kPanel, lanes = std::min<int64_t>(kPanel, w_->n - n0);
    for (int64_t r = 0; r < count; ++r, sums += kPanel) {
      float* to = job.out + (row + r) * w_->n + n0;
      if (job.bias) {
        for (int64_t i = 0; i < lanes; ++i) to[i] = sums[i] + job.bias[n0 + i];
      } else if (lanes == kPanel) {
        std::memcpy(to, sums, kPanel * sizeof(float));
      } else {
        std::memcpy(to, sums, static_cast<size_t>(lanes) * sizeof(float));
      }
    }
  }
  static int64_t tiles_for(int64_t tile_bytes) {
    return std::clamp<int64_t>(kChunkBytes / tile_bytes, 1, kMaxTiles);
  }

  const Weight* w_;
};

// Activations q8a, weights of a format with integer dot products.
class QuantLinear final : public LinearBase {
 public:
  explicit QuantLinear(const OpSite& site) : LinearBase(site), blocks_(w_->k / kQuantBlock) {
    int f = static_cast<int>(w_->qformat);
    dot1_ = site.kernels.qdot1[f];
    dot4_ = site.kernels.qdot4[f];
    tiles_ = tiles_for(blocks_ * static_cast<int64_t>(sizeof(XBlock4)));
  }
  int64_t scratch_bytes() const override {
    return tiles_ * blocks_ * static_cast<int64_t>(sizeof(XBlock4));
  }

 private:
  void single(const Job& job, StepContext& c, uint8_t* scratch) override {
    auto* x = reinterpret_cast<XBlock1*>(scratch);
    c.kernels.pack_x1(job.x, blocks_, x);
    float sums[kPanel];
    for (int64_t p = job.begin; p < job.end; ++p) {
      dot1_(w_->panel(p), x, blocks_, sums);
      store(job, p, 0, 1, sums);
    }
  }
  void many(const Job& job, StepContext& c, uint8_t* scratch) override {
    auto* x = reinterpret_cast<XBlock4*>(scratch);
    const auto* rows = static_cast<const uint8_t*>(job.x);
    for (int64_t first = 0; first < job.rows; first += tiles_ * kTile) {
      int64_t count = std::min(job.rows - first, tiles_ * kTile);
      for (int64_t r = 0; r < count; r += kTile) {
        const void* pointers[kTile];
        int n = static_cast<int>(std::min<int64_t>(kTile, count - r));
        for (int i = 0; i < n; ++i) pointers[i] = rows + (first + r + i) * blocks_ * kRowBytes;
        c.kernels.pack_x4(pointers, n, blocks_, x + r / kTile * blocks_);
      }
      for (int64_t p = job.begin; p < job.end; ++p)
        for (int64_t r = 0; r < count; r += kTile) {
          float sums[kTile * kPanel];
          dot4_(w_->panel(p), x + r / kTile * blocks_, blocks_, sums);
          store(job, p, first + r, std::min<int64_t>(kTile, count - r), sums);
        }
    }
  }

  int64_t blocks_, tiles_;
  void (*dot1_)(const uint8_t*, const XBlock1*, int64_t, float*);
  void (*dot4_)(const uint8_t*, const XBlock4*, int64_t, float*);
};

// Activations f32. Float weights are read as they are for few rows; quantised ones, and any for
// many rows, are decoded to f32 a part of a panel at a time.
class FloatLinear final : public LinearBase {
 public:
  explicit FloatLinear(const OpSite& site) : LinearBase(site) {
    direct_ = w_->matrix == Weight::Matrix::kFPanel;
    tiles_ = tiles_for(w_->k * kTile * 4);
    int64_t step = w_->decode_step();
    part_ = std::max(step, kPanelPart / step * step);
  }
  int64_t scratch_bytes() const override {
    return (tiles_ * kTile * w_->k + part_ * kPanel + tiles_ * kTile * kPanel) * 4;
  }

 private:
  void single(const Job& job, StepContext& c, uint8_t* scratch) override {
    const auto* x = static_cast<const float*>(job.x);
    int type = direct_ ? static_cast<int>(w_->ftype) : 0;
    int64_t p = job.begin;
    for (; direct_ && p + 4 <= job.end; p += 4) {
      float sums[4 * kPanel] = {};
      c.kernels.fdot1x4[type](w_->panel(p), w_->panel_bytes, x, w_->k, sums);
      for (int i = 0; i < 4; ++i) store(job, p + i, 0, 1, sums + i * kPanel);
    }
    auto* decoded = reinterpret_cast<float*>(scratch);
    for (; p < job.end; ++p) {
      float sums[kPanel] = {};
      if (direct_) {
        c.kernels.fdot1[type](w_->panel(p), x, w_->k, sums);
      } else {
        for (int64_t k = 0; k < w_->k; k += part_) {
          int64_t n = std::min(part_, w_->k - k);
          w_->decode_panel(c.kernels, p, k, n, decoded);
          c.kernels.fdot1[0](decoded, x + k, n, sums);
        }
      }
      store(job, p, 0, 1, sums);
    }
  }

  void many(const Job& job, StepContext& c, uint8_t* scratch) override {
    auto* tiles = reinterpret_cast<float*>(scratch);
    float* decoded = tiles + tiles_ * kTile * w_->k;
    float* sums = decoded + part_ * kPanel;
    for (int64_t first = 0; first < job.rows; first += tiles_ * kTile) {
      int64_t count = std::min(job.rows - first, tiles_ * kTile);
      for (int64_t r = 0; r < count; r += kTile)
        fill_tile(job, first + r, std::min<int64_t>(kTile, count - r), tiles + r * w_->k);
      bool as_stored = direct_ && (w_->ftype == FType::kF32 || count <= 2 * kTile);
      for (int64_t p = job.begin; p < job.end; ++p) {
        std::memset(
            sums, 0,
            static_cast<size_t>(count + kTile - 1) / kTile * kTile * kPanel * sizeof(float));
        if (as_stored) {
          for (int64_t r = 0; r < count; r += kTile)
            c.kernels.fdot4[static_cast<int>(w_->ftype)](w_->panel(p), tiles + r * w_->k, w_->k,
                                                         sums + r * kPanel);
        } else {
          for (int64_t k = 0; k < w_->k; k += part_) {
            int64_t n = std::min(part_, w_->k - k);
            w_->decode_panel(c.kernels, p, k, n, decoded);
            for (int64_t r = 0; r < count; r += kTile)
              c.kernels.fdot4[0](decoded, tiles + r * w_->k + k * kTile, n, sums + r * kPanel);
          }
        }
        store(job, p, first, count, sums);
      }
    }
  }

  // [k][4], rows beyond the last as zeros.
  void fill_tile(const Job& job, int64_t row, int64_t n, float* tile) const {
    const float* x = static_cast<const float*>(job.x) + row * w_->k;
    for (int64_t k = 0; k < w_->k; ++k)
      for (int64_t r = 0; r < kTile; ++r) tile[k * kTile + r] = r < n ? x[r * w_->k + k] : 0.0f;
  }

  bool direct_;
  int64_t tiles_, part_;
};

// embed: rows of a matrix by id.
class Embed final : public Op {
 public:
  explicit Embed(const OpSite& site) : w_(site.in[1].weight) {
    if (!w_ || w_->matrix == Weight::Matrix::kNone)
      fail(ErrorCode::kUnsupported, "{}: the table of embed must be a weight", site.label);
  }
  void run(const Tensor* in, const Tensor* out, StepContext& c) override {
    const int32_t* ids = in[0].i32();
    c.pool.split(in[0].elements(), std::max<int64_t>(1, kLightGrain / (w_->k + 1)),
                 [&](int64_t begin, int64_t end, int) {
                   for (int64_t i = begin; i < end; ++i) {
                     TK_CHECK(ids[i] >= 0 && ids[i] < w_->n, "embed: id {} of {}", ids[i], w_->n);
                     w_->decode_row(c.kernels, ids[i], out[0].f32() + i * w_->k);
                   }
                 });
  }

 private:
  const Weight* w_;
};

}  // namespace

std::unique_ptr<Op> make_linear_op(const OpSite& site) {
  if (site.op == "embed") return std::make_unique<Embed>(site);
  if (site.op != "linear") return nullptr;
  if (site.in[0].dtype == DType::kF32) return std::make_unique<FloatLinear>(site);
  if (site.in[0].dtype == DType::kQ8A && site.in[1].weight &&
      site.in[1].weight->matrix == Weight::Matrix::kQPanel)
    return std::make_unique<QuantLinear>(site);
  fail(ErrorCode::kUnsupported, "{}: no linear for {} activations", site.label,
       dtype_name(site.in[0].dtype));
}

}  // namespace tokamak::cpu
