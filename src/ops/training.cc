// Left over in graphs from training frameworks; at inference both return x.
#include "ops/infer.h"
#include "ops/meaning.h"
#include "ops/tables.h"

namespace tokamak {
namespace {

template <class S>
void pass_through(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &y = args.out[0].tensor;
  if (y.i)
    copy_values(static_cast<const IndexOf<S>*>(x.i), y.i, y.elements());
  else
    copy_values(static_cast<const S*>(x.f), y.f, y.elements());
}

std::vector<Type> infer_identity(const InferContext& context) {
  return {Type::of(Rule("identity", context).plain(0, "x"))};
}
std::vector<Type> infer_dropout(const InferContext& context) {
  Rule rule("dropout", context);
  double p = rule.attrs().at("p").as_double();
  if (!(p >= 0 && p < 1)) rule.fail("p must be in [0, 1), got {}", p);
  return {Type::of(rule.plain(0, "x"))};
}

OpDef op(std::string_view name, decltype(OpDef::infer) infer, std::vector<std::string_view> attrs,
         std::string_view doc) {
  auto required = static_cast<int>(attrs.size());
  return {.name = name,
          .tier = Tier::kPrimitive,
          .min_inputs = 1,
          .max_inputs = 1,
          .infer = infer,
          .f32 = pass_through<float>,
          .f64 = pass_through<double>,
          .traced = pass_through<Traced>,
          .field = pass_through<Field>,
          .attr_names = std::move(attrs),
          .required_attrs = required,
          .ragged = true,
          .flops = [](std::span<const Type>, std::span<const Type>) { return SymExpr(0); },
          .doc = doc,
          .loop = {LoopForm::Kind::kSame}};
}

}  // namespace

std::vector<OpDef> training_ops() {
  return {op("identity", infer_identity, {}, "x"),
          op("dropout", infer_dropout, {"p"}, "x: nothing is dropped at inference")};
}

}  // namespace tokamak
