// matmul: [..., m, k] x [..., k, n], batch extents broadcast.
#include "ops/infer.h"
#include "ops/meaning.h"
#include "ops/tables.h"

namespace tokamak {
namespace {

template <class S>
void matmul(const MeaningArgs<S>& args) {
  const TensorRef<S>&a = args.in[0].tensor, &b = args.in[1].tensor, &y = args.out[0].tensor;
  size_t rank = y.dims.size();
  int64_t m = y.dims[rank - 2], n = y.dims[rank - 1], k = a.dims.back();
  auto batch = [](const TensorRef<S>& t) { return t.dims.first(t.dims.size() - 2); };
  BroadcastWalk at_a(batch(y), batch(a)), at_b(batch(y), batch(b));
  std::vector<S> column(static_cast<size_t>(k));
  for (int64_t i = 0, count = product(batch(y)); i < count; ++i, at_a.next(), at_b.next()) {
    const S *left = a.f + at_a.offset() * m * k, *right = b.f + at_b.offset() * k * n;
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l) column[static_cast<size_t>(l)] = right[l * n + j];
      for (int64_t row = 0; row < m; ++row)
        store(y, (i * m + row) * n + j, dot(left + row * k, column.data(), k));
    }
  }
}

std::vector<Type> infer(const InferContext& context) {
  Rule rule("matmul", context);
  const TensorType &a = rule.values(0, "a"), &b = rule.values(1, "b");
  if (a.rank() < 2 || b.rank() < 2)
    rule.fail("both inputs need two axes, got {} and {}", a.text(), b.text());
  rule.same(a.extent(-1), "k of a", b.extent(-2), "k of b");
  auto batch = [](const TensorType& t) {
    return std::vector<Dim>(t.dims.begin(), t.dims.end() - 2);
  };
  std::vector<Dim> dims = broadcast_dims(rule, batch(a), batch(b));
  dims.push_back(a.dims[a.dims.size() - 2]);
  dims.push_back(b.dims.back());
  return one(DType::kF32, std::move(dims));
}

SymExpr flops(std::span<const Type> in, std::span<const Type> out) {
  return out[0].tensor.elements() * in[0].tensor.extent(-1) * 2;
}

}  // namespace

std::vector<OpDef> matmul_ops() {
  return {{.name = "matmul",
           .tier = Tier::kPrimitive,
           .min_inputs = 2,
           .max_inputs = 2,
           .infer = infer,
           .f32 = matmul<float>,
           .f64 = matmul<double>,
           .traced = matmul<Traced>,
           .field = matmul<Field>,
           .storage = true,
           .flops = flops,
           .doc = "matrix product of the last two axes",
           .dots = true}};
}

}  // namespace tokamak
