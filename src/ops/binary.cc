// Element-wise arithmetic on two tensors, with trailing-aligned broadcasting.
#include <cmath>

#include "ops/infer.h"
#include "ops/meaning.h"
#include "ops/tables.h"

namespace tokamak {
namespace {

// Integers wrap around: they are computed as unsigned, where that is defined.
uint32_t bits(int32_t x) { return static_cast<uint32_t>(x); }

struct Add {
  static constexpr std::string_view kName = "add";
  template <class W>
  static W of(W a, W b) {
    return a + b;
  }
  static int32_t of_int(int32_t a, int32_t b) { return static_cast<int32_t>(bits(a) + bits(b)); }
};
struct Sub {
  static constexpr std::string_view kName = "sub";
  template <class W>
  static W of(W a, W b) {
    return a - b;
  }
  static int32_t of_int(int32_t a, int32_t b) { return static_cast<int32_t>(bits(a) - bits(b)); }
};
struct Mul {
  static constexpr std::string_view kName = "mul";
  template <class W>
  static W of(W a, W b) {
    return a * b;
  }
  static int32_t of_int(int32_t a, int32_t b) { return static_cast<int32_t>(bits(a) * bits(b)); }
};
struct Div {
  static constexpr std::string_view kName = "div";
  template <class W>
  static W of(W a, W b) {
    return a / b;
  }
  static int32_t of_int(int32_t a, int32_t b) {  // towards zero, like C++; x / 0 = 0
    return b == 0 ? 0 : static_cast<int32_t>(int64_t{a} / b);
  }
};
struct Maximum {  // propagates NaN
  static constexpr std::string_view kName = "maximum";
  static double of(double a, double b) { return std::isnan(a) || a > b ? a : b; }
  static int32_t of_int(int32_t a, int32_t b) { return std::max(a, b); }
};
struct Minimum {
  static constexpr std::string_view kName = "minimum";
  static double of(double a, double b) { return std::isnan(a) || a < b ? a : b; }
  static int32_t of_int(int32_t a, int32_t b) { return std::min(a, b); }
};

template <class F, class S>
void run(const MeaningArgs<S>& args) {
  const TensorRef<S>&a = args.in[0].tensor, &b = args.in[1].tensor, &y = args.out[0].tensor;
  BroadcastWalk at_a(y.dims, a.dims), at_b(y.dims, b.dims);
  for (int64_t i = 0, n = y.elements(); i < n; ++i, at_a.next(), at_b.next()) {
    if (y.i)
      y.i[i] = F::of_int(a.i[at_a.offset()], b.i[at_b.offset()]);
    else
      store(y, i, F::of(Wide<S>(a.f[at_a.offset()]), Wide<S>(b.f[at_b.offset()])));
  }
}

template <class F>
std::vector<Type> infer(const InferContext& context) {
  Rule rule(F::kName, context);
  const TensorType &a = rule.tensor(0, "a"), &b = rule.tensor(1, "b");
  return one(arithmetic_dtype(rule, a, b), broadcast_dims(rule, a.dims, b.dims));
}

template <class F>
OpDef real(std::string_view doc) {
  return {.name = F::kName,
          .tier = Tier::kPrimitive,
          .min_inputs = 2,
          .max_inputs = 2,
          .infer = infer<F>,
          .f32 = run<F, float>,
          .f64 = run<F, double>,
          .traced = run<F, Traced>,
          .ragged = true,
          .storage = true,
          .doc = doc,
          .loop = {LoopForm::Kind::kElement}};
}
template <class F>
OpDef rational(std::string_view doc) {
  OpDef op = real<F>(doc);
  op.field = run<F, Field>;
  return op;
}

}  // namespace

std::vector<OpDef> binary_ops() {
  OpDef add = rational<Add>("a + b"), div = rational<Div>("a / b");
  add.sum = true;
  div.element_ops = 4;
  return {std::move(add), rational<Sub>("a - b"),         rational<Mul>("a * b"),
          std::move(div), real<Maximum>("larger of two"), real<Minimum>("smaller of two")};
}

}  // namespace tokamak
