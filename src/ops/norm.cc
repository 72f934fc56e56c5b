// Normalisation over the last axis: rms_norm, layer_norm, softmax.
#include <cmath>

#include "ops/infer.h"
#include "ops/meaning.h"
#include "ops/tables.h"

namespace tokamak {
namespace {

template <class S>
void rms_norm(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &w = args.in[1].tensor, &y = args.out[0].tensor;
  int64_t n = row_length(x);
  double eps = args.attrs.at("eps").as_double();
  for (int64_t r = 0; r < row_count(x); ++r) {
    const S* row = x.f + r * n;
    double factor = 1.0 / std::sqrt(dot(row, row, n) / static_cast<double>(n) + eps);
    for (int64_t i = 0; i < n; ++i) store(y, r * n + i, double(row[i]) * factor * double(w.f[i]));
  }
}

template <class S>
void layer_norm(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &w = args.in[1].tensor, &y = args.out[0].tensor;
  const S* bias = args.in.size() > 2 ? args.in[2].tensor.f : nullptr;
  int64_t n = row_length(x);
  double eps = args.attrs.at("eps").as_double();
  std::vector<double> centred(static_cast<size_t>(n));
  for (int64_t r = 0; r < row_count(x); ++r) {
    const S* row = x.f + r * n;
    double mean = -0.0;  // the sum of a single -0 is -0
    for (int64_t i = 0; i < n; ++i) mean += double(row[i]);
    mean /= static_cast<double>(n);
    for (int64_t i = 0; i < n; ++i) centred[static_cast<size_t>(i)] = double(row[i]) - mean;
    double variance = dot(centred.data(), centred.data(), n) / static_cast<double>(n);
    double factor = 1.0 / std::sqrt(variance + eps);
    for (int64_t i = 0; i < n; ++i) {
      double scaled = centred[static_cast<size_t>(i)] * factor * double(w.f[i]);
      store(y, r * n + i, bias ? scaled + double(bias[i]) : scaled);
    }
  }
}

template <class S>
void softmax(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &y = args.out[0].tensor;
  int64_t n = row_length(x);
  std::vector<double> power(static_cast<size_t>(n));
  for (int64_t r = 0; r < row_count(x); ++r) {
    const S* row = x.f + r * n;
    double peak = row[0], sum = 0;
    for (int64_t i = 1; i < n; ++i) peak = std::max(peak, double(row[i]));
    for (int64_t i = 0; i < n; ++i) {
      power[static_cast<size_t>(i)] = std::exp(double(row[i]) - peak);
      sum += power[static_cast<size_t>(i)];
    }
    for (int64_t i = 0; i < n; ++i) store(y, r * n + i, power[static_cast<size_t>(i)] * (1 / sum));
  }
}

std::vector<Type> infer_norm(std::string_view op, const InferContext& context) {
  Rule rule(op, context);
  const TensorType &x = rule.values(0, "x"), &w = rule.values(1, "w", 1);
  if (x.rank() < 1) rule.fail("x needs an axis");
  rule.same(x.extent(-1), "the last extent of x", w.extent(0), "w");
  if (rule.inputs() > 2)
    rule.same(rule.values(2, "bias", 1).extent(0), "the bias", w.extent(0), "w");
  double eps = rule.attrs().at("eps").as_double();
  if (!std::isfinite(eps) || eps < 0)
    rule.fail("eps must be a finite number that is not negative, got {}", eps);
  return one(DType::kF32, x.dims);
}
std::vector<Type> infer_rms_norm(const InferContext& context) {
  return infer_norm("rms_norm", context);
}
std::vector<Type> infer_layer_norm(const InferContext& context) {
  return infer_norm("layer_norm", context);
}
std::vector<Type> infer_softmax(const InferContext& context) {
  Rule rule("softmax", context);
  const TensorType& x = rule.values(0, "x");
  if (x.rank() < 1) rule.fail("x needs an axis");
  if (auto n = x.extent(-1).constant(); n && *n == 0) rule.fail("the last axis is empty");
  return one(DType::kF32, x.dims);
}

template <int kPerElement>
SymExpr flops(std::span<const Type>, std::span<const Type> out) {
  return out[0].tensor.elements() * kPerElement;
}

}  // namespace

std::vector<OpDef> norm_ops() {
  return {{.name = "rms_norm",
           .tier = Tier::kComposite,
           .min_inputs = 2,
           .max_inputs = 2,
           .infer = infer_rms_norm,
           .f32 = rms_norm<float>,
           .f64 = rms_norm<double>,
           .traced = rms_norm<Traced>,
           .attr_names = {"eps"},
           .required_attrs = 1,
           .ragged = true,
           .storage = true,
           .flops = flops<4>,
           .doc = "x / sqrt(mean(x^2) + eps) * w",
           .gain = 1,
           .element_ops = 4,
           .loop = {LoopForm::Kind::kRow,
                    "mul(mul(a, rsqrt(add(div(sum_squares(a), columns), eps))), b)"}},
          {.name = "layer_norm",
           .tier = Tier::kComposite,
           .min_inputs = 2,
           .max_inputs = 3,
           .infer = infer_layer_norm,
           .f32 = layer_norm<float>,
           .f64 = layer_norm<double>,
           .traced = layer_norm<Traced>,
           .attr_names = {"eps"},
           .required_attrs = 1,
           .ragged = true,
           .storage = true,
           .flops = flops<7>,
           .doc = "(x - mean) / sqrt(variance + eps) * w + bias",
           .gain = 1,
           .element_ops = 6,
           .loop = {LoopForm::Kind::kRow,
                    "d = sub(a, div(sum(a), columns)); "
                    "add(mul(mul(d, rsqrt(add(div(sum_squares(d), columns), eps))), b), c)"}},
          {.name = "softmax",
           .tier = Tier::kComposite,
           .min_inputs = 1,
           .max_inputs = 1,
           .infer = infer_softmax,
           .f32 = softmax<float>,
           .f64 = softmax<double>,
           .traced = softmax<Traced>,
           .ragged = true,
           .storage = true,
           .flops = flops<5>,
           .doc = "exp(x) / sum(exp(x)), safe against overflow",
           .element_ops = 16,
           .loop = {LoopForm::Kind::kRow, "e = exp(sub(a, max(a))); mul(e, div(1, sum(e)))"}}};
}

}  // namespace tokamak
