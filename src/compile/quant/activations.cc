// Activation quantisation as explicit nodes: linear(x, w) becomes linear(quantize(x), w) where w is
// block-quantised and the backend computes that product in integers, or where w has 16 bits and the
// backend is faster with activations of bf16. q, k and v share one quantize node by hash-consing.
// `--activations bf16` also rounds matrices of f32 to bf16, where a kernel multiplies those.
// `--activations i16` rounds matrices of floats to int16 with a scale for 128 values: the kernel of
// such a matrix rounds its f32 activations in the same way.
// `--activations mixed` starts as auto; functions for many rows then take bf16 instead of int8.
#include <algorithm>
#include <optional>
#include <span>

#include "base/error.h"
#include "compile/pass.h"
#include "compile/planner/kernels.h"
#include "ops/attend.h"
#include "tensor/recipe.h"

namespace tokamak {
namespace {

// Whether a kernel runs the node with activations and a matrix of these types. One that takes every
// op, as the reference does, gains nothing from rounding.
bool takes(const KernelSet& kernels, const Function& fn, const Node& node,
           const std::vector<Ref>& in, DType type, DType matrix) {
  std::vector<DType> types;
  bool weights[8] = {};
  for (size_t i = 0; i < in.size() && i < std::size(weights); ++i) {
    types.push_back(i == 0 ? type : i == 1 ? matrix : fn.tensor(in[i]).dtype);
    weights[i] = i == 1 || is_weight(fn.node(in[i].node));
  }
  return std::any_of(kernels.entries().begin(), kernels.entries().end(),
                     [&](const KernelSet::Entry& e) {
                       bool any = e.pattern.kind == KernelPattern::Anchor::kAny &&
                                  (type == DType::kBF16 || matrix == DType::kInt16G128);
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
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
    case DType::kTQ2_0:
    case DType::kMXFP4:
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

// A matrix in another type. Other functions of the module may have added it.
Ref rounded_matrix(Module& module, Function& fn, Ref matrix, DType type) {
  WeightDecl w = *module.find_weight(fn.node(matrix.node).attrs.at("name").as_string());
  RecipeStep cast{};
  cast.kind = RecipeStep::Kind::kCast;
  cast.dtype = w.type.dtype = type;
  if (w.recipe.sources.empty()) w.recipe.sources = {w.name};
  w.recipe.steps.push_back(cast);
  w.name += recipe_to_text({{}, {cast}});
  if (!module.find_weight(w.name)) module.add_weight(w);
  return fn.weight(w.name);
}

// A matrix of floats whose rows are whole blocks.
bool fits_int16(const TensorType& type) {
  auto k = type.extent(-1).constant();
  return type.rank() == 2 && dtype_info(type.dtype).is_float && k &&
         *k % dtype_info(DType::kInt16G128).block_elements == 0;
}

}  // namespace

void quantize_activations(Module& module, Function& function, const PassContext& context) {
  const std::string& mode = context.options.activations;
  if (mode == "f32") return;
  if (mode != "auto" && mode != "bf16" && mode != "i16" && mode != "mixed")
    fail(ErrorCode::kInvalidArgument, "--activations {}: use auto, bf16, i16, mixed or f32", mode);
  KernelSet kernels(context.backend);
  bool stored_f32 =
      context.backend.storage().activations == DType::kF32;  // else choose-storage rounds
  bool products = false, some = false;  // with weights; with activations of the type asked for
  rebuild(module, function, [&](Function& to, const Node& node, const std::vector<Ref>& in) {
    std::vector<Ref> inputs = in;
    products = products || node.op->takes_q8a;
    if (!node.op->takes_q8a || to.tensor(in[0]).dtype != DType::kF32)
      return copy_node(to, node, inputs);
    DType matrix = to.tensor(in[1]).dtype;
    bool weight = to.node(in[1].node).op->role == OpDef::Role::kWeight;
    if (mode == "i16" && weight && fits_int16(to.tensor(in[1])) &&
        takes(kernels, to, node, in, DType::kF32, DType::kInt16G128)) {
      inputs[1] = rounded_matrix(module, to, in[1], DType::kInt16G128);
      some = true;
      return copy_node(to, node, inputs);
    }
    bool round_matrix = mode == "bf16" && matrix == DType::kF32 && weight;
    if (round_matrix) matrix = DType::kBF16;
    std::optional<DType> type = rounded_for(matrix);
    if (type && mode == "bf16" && takes(kernels, to, node, in, DType::kBF16, matrix))
      type = DType::kBF16;
    if (type && (stored_f32 || type == DType::kQ8A) &&
        takes(kernels, to, node, in, *type, matrix)) {
      inputs[0] = to.add("quantize", {in[0]}, Value::Object{{"format", dtype_name(*type)}});
      if (round_matrix) inputs[1] = rounded_matrix(module, to, in[1], DType::kBF16);
      some = some || (mode == "bf16" && type == DType::kBF16);
    }
    return copy_node(to, node, inputs);
  });
  if ((mode == "bf16" || mode == "i16") && products && !some && (stored_f32 || mode == "i16"))
    fail(ErrorCode::kUnsupported,
         "--activations {0}: {1} has no kernel that multiplies these weights with {0} "
         "activations; use auto or f32",
         mode, context.backend.isa());
}

void round_to_bf16(Module& module, Function& function, const PassContext& context) {
  KernelSet kernels(context.backend);
  rebuild(module, function, [&](Function& to, const Node& node, const std::vector<Ref>& in) {
    std::vector<Ref> inputs = in;
    if (node.op->takes_q8a && to.tensor(in[0]).dtype == DType::kQ8A) {
      Ref x = to.node(in[0].node).inputs.at(0);  // what was quantised
      // Rows that ask for logits are few.
      std::vector<std::string> symbols = to.tensor(x).extent(0).symbols();
      bool few = std::find(symbols.begin(), symbols.end(), "R") != symbols.end();
      const bool quantised_here = to.tensor(x).dtype != DType::kQ8A;
      if (!few && quantised_here &&
          takes(kernels, to, node, in, DType::kBF16, to.tensor(in[1]).dtype))
        inputs[0] = to.add("quantize", {x}, Value::Object{{"format", dtype_name(DType::kBF16)}});
    }
    const auto& names = node.op->attr_names;
    if (std::find(names.begin(), names.end(), kAttendProducts) != names.end()) {
      Value attrs = node.attrs;
      attrs.set(std::string(kAttendProducts), dtype_name(DType::kBF16));
      return to.add_multi(node.op->name, std::move(inputs), std::move(attrs), node.name);
    }
    return copy_node(to, node, inputs);
  });
  remove_dead_code(module, function, context);
}

}  // namespace tokamak
