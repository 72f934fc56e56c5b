// Moving data without changing it: reshape, transpose, slice, concat, broadcast.
#include "ops/infer.h"
#include "ops/meaning.h"
#include "ops/tables.h"

namespace tokamak {
namespace {

// Calls `copy` with the element pointers of input and output: integers or scalars.
template <class S, class F>
void on_elements(const TensorRef<S>& x, const TensorRef<S>& y, F&& copy) {
  if (y.i)
    copy(static_cast<const IndexOf<S>*>(x.i), y.i);
  else
    copy(static_cast<const S*>(x.f), y.f);
}

template <class S>
void reshape(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &y = args.out[0].tensor;
  on_elements(x, y, [&](const auto* from, auto* to) { copy_values(from, to, y.elements()); });
}

std::vector<Type> infer_reshape(const InferContext& context) {
  Rule rule("reshape", context);
  const TensorType& x = rule.plain(0, "x");
  TensorType out{x.dtype, rule.dims_from_attrs()};
  rule.same(x.elements(), "the number of elements", out.elements(), "the new one");
  return {Type::of(std::move(out))};
}

template <class S>
void transpose(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &y = args.out[0].tensor;
  const Value::Array& perm = args.attrs.at("perm").as_array();
  size_t rank = x.dims.size();
  std::vector<int64_t> stride(rank), index(rank, 0);
  for (size_t i = 0; i < rank; ++i)
    stride[i] = product(x.dims, static_cast<size_t>(perm[i].as_int()) + 1);
  on_elements(x, y, [&](const auto* from, auto* to) {
    for (int64_t i = 0, n = y.elements(), offset = 0; i < n; ++i) {
      to[i] = from[offset];
      for (size_t axis = rank; axis-- > 0;) {
        offset += stride[axis];
        if (++index[axis] < y.dims[axis]) break;
        offset -= stride[axis] * y.dims[axis];
        index[axis] = 0;
      }
    }
  });
}

std::vector<Type> infer_transpose(const InferContext& context) {
  Rule rule("transpose", context);
  const TensorType& x = rule.plain(0, "x");
  const Value::Array& perm = rule.attrs().at("perm").as_array();
  if (perm.size() != x.dims.size())
    rule.fail("perm has {} entries, x has {} axes", perm.size(), x.dims.size());
  std::vector<Dim> dims;
  std::vector<bool> seen(perm.size(), false);
  for (const Value& p : perm) {
    int64_t axis = p.as_int();
    if (axis < 0 || axis >= x.rank() || seen[static_cast<size_t>(axis)])
      rule.fail("perm is not a permutation of 0..{}", x.rank() - 1);
    seen[static_cast<size_t>(axis)] = true;
    dims.push_back(x.dims[static_cast<size_t>(axis)]);
  }
  return one(x.dtype, std::move(dims));
}

template <class S>
void slice(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &y = args.out[0].tensor;
  size_t axis = axis_of(args.attrs, x.dims.size());
  int64_t outer = product(x.dims, 0, axis), inner = product(x.dims, axis + 1);
  int64_t start = args.attrs.at("start").as_int(), count = y.dims[axis];
  TK_CHECK(start >= 0 && start + count <= x.dims[axis], "slice [{}, {}) of {}", start,
           start + count, x.dims[axis]);
  on_elements(x, y, [&](const auto* from, auto* to) {
    for (int64_t o = 0; o < outer; ++o)
      copy_values(from + (o * x.dims[axis] + start) * inner, to + o * count * inner, count * inner);
  });
}

std::vector<Type> infer_slice(const InferContext& context) {
  Rule rule("slice", context);
  const TensorType& x = rule.plain(0, "x");
  size_t axis = rule.axis(x.rank(), 0);
  SymExpr start = rule.extent_attr(rule.attrs().at("start"));
  SymExpr end = rule.extent_attr(rule.attrs().at("end"));
  if (!start.constant()) rule.fail("start must be a number, got {}", start.text());
  auto whole = x.dims[axis].extent.constant(), last = end.constant();
  if (last && (*last < *start.constant() || (whole && *last > *whole)))
    rule.fail("[{}, {}) does not fit the extent {}", start.text(), end.text(),
              x.dims[axis].extent.text());
  std::vector<Dim> dims = x.dims;
  dims[axis].extent = end - start;
  return one(x.dtype, std::move(dims));
}

template <class S>
void concat(const MeaningArgs<S>& args) {
  const TensorRef<S>& y = args.out[0].tensor;
  size_t axis = axis_of(args.attrs, y.dims.size());
  int64_t outer = product(y.dims, 0, axis), inner = product(y.dims, axis + 1), at = 0;
  for (const Operand<S>& operand : args.in) {
    const TensorRef<S>& x = operand.tensor;
    int64_t count = x.dims[axis];
    on_elements(x, y, [&](const auto* from, auto* to) {
      for (int64_t o = 0; o < outer; ++o)
        copy_values(from + o * count * inner, to + (o * y.dims[axis] + at) * inner, count * inner);
    });
    at += count;
  }
}

std::vector<Type> infer_concat(const InferContext& context) {
  Rule rule("concat", context);
  const TensorType& first = rule.plain(0, "input 0");
  size_t axis = rule.axis(first.rank(), 0);
  std::vector<Dim> dims = first.dims;
  DType dtype = first.dtype;
  for (size_t i = 1; i < rule.inputs(); ++i) {
    const TensorType& x = rule.plain(i, "an input", first.rank());
    if (x.dtype != dtype) dtype = arithmetic_dtype(rule, first, x);
    for (size_t d = 0; d < dims.size(); ++d)
      if (d != axis) rule.same(dims[d].extent, "an extent", x.dims[d].extent, "the other's");
    dims[axis].extent = dims[axis].extent + x.dims[axis].extent;
  }
  return one(dtype, std::move(dims));
}

template <class S>
void broadcast(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &y = args.out[0].tensor;
  on_elements(x, y, [&](const auto* from, auto* to) {
    BroadcastWalk walk(y.dims, x.dims);
    for (int64_t i = 0, n = y.elements(); i < n; ++i, walk.next()) to[i] = from[walk.offset()];
  });
}

std::vector<Type> infer_broadcast(const InferContext& context) {
  Rule rule("broadcast", context);
  const TensorType& x = rule.plain(0, "x");
  std::vector<Dim> dims = rule.dims_from_attrs();
  if (x.dims.size() > dims.size()) rule.fail("{} has more axes than the new shape", x.text());
  for (size_t back = 1; back <= x.dims.size(); ++back) {
    const SymExpr& extent = x.dims[x.dims.size() - back].extent;
    if (extent != SymExpr(1))
      rule.same(extent, "an extent", dims[dims.size() - back].extent, "the new one");
  }
  return one(x.dtype, std::move(dims));
}

}  // namespace

std::vector<OpDef> layout_ops() {
  auto op = [](std::string_view name, int max_inputs, auto infer, Meaning<float> f32,
               Meaning<double> f64, Meaning<Traced> traced, Meaning<Field> field,
               std::vector<std::string_view> attrs, LoopForm::Kind loop, std::string_view doc) {
    auto required = static_cast<int>(attrs.size());
    return OpDef{.name = name,
                 .tier = Tier::kPrimitive,
                 .min_inputs = 1,
                 .max_inputs = max_inputs,
                 .infer = infer,
                 .f32 = f32,
                 .f64 = f64,
                 .traced = traced,
                 .field = field,
                 .attr_names = std::move(attrs),
                 .required_attrs = required,
                 .flops = [](std::span<const Type>, std::span<const Type>) { return SymExpr(0); },
                 .doc = doc,
                 .loop = {loop}};
  };
  using Loop = LoopForm::Kind;
  std::vector<OpDef> ops = {
      op("reshape", 1, infer_reshape, reshape<float>, reshape<double>, reshape<Traced>,
         reshape<Field>, {"dims", "axes"}, Loop::kSame,
         "same elements in the same order under new extents"),
      op("transpose", 1, infer_transpose, transpose<float>, transpose<double>, transpose<Traced>,
         transpose<Field>, {"perm"}, Loop::kTranspose, "axis i of the result is axis perm[i] of x"),
      op("slice", 1, infer_slice, slice<float>, slice<double>, slice<Traced>, slice<Field>,
         {"axis", "start", "end"}, Loop::kSlice, "elements start..end-1 of one axis"),
      op("concat", -1, infer_concat, concat<float>, concat<double>, concat<Traced>, concat<Field>,
         {"axis"}, Loop::kNone, "concatenates the inputs along one axis"),
      op("broadcast", 1, infer_broadcast, broadcast<float>, broadcast<double>, broadcast<Traced>,
         broadcast<Field>, {"dims", "axes"}, Loop::kBroadcast,
         "repeats extents of 1 (trailing-aligned)")};
  ops[0].alias = true;
  ops[2].reads = [](size_t, const Attrs&) { return OperandRead{OperandRead::Kind::kAsOutput}; };
  return ops;
}

}  // namespace tokamak
