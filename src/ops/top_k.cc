// top_k: the largest k of the last axis, descending; equal values are ordered by index.
#include <numeric>

#include "ops/infer.h"
#include "ops/meaning.h"
#include "ops/tables.h"

namespace tokamak {
namespace {

template <class S>
void top_k(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &values = args.out[0].tensor,
        &index = args.out[1].tensor;
  int64_t n = row_length(x), k = row_length(values);
  std::vector<int32_t> order(static_cast<size_t>(n));
  for (int64_t r = 0; r < row_count(x); ++r) {
    const S* row = x.f + r * n;
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + k, order.end(), [row](int32_t a, int32_t b) {
      return row[a] != row[b] ? row[a] > row[b] : a < b;
    });
    for (int64_t j = 0; j < k; ++j) {
      int32_t at = order[static_cast<size_t>(j)];
      store(values, r * k + j, Wide<S>(row[at]));
      index.i[r * k + j] = at;
    }
  }
}

std::vector<Type> infer(const InferContext& context) {
  Rule rule("top_k", context);
  const TensorType& x = rule.values(0, "x");
  if (x.rank() < 1) rule.fail("x needs an axis");
  int64_t k = rule.attrs().at("k").as_int();
  auto n = x.extent(-1).constant();
  if (k < 1 || !n || k > *n) rule.fail("k = {} does not fit {} values", k, x.extent(-1).text());
  std::vector<Dim> dims = x.dims;
  dims.back() = {"k", k};
  return {Type::of({DType::kF32, dims}), Type::of({DType::kI32, dims})};
}

}  // namespace

std::vector<OpDef> top_k_ops() {
  return {{.name = "top_k",
           .tier = Tier::kPrimitive,
           .min_inputs = 1,
           .max_inputs = 1,
           .infer = infer,
           .f32 = top_k<float>,
           .f64 = top_k<double>,
           .traced = top_k<Traced>,
           .attr_names = {"k"},
           .required_attrs = 1,
           .storage = true,
           .doc = "largest k of the last axis with their indices, descending"}};
}

}  // namespace tokamak
