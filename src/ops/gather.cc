// Rows by index: gather and embed; and iota, which creates an index.
#include <algorithm>

#include "ops/infer.h"
#include "ops/meaning.h"
#include "ops/tables.h"

namespace tokamak {
namespace {

template <class S>
void gather(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &index = args.in[1].tensor, &y = args.out[0].tensor;
  size_t axis = axis_of(args.attrs, x.dims.size());
  int64_t outer = product(x.dims, 0, axis), extent = x.dims[axis],
          inner = product(x.dims, axis + 1), count = index.elements();
  auto copy = [&](const auto* from, auto* to) {
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t i = 0; i < count; ++i, to += inner) {
        int64_t row = index.i[i];
        if (row >= extent) fail_infer("gather", "index {} is beyond the extent {}", row, extent);
        if (row < 0)
          std::fill_n(to, inner, 0);
        else
          std::copy_n(from + (o * extent + row) * inner, inner, to);
      }
  };
  if (y.i)
    copy(static_cast<const IndexOf<S>*>(x.i), y.i);
  else
    copy(static_cast<const S*>(x.f), y.f);
}

std::vector<Type> infer_gather(const InferContext& context) {
  Rule rule("gather", context);
  const TensorType &x = rule.tensor(0, "x"), &index = rule.integers(1, "index");
  size_t axis = rule.axis(x.rank(), 0);
  std::vector<Dim> dims(x.dims.begin(), x.dims.begin() + static_cast<std::ptrdiff_t>(axis));
  dims.insert(dims.end(), index.dims.begin(), index.dims.end());
  dims.insert(dims.end(), x.dims.begin() + static_cast<std::ptrdiff_t>(axis) + 1, x.dims.end());
  return one(is_block_type(x.dtype) ? DType::kF32 : x.dtype, std::move(dims));
}

template <class S>
void embed(const MeaningArgs<S>& args) {
  const TensorRef<S>&ids = args.in[0].tensor, &w = args.in[1].tensor, &y = args.out[0].tensor;
  int64_t d = w.dims[1];
  for (int64_t t = 0; t < ids.elements(); ++t) {
    int64_t id = ids.i[t];
    if (id >= w.dims[0]) fail_infer("embed", "id {} is not in the table of {} rows", id, w.dims[0]);
    if (id < 0)
      std::fill_n(y.f + t * d, d, S(0));
    else
      store_values(y, t * d, static_cast<const S*>(w.f) + id * d, d);
  }
}

std::vector<Type> infer_embed(const InferContext& context) {
  Rule rule("embed", context);
  const TensorType &ids = rule.integers(0, "ids", 1), &w = rule.values(1, "w", 2);
  return one(DType::kF32, {ids.dims[0], w.dims[1]});
}

template <class S>
void iota(const MeaningArgs<S>& args) {
  const TensorRef<S>& y = args.out[0].tensor;
  for (int64_t i = 0; i < y.elements(); ++i) y.i[i] = static_cast<int32_t>(i);
}

std::vector<Type> infer_iota(const InferContext& context) {
  Rule rule("iota", context);
  return one(DType::kI32, {{"n", rule.extent_attr(rule.attrs().at("n"))}});
}

SymExpr no_flops(std::span<const Type>, std::span<const Type>) { return 0; }

}  // namespace

std::vector<OpDef> gather_ops() {
  return {{.name = "gather",
           .tier = Tier::kPrimitive,
           .min_inputs = 2,
           .max_inputs = 2,
           .infer = infer_gather,
           .f32 = gather<float>,
           .f64 = gather<double>,
           .traced = gather<Traced>,
           .field = gather<Field>,
           .attr_names = {"axis"},
           .flops = no_flops,
           .doc = "rows of x by index; a negative index gives zeros",
           .loop = {LoopForm::Kind::kGather},
           .reads =
               [](size_t operand, const Attrs& attrs) {
                 bool rows = operand == 0 && attrs.get_int("axis", 0) == 0;
                 return rows ? OperandRead{OperandRead::Kind::kSelectedRows, 1} : OperandRead{};
               }},
          {.name = "iota",
           .tier = Tier::kPrimitive,
           .min_inputs = 0,
           .max_inputs = 0,
           .infer = infer_iota,
           .f32 = iota<float>,
           .f64 = iota<double>,
           .traced = iota<Traced>,
           .field = iota<Field>,
           .attr_names = {"n"},
           .required_attrs = 1,
           .flops = no_flops,
           .doc = "0, 1, ..., n - 1",
           .loop = {LoopForm::Kind::kIota}},
          {.name = "embed",
           .tier = Tier::kComposite,
           .min_inputs = 2,
           .max_inputs = 2,
           .infer = infer_embed,
           .f32 = embed<float>,
           .f64 = embed<double>,
           .traced = embed<Traced>,
           .field = embed<Field>,
           .storage = true,
           .flops = no_flops,
           .doc = "rows of a table by token id; a negative id gives zeros",
           .element_ops = 2,
           .reads = [](size_t operand, const Attrs&) {
             return operand == 1 ? OperandRead{OperandRead::Kind::kSelectedRows, 0} : OperandRead{};
           }}};
}

}  // namespace tokamak
