// Sum, maximum and mean over one axis.
#include <cmath>

#include "ops/infer.h"
#include "ops/meaning.h"
#include "ops/tables.h"

namespace tokamak {
namespace {

struct Sum {
  static constexpr std::string_view kName = "reduce_sum";
  template <class W>
  static W join(W a, W b) {
    return a + b;
  }
  template <class W>
  static W finish(W total, int64_t) {
    return total;
  }
};
struct Max {
  static constexpr std::string_view kName = "reduce_max";
  static double join(double a, double b) { return std::isnan(a) || a > b ? a : b; }
  static double finish(double largest, int64_t) { return largest; }
};
struct Mean {
  static constexpr std::string_view kName = "reduce_mean";
  template <class W>
  static W join(W a, W b) {
    return a + b;
  }
  template <class W>
  static W finish(W total, int64_t n) {
    return total / W(n);
  }
};

template <class F, class S>
void run(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &y = args.out[0].tensor;
  size_t axis = axis_of(args.attrs, x.dims.size());
  int64_t outer = product(x.dims, 0, axis), n = x.dims[axis], inner = product(x.dims, axis + 1);
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t i = 0; i < inner; ++i) {
      const S* column = x.f + o * n * inner + i;
      Wide<S> total(column[0]);
      for (int64_t j = 1; j < n; ++j) total = F::join(total, Wide<S>(column[j * inner]));
      store(y, o * inner + i, Wide<S>(F::finish(total, n)));
    }
}

template <class F>
std::vector<Type> infer(const InferContext& context) {
  Rule rule(F::kName, context);
  const TensorType& x = rule.values(0, "x");
  size_t axis = rule.axis(x.rank(), 0);
  std::vector<Dim> dims = x.dims;
  if (auto n = dims[axis].extent.constant(); n && *n == 0) rule.fail("the axis is empty");
  if (dims[axis].bound) rule.fail("cannot reduce the device-valued extent {}", dims[axis].axis);
  if (rule.attrs().get_int("keep", 0) != 0)
    dims[axis].extent = 1;
  else
    dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(axis));
  return one(DType::kF32, std::move(dims));
}

SymExpr flops(std::span<const Type> in, std::span<const Type>) { return in[0].tensor.elements(); }

template <class F>
OpDef op(std::string_view doc, std::string_view formula) {
  return {.name = F::kName,
          .tier = Tier::kPrimitive,
          .min_inputs = 1,
          .max_inputs = 1,
          .infer = infer<F>,
          .f32 = run<F, float>,
          .f64 = run<F, double>,
          .traced = run<F, Traced>,
          .attr_names = {"axis", "keep"},
          .required_attrs = 1,
          .ragged = true,
          .storage = true,
          .flops = flops,
          .doc = doc,
          .loop = {LoopForm::Kind::kReduce, formula}};
}

}  // namespace

std::vector<OpDef> reduce_ops() {
  std::vector<OpDef> ops = {op<Sum>("sum over one axis", "sum(a)"),
                            op<Max>("maximum over one axis", "max(a)"),
                            op<Mean>("mean over one axis", "div(sum(a), columns)")};
  ops[0].field = run<Sum, Field>;
  ops[2].field = run<Mean, Field>;
  return ops;
}

}  // namespace tokamak
