// Products with weights: linear, head_linear (a matrix per head), and lora (a low-rank product
// selected by each row's adapter).
#include "ops/infer.h"
#include "ops/meaning.h"
#include "ops/tables.h"

namespace tokamak {
namespace {

template <class S>
void linear(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &w = args.in[1].tensor, &y = args.out[0].tensor;
  const S* bias = args.in.size() > 2 ? args.in[2].tensor.f : nullptr;
  int64_t rows = row_count(x), k = row_length(x), n = w.dims[0];
  for (int64_t j = 0; j < n; ++j)
    for (int64_t r = 0; r < rows; ++r) {
      Wide<S> sum = dot(x.f + r * k, w.f + j * k, k);
      store(y, r * n + j, bias ? sum + Wide<S>(bias[j]) : sum);
    }
}

std::vector<Type> infer_linear(const InferContext& context) {
  Rule rule("linear", context);
  const TensorType &x = rule.values(0, "x"), &w = rule.values(1, "w", 2);
  if (x.rank() < 1) rule.fail("x needs an axis");
  rule.same(x.extent(-1), "k of x", w.extent(1), "k of w");
  if (rule.inputs() > 2)
    rule.same(rule.values(2, "bias", 1).extent(0), "the bias", w.extent(0), "n of w");
  std::vector<Dim> dims = x.dims;
  dims.back() = w.dims[0];
  return one(DType::kF32, std::move(dims));
}

SymExpr linear_flops(std::span<const Type> in, std::span<const Type> out) {
  return out[0].tensor.elements() * in[0].tensor.extent(-1) * 2;
}

template <class S>
void head_linear(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &w = args.in[1].tensor, &y = args.out[0].tensor;
  int64_t heads = w.dims[0], n = w.dims[1], k = w.dims[2];
  for (int64_t t = 0; t < x.dims[0]; ++t)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t j = 0; j < n; ++j)
        store(y, (t * heads + h) * n + j, dot(x.f + (t * heads + h) * k, w.f + (h * n + j) * k, k));
}

std::vector<Type> infer_head_linear(const InferContext& context) {
  Rule rule("head_linear", context);
  const TensorType &x = rule.values(0, "x", 3), &w = rule.values(1, "w", 3);
  rule.same(x.extent(1), "the heads of x", w.extent(0), "those of w");
  rule.same(x.extent(2), "k of x", w.extent(2), "k of w");
  return one(DType::kF32, {x.dims[0], x.dims[1], w.dims[1]});
}

template <class S>
void lora(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &a = args.in[1].tensor, &b = args.in[2].tensor,
        &adapter = args.in[3].tensor, &y = args.out[0].tensor;
  int64_t k = x.dims[1], rank = a.dims[1], n = b.dims[1];
  std::vector<Wide<S>> inner(static_cast<size_t>(rank));
  for (int64_t t = 0; t < x.dims[0]; ++t) {
    int64_t s = adapter.i[t];
    if (s >= a.dims[0]) fail_infer("lora", "adapter {} does not exist, there are {}", s, a.dims[0]);
    if (s < 0) {
      std::fill_n(y.f + t * n, n, S(0));
      continue;
    }
    for (int64_t r = 0; r < rank; ++r)
      inner[static_cast<size_t>(r)] = dot(x.f + t * k, a.f + (s * rank + r) * k, k);
    for (int64_t j = 0; j < n; ++j) {
      Wide<S> sum(0);
      for (int64_t r = 0; r < rank; ++r)
        sum += inner[static_cast<size_t>(r)] * Wide<S>(b.f[(s * n + j) * rank + r]);
      store(y, t * n + j, sum);
    }
  }
}

std::vector<Type> infer_lora(const InferContext& context) {
  Rule rule("lora", context);
  const TensorType &x = rule.values(0, "x", 2), &a = rule.values(1, "a", 3),
                   &b = rule.values(2, "b", 3), &adapter = rule.integers(3, "adapter", 1);
  rule.same(x.extent(1), "k of x", a.extent(2), "k of a");
  rule.same(a.extent(0), "the adapters of a", b.extent(0), "those of b");
  rule.same(a.extent(1), "the rank of a", b.extent(2), "that of b");
  rule.same(x.extent(0), "the rows of x", adapter.extent(0), "the rows of adapter");
  return one(DType::kF32, {x.dims[0], b.dims[1]});
}

SymExpr lora_flops(std::span<const Type> in, std::span<const Type> out) {
  return (in[0].tensor.elements() + out[0].tensor.elements()) * in[1].tensor.extent(1) * 2;
}

}  // namespace

std::vector<OpDef> linear_ops() {
  return {{.name = "linear",
           .tier = Tier::kComposite,
           .min_inputs = 2,
           .max_inputs = 3,
           .infer = infer_linear,
           .f32 = linear<float>,
           .f64 = linear<double>,
           .traced = linear<Traced>,
           .field = linear<Field>,
           .storage = true,
           .flops = linear_flops,
           .doc = "x times the transpose of w, plus bias",
           .dots = true,
           .takes_q8a = true,
           .product = true},
          {.name = "head_linear",
           .tier = Tier::kComposite,
           .min_inputs = 2,
           .max_inputs = 2,
           .infer = infer_head_linear,
           .f32 = head_linear<float>,
           .f64 = head_linear<double>,
           .traced = head_linear<Traced>,
           .field = head_linear<Field>,
           .storage = true,
           .flops = linear_flops,
           .doc = "each head of x times the transpose of its matrix",
           .dots = true,
           .takes_q8a = true},
          {.name = "lora",
           .tier = Tier::kComposite,
           .min_inputs = 4,
           .max_inputs = 4,
           .infer = infer_lora,
           .f32 = lora<float>,
           .f64 = lora<double>,
           .traced = lora<Traced>,
           .field = lora<Field>,
           .storage = true,
           .flops = lora_flops,
           .doc = "b[s] (a[s] x) with s the row's adapter; 0 for s < 0",
           .dots = true}};
}

}  // namespace tokamak
