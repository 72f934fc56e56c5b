// Element-wise ops, with trailing-aligned broadcasting for those with two inputs.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "backend/cpu/exec.h"
#include "base/error.h"

namespace tokamak::cpu {
namespace {

// Parts are whole vectors, so that no element changes between vector and tail code.
Part elements_of(int64_t n, int64_t grain, const StepContext& c) {
  Part p = c.part((n + 15) / 16, grain);
  return {p.begin * 16, std::min(n, p.end * 16)};
}

class UnaryOp final : public CpuOp {
 public:
  explicit UnaryOp(UnaryKernel kernel) : kernel_(kernel) {}
  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    auto [from, to] = part_of(out[0], c);
    if (from < to)
      kernel_.run(in[0].f32() + from, out[0].f32() + from, to - from, kernel_.parameter);
  }
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    auto [from, to] = part_of(out[0], c);
    list.read_rows(in[0], 4, from, to);
    list.write_rows(out[0], 4, from, to);
  }

 private:
  static Part part_of(const Tensor& y, const StepContext& c) {
    return elements_of(y.elements(), kLightGrain / 64, c);
  }

  UnaryKernel kernel_;
};

template <float (*function)(float)>
void by_libm(const float* x, float* out, int64_t n, float) {
  for (int64_t i = 0; i < n; ++i) out[i] = function(x[i]);
}
float log_of(float x) { return std::log(x); }
float sin_of(float x) { return std::sin(x); }
float cos_of(float x) { return std::cos(x); }
float erf_of(float x) { return std::erf(x); }

class BinaryOp final : public CpuOp {
 public:
  BinaryOp(const OpSite& site, Binary which)
      : kernel_(site.kernels.binary[static_cast<int>(which)]),
        scalar_(site.kernels.binary_scalar[static_cast<int>(which)]) {}

  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    const Tensor &a = in[0], &b = in[1], &y = out[0];
    bool flat = is_flat(in, y);
    auto [from, to] = part_of(flat, y, c);
    if (!flat)
      for (int64_t r = from; r < to; ++r) one_row(a, b, y, r, y.last());
    else if (from < to)
      kernel_(a.f32() + from, b.f32() + from, y.f32() + from, to - from);
  }
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    int64_t n = out[0].elements(), row = out[0].last();
    bool flat = is_flat(in, out[0]);
    Part p = part_of(flat, out[0], c);
    if (p.empty()) return;
    int64_t bytes = flat ? 4 : row * 4;
    for (int i = 0; i < 2; ++i) {
      if (in[i].elements() == n)
        list.read_rows(in[i], bytes, p.begin, p.end);
      else
        list.read(in[i]);
    }
    list.write_rows(out[0], bytes, p.begin, p.end);
  }

 private:
  // Nothing is broadcast.
  static bool is_flat(const Tensor* in, const Tensor& y) {
    return in[0].elements() == y.elements() && in[1].elements() == y.elements();
  }
  // Elements where it is flat, else rows.
  static Part part_of(bool flat, const Tensor& y, const StepContext& c) {
    if (flat) return elements_of(y.elements(), kLightGrain / 16, c);
    return c.part(y.rows(), std::max<int64_t>(1, kLightGrain / (y.last() + 1)));
  }
  // Where row r of the result starts in an operand that is broadcast to it.
  static const float* row_of(const Tensor& x, const Tensor& y, int64_t r) {
    int64_t offset = 0, stride = x.rank > 0 ? x.last() : 1;
    for (int back = 2; back <= y.rank; ++back) {
      int64_t extent = y.dims[y.rank - back], at = r % extent;
      r /= extent;
      if (back > x.rank) continue;
      int64_t own = x.dims[x.rank - back];
      if (own != 1) offset += at * stride;
      stride *= own;
    }
    return x.f32() + offset;
  }
  void one_row(const Tensor& a, const Tensor& b, const Tensor& y, int64_t r, int64_t row) const {
    const float *pa = row_of(a, y, r), *pb = row_of(b, y, r);
    float* out = y.f32() + r * row;
    if (a.last() == row && b.last() == row) {
      kernel_(pa, pb, out, row);
    } else if (a.last() == row) {
      scalar_(pa, *pb, out, row);
    } else {  // the left operand is one number per row
      std::fill_n(out, row, *pa);
      if (b.last() == row)
        kernel_(out, pb, out, row);
      else
        scalar_(out, *pb, out, row);
    }
  }

  void (*kernel_)(const float*, const float*, float*, int64_t);
  void (*scalar_)(const float*, float, float*, int64_t);
};

}  // namespace

UnaryKernel find_unary(const KernelTable& kernels, std::string_view op, const Value& attrs) {
  auto of = [&](Unary u, double parameter = 0) {
    return UnaryKernel{kernels.unary[static_cast<int>(u)], static_cast<float>(parameter)};
  };
  struct Named {
    std::string_view name;
    Unary unary;
  };
  static constexpr Named kUnary[] = {{"neg", Unary::kNeg},     {"abs", Unary::kAbs},
                                     {"exp", Unary::kExp},     {"sqrt", Unary::kSqrt},
                                     {"rsqrt", Unary::kRsqrt}, {"square", Unary::kSquare},
                                     {"tanh", Unary::kTanh},   {"sigmoid", Unary::kSigmoid},
                                     {"relu", Unary::kRelu},   {"silu", Unary::kSilu}};
  for (const Named& n : kUnary)
    if (op == n.name) return of(n.unary);
  if (op == "scale") return of(Unary::kScale, attrs.at("value").as_double());
  if (op == "softcap") return of(Unary::kSoftcap, attrs.at("cap").as_double());
  if (op == "gelu") {
    bool tanh = attrs.get_string("approximate", "tanh") == "tanh";
    return of(tanh ? Unary::kGeluTanh : Unary::kGeluErf);
  }
  if (op == "log") return {by_libm<log_of>, 0.0f};
  if (op == "sin") return {by_libm<sin_of>, 0.0f};
  if (op == "cos") return {by_libm<cos_of>, 0.0f};
  if (op == "erf") return {by_libm<erf_of>, 0.0f};
  return {};
}

std::unique_ptr<CpuOp> make_unary(const OpSite& site) {
  UnaryKernel kernel = find_unary(site.kernels, site.op, site.attrs);
  if (!kernel.run)
    fail(ErrorCode::kCorrupt, "{}: {} does not compute {}", site.label, site.kernel->name, site.op);
  return std::make_unique<UnaryOp>(kernel);
}

std::unique_ptr<CpuOp> make_binary(const OpSite& site) {
  static constexpr std::string_view kBinary[] = {"add", "sub", "mul", "div", "maximum", "minimum"};
  for (int i = 0; i < static_cast<int>(Binary::kCount); ++i)
    if (site.op == kBinary[i]) return std::make_unique<BinaryOp>(site, static_cast<Binary>(i));
  fail(ErrorCode::kCorrupt, "{}: {} does not compute {}", site.label, site.kernel->name, site.op);
}

}  // namespace tokamak::cpu
