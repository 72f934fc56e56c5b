// Mixture of experts: rows are sorted by expert, multiplied group by group and combined per token.
// The number of rows is known only on the device: `offsets` holds it, extents are upper bounds.
#include <algorithm>

#include "ops/infer.h"
#include "ops/meaning.h"
#include "ops/tables.h"

namespace tokamak {
namespace {

template <class S>
void moe_dispatch(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &experts = args.in[1].tensor,
        &rows = args.out[0].tensor, &offsets = args.out[1].tensor, &source = args.out[2].tensor;
  int64_t d = x.dims[1], k = experts.dims[1], count = offsets.dims[0] - 1, row = 0;
  for (int64_t e = 0; e < count; ++e) {
    offsets.i[e] = static_cast<int32_t>(row);
    for (int64_t i = 0; i < experts.elements(); ++i) {
      if (experts.i[i] >= count)
        fail_infer("moe_dispatch", "expert {} does not exist, there are {}", experts.i[i], count);
      if (experts.i[i] != e) continue;
      store_values(rows, row * d, static_cast<const S*>(x.f) + i / k * d, d);
      source.i[row++] = static_cast<int32_t>(i);
    }
  }
  offsets.i[count] = static_cast<int32_t>(row);
  std::fill(rows.f + row * d, rows.f + rows.elements(), S(0));
  std::fill(source.i + row, source.i + source.elements(), -1);
}

std::vector<Type> infer_dispatch(const InferContext& context) {
  Rule rule("moe_dispatch", context);
  const TensorType &x = rule.values(0, "x", 2), &experts = rule.integers(1, "experts", 2);
  rule.same(x.extent(0), "the rows of x", experts.extent(0), "the rows of experts");
  int64_t count = rule.attrs().at("count").as_int();
  if (count < 1) rule.fail("count must be positive");
  Dim m{"m", experts.elements(), true};
  return {Type::of({DType::kF32, {m, x.dims[1]}}),
          Type::of({DType::kI32, {{"e", SymExpr(count + 1)}}}), Type::of({DType::kI32, {m}})};
}

template <class S>
void grouped_linear(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &w = args.in[1].tensor, &offsets = args.in[2].tensor,
        &y = args.out[0].tensor;
  int64_t groups = w.dims[0], n = w.dims[1], k = w.dims[2];
  const S* bias = args.in.size() > 3 ? args.in[3].tensor.f : nullptr;
  std::fill_n(y.f, y.elements(), S(0));
  check_starts("grouped_linear", offsets, x.dims[0]);
  for (int64_t g = 0; g < groups; ++g)
    for (int64_t r = offsets.i[g]; r < offsets.i[g + 1]; ++r)
      for (int64_t j = 0; j < n; ++j) {
        Wide<S> sum = dot(x.f + r * k, w.f + (g * n + j) * k, k);
        store(y, r * n + j, bias ? sum + Wide<S>(bias[g * n + j]) : sum);
      }
}

std::vector<Type> infer_grouped(const InferContext& context) {
  Rule rule("grouped_linear", context);
  const TensorType &x = rule.values(0, "rows", 2), &w = rule.values(1, "w", 3),
                   &offsets = rule.integers(2, "offsets", 1);
  rule.same(x.extent(1), "k of rows", w.extent(2), "k of w");
  rule.same(offsets.extent(0), "offsets", w.extent(0) + 1, "groups + 1");
  if (rule.inputs() > 3) {
    const TensorType& bias = rule.values(3, "bias", 2);
    rule.same(bias.extent(0), "the groups of the bias", w.extent(0), "those of w");
    rule.same(bias.extent(1), "the bias", w.extent(1), "n of w");
  }
  return one(DType::kF32, {x.dims[0], w.dims[1]});
}

SymExpr grouped_flops(std::span<const Type> in, std::span<const Type> out) {
  return out[0].tensor.elements() * in[0].tensor.extent(-1) * 2;  // of the bound
}

template <class S>
void moe_combine(const MeaningArgs<S>& args) {
  const TensorRef<S>&rows = args.in[0].tensor, &source = args.in[1].tensor,
        &offsets = args.in[2].tensor, &weights = args.in[3].tensor, &y = args.out[0].tensor;
  int64_t d = rows.dims[1], k = weights.dims[1], count = offsets.i[offsets.dims[0] - 1];
  std::vector<int64_t> row_of(static_cast<size_t>(weights.elements()), -1);
  check_index("moe_combine", "last row", count, rows.dims[0] + 1);
  for (int64_t r = 0; r < count; ++r) {
    check_index("moe_combine", "source", source.i[r], weights.elements());
    row_of[static_cast<size_t>(source.i[r])] = r;
  }
  for (int64_t t = 0; t < y.dims[0]; ++t)
    for (int64_t j = 0; j < d; ++j) {
      Wide<S> sum(0);
      for (int64_t i = t * k; i < (t + 1) * k; ++i)
        if (int64_t r = row_of[static_cast<size_t>(i)]; r >= 0)
          sum += Wide<S>(weights.f[i]) * Wide<S>(rows.f[r * d + j]);
      store(y, t * d + j, sum);
    }
}

std::vector<Type> infer_combine(const InferContext& context) {
  Rule rule("moe_combine", context);
  const TensorType &rows = rule.values(0, "rows", 2), &source = rule.integers(1, "source", 1),
                   &weights = rule.values(3, "weights", 2);
  rule.integers(2, "offsets", 1);
  rule.same(rows.extent(0), "the rows", source.extent(0), "the sources");
  rule.same(rows.extent(0), "the rows", weights.elements(), "the weights");
  return one(DType::kF32, {weights.dims[0], rows.dims[1]});
}

SymExpr combine_flops(std::span<const Type> in, std::span<const Type>) {
  return in[0].tensor.elements() * 2;
}

// Rows are spread over as many experts as possible.
int32_t even_offset(int64_t e, int64_t n, int64_t rows) {
  return static_cast<int32_t>(e * rows / std::max<int64_t>(1, n - 1));
}

SymExpr no_flops(std::span<const Type>, std::span<const Type>) { return 0; }

}  // namespace

std::vector<OpDef> moe_ops() {
  return {{.name = "moe_dispatch",
           .tier = Tier::kComposite,
           .min_inputs = 2,
           .max_inputs = 2,
           .infer = infer_dispatch,
           .f32 = moe_dispatch<float>,
           .f64 = moe_dispatch<double>,
           .traced = moe_dispatch<Traced>,
           .field = moe_dispatch<Field>,
           .attr_names = {"count"},
           .required_attrs = 1,
           .ragged = true,
           .storage = true,
           .flops = no_flops,
           .doc = "rows sorted by expert, with offsets and origins"},
          {.name = "grouped_linear",
           .tier = Tier::kComposite,
           .min_inputs = 3,
           .max_inputs = 4,
           .infer = infer_grouped,
           .f32 = grouped_linear<float>,
           .f64 = grouped_linear<double>,
           .traced = grouped_linear<Traced>,
           .field = grouped_linear<Field>,
           .ragged = true,
           .storage = true,
           .flops = grouped_flops,
           .doc = "rows of group e times the transpose of w[e], plus bias[e]",
           .dots = true,
           .takes_q8a = true,
           .reads =
               [](size_t operand, const Attrs&) {
                 bool stack = operand == 1 || operand == 3;
                 return stack ? OperandRead{OperandRead::Kind::kRowPerRow, 0} : OperandRead{};
               },
           .typical = [](size_t operand, int64_t i, int64_t n,
                         int64_t rows) { return operand == 2 ? even_offset(i, n, rows) : 0; }},
          {.name = "moe_combine",
           .tier = Tier::kComposite,
           .min_inputs = 4,
           .max_inputs = 4,
           .infer = infer_combine,
           .f32 = moe_combine<float>,
           .f64 = moe_combine<double>,
           .traced = moe_combine<Traced>,
           .field = moe_combine<Field>,
           .ragged = true,
           .storage = true,
           .flops = combine_flops,
           .doc = "weighted sum of each token's expert rows",
           .reads =
               [](size_t operand, const Attrs&) {
                 return operand == 2 ? OperandRead{OperandRead::Kind::kOneElement} : OperandRead{};
               },
           .typical =
               [](size_t operand, int64_t i, int64_t n, int64_t rows) {
                 return operand == 1 ? static_cast<int32_t>(i) : even_offset(i, n, rows);
               }}};
}

}  // namespace tokamak
