// Activation quantisation as explicit nodes: linear(x, w) becomes linear(quantize(x), w) where w is
// block-quantised and the backend computes that product in integers, or where w has 16 bits and the
// backend is faster with activations of bf16. q, k and v share one quantize node by hash-consing.
// `--activations bf16` also rounds matrices of f32 to bf16, where a kernel multiplies those.
#include <algorithm>
#include <optional>
#include <span>

#include "base/error.h"
#include "compile/pass.h"
#include "compile/planner/kernels.h"
#include "tensor/recipe.h"

namespace tokamak {
namespace {

// Whether a kernel runs the node with activations and a matrix of these types. One that takes every
// op, as the reference does, gains nothing from bf16.
bool takes(const KernelSet& kernels, const Function& fn, const Node& node,
           const std::vector<Ref>& in, DType type, DType matrix) {
  std::vector<DType> types;
  bool weights[8] = {};
  for (size_t i = 0; i < in.size() && i < std::size(weights); ++i) {
    types.push_back(i == 0 ? type : i == 1 ? matrix : fn.tensor(in[i]).dtype);
    weights[i] = i == 1 || is_weight(fn.node(in[i].node));
  }
  return std::any_of(
      kernels.entries().begin(), kernels.entries().end(), [&](const KernelSet::Entry& e) {
        bool any = e.pattern.kind == KernelPattern::Anchor::kAny && type == DType::kBF16;
        return !e.pattern.region && !any &&
               kernel_matches(e.pattern, node.op->name, types,
                              std::span(weights).first(types.size()));
      });
}

// What activations are rounded to before the product with a matrix of this type. Of quantised
// formats, those whose integer dot product with int8 activations loses no more than the
// activations' own rounding.
std::optional<DType> rounded_for(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ8_0:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
    case DType::kInt4G32:
    case DType::kInt4G64:
    case DType::kInt4G128:
    case DType::kInt8G128:
      return DType::kQ8A;
    case DType::kF16:
    case DType::kBF16:
      return DType::kBF16;
    default:
      return std::nullopt;
  }
}

// A matrix of f32 as bf16, which halves its memory. Other functions of the module may have added
// it.
Ref rounded_matrix(Module& module, Function& fn, Ref matrix) {
  WeightDecl w = *module.find_weight(fn.node(matrix.node).attrs.at("name").as_string());
  RecipeStep cast{};
  cast.kind = RecipeStep::Kind::kCast;
  cast.dtype = w.type.dtype = DType::kBF16;
  if (w.recipe.sources.empty()) w.recipe.sources = {w.name};
  w.recipe.steps.push_back(cast);
  w.name += recipe_to_text({{}, {cast}});
  if (!module.find_weight(w.name)) module.add_weight(w);
  return fn.weight(w.name);
}

}  // namespace

void quantize_activations(Module& module, Function& function, const PassContext& context) {
  const std::string& mode = context.options.activations;
  if (mode == "f32") return;
  if (mode != "auto" && mode != "bf16")
    fail(ErrorCode::kInvalidArgument, "--activations {}: use auto, bf16 or f32", mode);
  KernelSet kernels(context.backend);
  bool stored_f32 =
      context.backend.storage().activations == DType::kF32;  // else choose-storage rounds
  bool products = false, some = false;  // with weights; with activations of bf16
  rebuild(module, function, [&](Function& to, const Node& node, const std::vector<Ref>& in) {
    std::vector<Ref> inputs = in;
    products = products || node.op->takes_q8a;
    if (!node.op->takes_q8a || to.tensor(in[0]).dtype != DType::kF32)
      return copy_node(to, node, inputs);
    DType matrix = to.tensor(in[1]).dtype;
    bool round_matrix = mode == "bf16" && matrix == DType::kF32 &&
                        to.node(in[1].node).op->role == OpDef::Role::kWeight;
    if (round_matrix) matrix = DType::kBF16;
    std::optional<DType> type = rounded_for(matrix);
    if (type && mode == "bf16" && takes(kernels, to, node, in, DType::kBF16, matrix))
      type = DType::kBF16;
    if (type && (stored_f32 || type == DType::kQ8A) &&
        takes(kernels, to, node, in, *type, matrix)) {
      inputs[0] = to.add("quantize", {in[0]}, Value::Object{{"format", dtype_name(*type)}});
      if (round_matrix) inputs[1] = rounded_matrix(module, to, in[1]);
      some = some || type == DType::kBF16;
    }
    return copy_node(to, node, inputs);
  });
  if (mode == "bf16" && products && !some && stored_f32)
    fail(ErrorCode::kUnsupported,
         "--activations bf16: {} has no kernel that multiplies these weights with bf16 "
         "activations; use auto or f32",
         context.backend.isa());
}

}  // namespace tokamak
