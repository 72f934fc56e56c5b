// Activations: silu, gelu, softcap.
#include <cmath>

#include "ops/infer.h"
#include "ops/meaning.h"
#include "ops/tables.h"

namespace tokamak {
namespace {

template <class S, class F>
void each(const MeaningArgs<S>& args, F&& f) {
  const TensorRef<S>&x = args.in[0].tensor, &y = args.out[0].tensor;
  for (int64_t i = 0, n = y.elements(); i < n; ++i) store(y, i, f(double(x.f[i])));
}

template <class S>
void silu(const MeaningArgs<S>& args) {
  each(args, [](double x) { return x / (1.0 + std::exp(-x)); });
}

template <class S>
void gelu(const MeaningArgs<S>& args) {
  constexpr double kSqrt2OverPi = 0.79788456080286535588, kSqrtHalf = 0.70710678118654752440;
  if (args.attrs.at("approximate").as_string() == "none")
    each(args, [](double x) { return 0.5 * x * (1.0 + std::erf(x * kSqrtHalf)); });
  else
    each(args, [](double x) {
      return 0.5 * x * (1.0 + std::tanh(kSqrt2OverPi * (x + 0.044715 * x * x * x)));
    });
}

template <class S>
void softcap(const MeaningArgs<S>& args) {
  double cap = args.attrs.at("cap").as_double();
  each(args, [cap](double x) { return cap * std::tanh(x / cap); });
}

std::vector<Type> infer_silu(const InferContext& context) {
  return one(DType::kF32, Rule("silu", context).values(0, "x").dims);
}
std::vector<Type> infer_gelu(const InferContext& context) {
  Rule rule("gelu", context);
  const std::string& kind = rule.attrs().at("approximate").as_string();
  if (kind != "tanh" && kind != "none")
    rule.fail("approximate must be \"tanh\" or \"none\", got \"{}\"", kind);
  return one(DType::kF32, rule.values(0, "x").dims);
}
std::vector<Type> infer_softcap(const InferContext& context) {
  Rule rule("softcap", context);
  double cap = rule.attrs().at("cap").as_double();
  if (!std::isfinite(cap) || cap <= 0)
    rule.fail("cap must be a finite positive number, got {}", cap);
  return one(DType::kF32, rule.values(0, "x").dims);
}

SymExpr flops(std::span<const Type>, std::span<const Type> out) {
  return out[0].tensor.elements() * 5;
}

OpDef op(std::string_view name, decltype(OpDef::infer) infer, Meaning<float> f32,
         Meaning<double> f64, Meaning<Traced> traced, std::vector<std::string_view> attrs,
         double element_ops, std::string_view doc) {
  auto required = static_cast<int>(attrs.size());
  return {.name = name,
          .tier = Tier::kComposite,
          .min_inputs = 1,
          .max_inputs = 1,
          .infer = infer,
          .f32 = f32,
          .f64 = f64,
          .traced = traced,
          .attr_names = std::move(attrs),
          .required_attrs = required,
          .ragged = true,
          .storage = true,
          .flops = flops,
          .doc = doc,
          .element_ops = element_ops,
          .loop = {LoopForm::Kind::kElement}};
}

}  // namespace

std::vector<OpDef> activation_ops() {
  return {op("silu", infer_silu, silu<float>, silu<double>, silu<Traced>, {}, 14, "x * sigmoid(x)"),
          op("gelu", infer_gelu, gelu<float>, gelu<double>, gelu<Traced>, {"approximate"}, 24,
             "x times the normal distribution function, exact or by tanh"),
          op("softcap", infer_softcap, softcap<float>, softcap<double>, softcap<Traced>, {"cap"},
             24, "cap * tanh(x / cap)")};
}

}  // namespace tokamak
