// linear: panels of weights are shared out among the threads; each thread brings the activation
// rows into tiles of its own scratch, then walks its panels once per chunk of rows, so that a panel
// comes from memory once and the rows stay in its cache.
#include <algorithm>

#include "backend/cpu/kernels.h"
#include "backend/cpu/linear_kernel.h"
#include "base/error.h"

namespace tokamak::cpu {
namespace {

class Linear final : public CpuOp {
 public:
  explicit Linear(const OpSite& site)
      : kernel_(make_linear_kernel(site, site.in[1].weight, site.in[0].dtype)),
        w_(kernel_->weight()) {}
  int64_t scratch_bytes() const override { return packed_bytes() + kernel_->scratch_bytes(); }

  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    int64_t rows = in[0].rows();
    auto [begin, end] = panels(rows, c);
    if (begin >= end || rows == 0) return;
    LinearSink sink{out[0].f32() + begin * kPanel, w_.n, in[2].data ? in[2].f32() : nullptr};
    uint8_t *packed = c.thread_scratch(), *scratch = packed + packed_bytes();
    if (rows == 1) {
      const void* x = in[0].data;
      if (kernel_->single_bytes() > 0) {
        kernel_->pack_single(c.kernels, x, packed);
        x = packed;
      }
      kernel_->single(c.kernels, x, begin, end, sink, scratch);
    } else {
      many(in[0].data, rows, begin, end, sink, c.kernels, packed, scratch);
    }
  }
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    int64_t rows = in[0].rows();
    auto [begin, end] = panels(rows, c);
    if (begin >= end || rows == 0) return;
    list.read(in[0]);
    list.read(in[2]);
    int64_t from = begin * kPanel, to = std::min(end * kPanel, w_.n);
    list.columns(out[0], w_.n * 4, 0, rows, from * 4, (to - from) * 4, true);
  }

 private:
  Part panels(int64_t rows, const StepContext& c) const {
    int64_t work = kPanel * w_.k * std::min<int64_t>(rows, 64);
    return c.part(panels_of(w_.n), std::max<int64_t>(1, kGrainWork / (work + 1)));
  }
  void many(const void* x, int64_t rows, int64_t begin, int64_t end, LinearSink sink,
            const KernelTable& k, uint8_t* packed, uint8_t* scratch) const {
    int64_t chunk = kernel_->chunk_tiles() * kTile;
    for (int64_t first = 0; first < rows; first += chunk) {
      int64_t count = std::min(rows - first, chunk);
      for (int64_t r = 0; r < count; r += kTile)
        kernel_->pack_tile(k, static_cast<const uint8_t*>(x) + (first + r) * kernel_->row_bytes(),
                           std::min<int64_t>(kTile, count - r), packed, r / kTile);
      kernel_->tiles(k, packed, count, begin, end, sink, scratch);
      sink.to += count * sink.stride;
    }
  }
  int64_t packed_bytes() const {
    return (kernel_->chunk_tiles() * kernel_->tile_bytes() + 63) / 64 * 64;
  }

  std::unique_ptr<LinearKernel> kernel_;
  const Weight& w_;
};

// embed: rows of a matrix by id; a negative id gives zeros.
class Embed final : public CpuOp {
 public:
  explicit Embed(const OpSite& site) : w_(site.in[1].weight) { need_matrix(site, w_); }
  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    const int32_t* ids = in[0].i32();
    auto [begin, end] = rows(in[0], c);
    for (int64_t i = begin; i < end; ++i) {
      TK_CHECK(ids[i] < w_->n, "embed: id {} of {}", ids[i], w_->n);
      float* to = out[0].f32() + i * w_->k;
      if (ids[i] < 0)
        std::fill_n(to, w_->k, 0.0f);
      else
        w_->decode_row(c.kernels, ids[i], to);
    }
  }
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    auto [begin, end] = rows(in[0], c);
    list.read_rows(in[0], 4, begin, end);
    list.write_rows(out[0], w_->k * 4, begin, end);
  }

 private:
  Part rows(const Tensor& ids, const StepContext& c) const {
    return c.part(ids.elements(), std::max<int64_t>(1, kLightGrain / (w_->k + 1)));
  }
  const Weight* w_;
};

}  // namespace

void need_matrix(const OpSite& site, const Weight* weight) {
  if (!weight)
    fail(ErrorCode::kUnsupported, "{}: {} takes a weight as its second operand", site.label,
         site.kernel->name);
  if (weight->matrix == Weight::Matrix::kNone)
    fail(ErrorCode::kUnsupported, "{}: {} reads weight {} in layout {}, the plan has it row-major",
         site.label, site.kernel->name, weight->name, site.kernel->weight_layout);
}

std::unique_ptr<CpuOp> make_linear(const OpSite& site) { return std::make_unique<Linear>(site); }
std::unique_ptr<CpuOp> make_embed(const OpSite& site) { return std::make_unique<Embed>(site); }

void add_linear_kernels(KernelList& list) {
  auto integer = [&](const std::string& format, const char* numeric_class) {
    list.add({.name = "cpu.linear." + format,
              .pattern = fmt::format("linear(q8a, weight {}, weight *)", format),
              .weight_layout = kQuantPanels,
              .numeric_class = numeric_class,
              .cost = matrix_cost},
             make_linear);
  };
  for (const char* format : kIntegerFormats) integer(format, kIntegerClass);
  for (const char* format : kMinimumFormats) integer(format, kMinimumClass);
  auto rounded = [&](const char* level, const std::string& format, const char* layout,
                     const char* numeric_class) {
    list.add({.name = fmt::format("cpu.linear.{}.{}", level, format),
              .pattern = fmt::format("linear(bf16, weight {}, weight *)", format),
              .weight_layout = layout,
              .numeric_class = numeric_class,
              .needs = level,
              .cost = matrix_cost},
             make_linear);
  };
  rounded("bf16", "bf16", kFloatPanels, kBfmmlaClass);
  rounded("bf16", "f16", kFloatPanels, kRoundedFloatClass);
  for (const char* format : {"bf16", "f16"}) rounded("amx", format, kFloatPanels, kTileClass);
  for (const char* format : kIntegerFormats) rounded("amx", format, kQuantPanels, kTileClass);
  for (const char* format : kMinimumFormats) rounded("amx", format, kQuantPanels, kTileClass);
  for (const char* isa : {"avx512", "amx"})
    list.add({.name = fmt::format("cpu.linear.{}.int16", isa),
              .pattern = "linear(f32, weight int16_g128, weight *)",
              .weight_layout = kPairPanels,
              .numeric_class = kPairClass,
              .needs = isa,
              .cost = matrix_cost},
             make_linear);
  for (const MatrixForm& form : kMatrixForms) {
    list.add({.name = fmt::format("cpu.linear.f32{}", form.suffix),
              .pattern = "linear(f32, weight " + form.weights() + ", weight *)",
              .weight_layout = form.layout,
              .numeric_class = form.numeric_class,
              .cost = matrix_cost},
             make_linear);
    list.add({.name = fmt::format("cpu.embed{}", form.suffix),
              .pattern = "embed(i32, weight " + form.weights() + ")",
              .weight_layout = form.layout,
              .numeric_class = "decoded to f32",
              .cost = rows_cost},
             make_embed);
  }
}

}  // namespace tokamak::cpu
