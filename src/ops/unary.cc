// Element-wise functions of one value.
#include <cmath>

#include "ops/infer.h"
#include "ops/meaning.h"
#include "ops/tables.h"

namespace tokamak {
namespace {

struct Neg {
  static constexpr std::string_view kName = "neg";
  template <class W>
  static W of(W x) {
    return -x;
  }
};
struct Square {
  static constexpr std::string_view kName = "square";
  template <class W>
  static W of(W x) {
    return x * x;
  }
};
struct Abs {
  static constexpr std::string_view kName = "abs";
  static double of(double x) { return std::fabs(x); }
};
struct Exp {
  static constexpr std::string_view kName = "exp";
  static double of(double x) { return std::exp(x); }
};
struct Log {
  static constexpr std::string_view kName = "log";
  static double of(double x) { return std::log(x); }
};
struct Sqrt {
  static constexpr std::string_view kName = "sqrt";
  static double of(double x) { return std::sqrt(x); }
};
struct Rsqrt {
  static constexpr std::string_view kName = "rsqrt";
  static double of(double x) { return 1.0 / std::sqrt(x); }
};
struct Sin {
  static constexpr std::string_view kName = "sin";
  static double of(double x) { return std::sin(x); }
};
struct Cos {
  static constexpr std::string_view kName = "cos";
  static double of(double x) { return std::cos(x); }
};
struct Tanh {
  static constexpr std::string_view kName = "tanh";
  static double of(double x) { return std::tanh(x); }
};
struct Erf {
  static constexpr std::string_view kName = "erf";
  static double of(double x) { return std::erf(x); }
};
struct Sigmoid {
  static constexpr std::string_view kName = "sigmoid";
  static double of(double x) { return 1.0 / (1.0 + std::exp(-x)); }
};
struct Relu {
  static constexpr std::string_view kName = "relu";
  static double of(double x) { return x > 0 || std::isnan(x) ? x : 0.0; }
};

template <class F, class S>
void run(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &y = args.out[0].tensor;
  for (int64_t i = 0, n = y.elements(); i < n; ++i) store(y, i, F::of(Wide<S>(x.f[i])));
}

template <class S>
void scale(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &y = args.out[0].tensor;
  Wide<S> value = to_scalar<S>(args.attrs.at("value").as_double());
  for (int64_t i = 0, n = y.elements(); i < n; ++i) store(y, i, Wide<S>(x.f[i]) * value);
}

template <class F>
std::vector<Type> infer_unary(const InferContext& context) {
  return one(DType::kF32, Rule(F::kName, context).values(0, "x").dims);
}
std::vector<Type> infer_scale(const InferContext& context) {
  Rule rule("scale", context);
  if (!rule.attrs().at("value").is_number()) rule.fail("value must be a number");
  return one(DType::kF32, rule.values(0, "x").dims);
}

template <class F>
OpDef real(std::string_view doc, double element_ops = 1) {
  return {.name = F::kName,
          .tier = Tier::kPrimitive,
          .min_inputs = 1,
          .max_inputs = 1,
          .infer = infer_unary<F>,
          .f32 = run<F, float>,
          .f64 = run<F, double>,
          .traced = run<F, Traced>,
          .ragged = true,
          .storage = true,
          .doc = doc,
          .element_ops = element_ops,
          .loop = {LoopForm::Kind::kElement}};
}
template <class F>
OpDef rational(std::string_view doc) {
  OpDef op = real<F>(doc);
  op.field = run<F, Field>;
  return op;
}

}  // namespace

std::vector<OpDef> unary_ops() {
  OpDef scale_op = {.name = "scale",
                    .tier = Tier::kPrimitive,
                    .min_inputs = 1,
                    .max_inputs = 1,
                    .infer = infer_scale,
                    .f32 = scale<float>,
                    .f64 = scale<double>,
                    .traced = scale<Traced>,
                    .field = scale<Field>,
                    .attr_names = {"value"},
                    .required_attrs = 1,
                    .ragged = true,
                    .storage = true,
                    .doc = "x * value",
                    .loop = {LoopForm::Kind::kElement, "mul(a, value)"}};
  return {rational<Neg>("-x"),
          real<Abs>("|x|"),
          real<Exp>("e to the power x", 10),
          real<Log>("natural logarithm", 60),
          real<Sqrt>("square root", 4),
          real<Rsqrt>("1 / sqrt(x)", 6),
          rational<Square>("x * x"),
          real<Sin>("sine", 60),
          real<Cos>("cosine", 60),
          real<Tanh>("hyperbolic tangent", 20),
          real<Erf>("error function", 60),
          real<Sigmoid>("1 / (1 + e^-x)", 14),
          real<Relu>("max(x, 0)"),
          scale_op};
}

}  // namespace tokamak
