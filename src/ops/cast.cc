// Change of element type, comparison and selection.
#include <cmath>

#include "ops/infer.h"
#include "ops/meaning.h"
#include "ops/tables.h"
#include "tensor/block_formats.h"

namespace tokamak {
namespace {

DType target_dtype(const Attrs& attrs) {
  auto dtype = dtype_from_name(attrs.at("dtype").as_string());
  if (!dtype) fail_infer("cast", "unknown dtype \"{}\"", attrs.at("dtype").as_string());
  return *dtype;
}

int32_t to_int(double x) {  // towards zero, saturating; NaN gives 0
  if (std::isnan(x)) return 0;
  return static_cast<int32_t>(std::clamp(std::trunc(x), -2147483648.0, 2147483647.0));
}

template <class S>
S round_to(DType dtype, S value) {
  if constexpr (!std::is_same_v<S, Field>) {
    if (dtype == DType::kF16 || dtype == DType::kBF16) return round_to_dtype(dtype, value);
  }
  return value;
}

template <class S>
void cast(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &y = args.out[0].tensor;
  DType dtype = target_dtype(args.attrs);
  for (int64_t i = 0, n = y.elements(); i < n; ++i) {
    if (x.i && y.i) {
      y.i[i] = x.i[i];
    } else if (x.i) {
      y.f[i] = round_to(dtype, S(static_cast<Wide<S>>(int64_t{x.i[i]})));
    } else if (y.f) {
      y.f[i] = round_to(dtype, x.f[i]);
    } else if constexpr (!std::is_same_v<S, Field>) {
      y.i[i] = to_int(static_cast<double>(x.f[i]));
    } else {
      TK_CHECK(false, "cast to an integer is outside the finite field");
    }
  }
}

std::vector<Type> infer_cast(const InferContext& context) {
  Rule rule("cast", context);
  DType dtype = target_dtype(context.attrs);
  if (dtype != DType::kI32 && dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16)
    rule.fail("cannot cast to {}: use f32, f16, bf16 or i32", dtype_name(dtype));
  return one(dtype, rule.tensor(0, "x").dims);
}

template <class T>
bool holds(std::string_view kind, T a, T b) {
  if (kind == "lt") return a < b;
  if (kind == "le") return a <= b;
  if (kind == "eq") return a == b;
  if (kind == "ne") return a != b;
  if (kind == "ge") return a >= b;
  return a > b;
}

template <class S>
void compare(const MeaningArgs<S>& args) {
  const TensorRef<S>&a = args.in[0].tensor, &b = args.in[1].tensor, &y = args.out[0].tensor;
  const std::string& kind = args.attrs.at("kind").as_string();
  BroadcastWalk at_a(y.dims, a.dims), at_b(y.dims, b.dims);
  for (int64_t i = 0, n = y.elements(); i < n; ++i, at_a.next(), at_b.next())
    y.i[i] = a.i ? holds(kind, a.i[at_a.offset()], b.i[at_b.offset()])
                 : holds(kind, a.f[at_a.offset()], b.f[at_b.offset()]);
}

std::vector<Type> infer_compare(const InferContext& context) {
  Rule rule("compare", context);
  const TensorType &a = rule.tensor(0, "a"), &b = rule.tensor(1, "b");
  arithmetic_dtype(rule, a, b);
  const std::string& kind = rule.attrs().at("kind").as_string();
  for (std::string_view known : {"lt", "le", "eq", "ne", "ge", "gt"})
    if (kind == known) return one(DType::kI32, broadcast_dims(rule, a.dims, b.dims));
  rule.fail("unknown kind \"{}\": use lt, le, eq, ne, ge or gt", kind);
}

template <class S>
void select(const MeaningArgs<S>& args) {
  const TensorRef<S>&c = args.in[0].tensor, &a = args.in[1].tensor, &b = args.in[2].tensor,
        &y = args.out[0].tensor;
  BroadcastWalk at_c(y.dims, c.dims), at_a(y.dims, a.dims), at_b(y.dims, b.dims);
  for (int64_t i = 0, n = y.elements(); i < n; ++i, at_c.next(), at_a.next(), at_b.next()) {
    bool yes = c.i[at_c.offset()] != 0;
    if (y.i)
      y.i[i] = yes ? a.i[at_a.offset()] : b.i[at_b.offset()];
    else
      store(y, i, Wide<S>(yes ? a.f[at_a.offset()] : b.f[at_b.offset()]));
  }
}

std::vector<Type> infer_select(const InferContext& context) {
  Rule rule("select", context);
  const TensorType &c = rule.integers(0, "condition"), &a = rule.tensor(1, "a"),
                   &b = rule.tensor(2, "b");
  return one(arithmetic_dtype(rule, a, b),
             broadcast_dims(rule, broadcast_dims(rule, a.dims, b.dims), c.dims));
}

}  // namespace

std::vector<OpDef> cast_ops() {
  return {{.name = "cast",
           .tier = Tier::kPrimitive,
           .min_inputs = 1,
           .max_inputs = 1,
           .infer = infer_cast,
           .f32 = cast<float>,
           .f64 = cast<double>,
           .traced = cast<Traced>,
           .field = cast<Field>,
           .attr_names = {"dtype"},
           .required_attrs = 1,
           .ragged = true,
           .doc = "change of element type: rounds to nearest even, to i32 towards zero",
           .loop = {LoopForm::Kind::kCast}},
          {.name = "compare",
           .tier = Tier::kPrimitive,
           .min_inputs = 2,
           .max_inputs = 2,
           .infer = infer_compare,
           .f32 = compare<float>,
           .f64 = compare<double>,
           .traced = compare<Traced>,
           .attr_names = {"kind"},
           .required_attrs = 1,
           .ragged = true,
           .doc = "1 where the comparison holds, otherwise 0",
           .loop = {LoopForm::Kind::kElement}},
          {.name = "select",
           .tier = Tier::kPrimitive,
           .min_inputs = 3,
           .max_inputs = 3,
           .infer = infer_select,
           .f32 = select<float>,
           .f64 = select<double>,
           .traced = select<Traced>,
           .field = select<Field>,
           .ragged = true,
           .storage = true,
           .doc = "a where the condition is not 0, otherwise b",
           .loop = {LoopForm::Kind::kElement}}};
}

}  // namespace tokamak
