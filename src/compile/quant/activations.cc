// Activation quantisation as explicit nodes: linear(x, w) becomes linear(quantize(x), w) where w is
// block-quantised and the backend computes that product in integers. q, k and v share one quantize
// node by hash-consing.
#include <algorithm>
#include <span>

#include "base/error.h"
#include "compile/pass.h"
#include "compile/planner/kernels.h"

namespace tokamak {
namespace {

bool takes(const KernelSet& kernels, std::string_view op, DType weight) {
  const DType inputs[] = {DType::kQ8A, weight, DType::kI32};
  const bool weights[] = {false, true, false};
  const size_t operands = op == "grouped_linear" ? 3 : 2;
  return std::any_of(
      kernels.entries().begin(), kernels.entries().end(), [&](const KernelSet::Entry& e) {
        return !e.pattern.region && kernel_matches(e.pattern, op, std::span(inputs).first(operands),
                                                   std::span(weights).first(operands));
      });
}

// The formats whose integer dot product with int8 activations loses no more than the activations'
// own rounding.
bool has_integer_dot(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ8_0:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
      return true;
    default:
      return false;
  }
}

}  // namespace

void quantize_activations(Module& module, Function& function, const PassContext& context) {
  const std::string& mode = context.options.activations;
  if (mode == "f32") return;
  if (mode != "auto") fail(ErrorCode::kInvalidArgument, "--activations {}: use f32 or auto", mode);
  KernelSet kernels(context.backend);
  rebuild(module, function, [&](Function& to, const Node& node, const std::vector<Ref>& in) {
    std::vector<Ref> inputs = in;
    bool product = node.op->name == "linear" || node.op->name == "grouped_linear" ||
                   node.op->name == "head_linear";
    if (product && to.tensor(in[0]).dtype == DType::kF32) {
      DType weight = to.tensor(in[1]).dtype;
      if (has_integer_dot(weight) && takes(kernels, node.op->name, weight))
        inputs[0] = to.add("quantize", {in[0]}, Value::Object{{"format", "q8a"}});
    }
    return copy_node(to, node, inputs);
  });
}

}  // namespace tokamak
