// Constant folding: nodes whose inputs are all constants become constants, by the meaning of their
// op at float32: the values stay the same, bit for bit.
#include <bit>

#include "base/error.h"
#include "base/hash.h"
#include "compile/pass.h"
#include "graph/evaluate.h"
#include "graph/text_format.h"

namespace tokamak {
namespace {

// Larger tables are computed at run time: folding must not make the file of a small graph large.
constexpr int64_t kMaxElements = 1 << 16;

// An op without operands (iota) stays, because rules match it; what is computed from it is folded.
bool is_source(const Node& node) {
  return node.op->role == OpDef::Role::kOp && node.inputs.empty();
}

bool foldable(const Function& fn, const Node& node, const std::vector<Ref>& inputs) {
  if (node.op->writes_state || node.op->reads_state || node.op->tier == Tier::kRegion) return false;
  if (is_source(node)) return false;
  for (Ref r : inputs) {
    const Node& from = fn.node(r.node);
    if (is_source(from) && fn.tensor(r).elements().constant()) continue;
    if (from.op->role != OpDef::Role::kConstant) return false;
  }
  for (const Type& t : node.outputs) {
    if (t.kind != Type::Kind::kTensor) return false;
    if (t.tensor.dtype != DType::kF32 && t.tensor.dtype != DType::kI32) return false;
    auto n = t.tensor.elements().constant();
    if (!n || *n > kMaxElements) return false;
    for (const Dim& d : t.tensor.dims)
      if (d.bound) return false;
  }
  return true;
}

EvalTensor<float> value_of(const Function& fn, Ref r) {
  if (is_source(fn.node(r.node))) return evaluate_node(fn.node(r.node), {})->at(0);
  const ConstantDecl& c = *fn.module().find_constant(fn.node(r.node).attrs.at("name").as_string());
  EvalTensor<float> t;
  t.integer = c.type.dtype == DType::kI32;
  for (const Dim& d : c.type.dims) t.dims.push_back(d.extent.constant().value());
  for (double v : c.values) {
    if (c.type.dtype == DType::kI32)
      t.i.push_back(static_cast<int32_t>(v));
    else
      t.f.push_back(static_cast<float>(v));
  }
  return t;
}

// Named by content, so that equal results are one constant.
Ref add_constant(Module& module, Function& to, const TensorType& type, const EvalTensor<float>& t) {
  ConstantDecl c;
  c.type = type;
  Hash128 hash;
  hash.add(type.text());
  for (float v : t.f) c.values.push_back(static_cast<double>(v));
  for (int32_t v : t.i) c.values.push_back(v);
  for (double v : c.values) hash.add(std::bit_cast<uint64_t>(v));
  c.name = c.values.size() == 1 && type.dims.empty() && type.dtype == DType::kF32
               ? fmt::format("c.{}", double_text(c.values[0]))
               : fmt::format("folded.{}", hash.hex().substr(0, 12));
  std::string name = c.name;
  module.add_constant(std::move(c));
  return to.constant(name);
}

}  // namespace

void fold_constants(Module& module, Function& function, const PassContext& context) {
  const Node* first = function.nodes().data();
  rebuild(module, function, [&](Function& to, const Node& node, const std::vector<Ref>& inputs) {
    bool spent = context.firings_left && *context.firings_left == 0;
    if (spent || !foldable(to, node, inputs)) return copy_node(to, node, inputs);
    std::vector<EvalTensor<float>> values;
    for (Ref r : inputs) values.push_back(value_of(to, r));
    std::optional<std::vector<EvalTensor<float>>> results;
    try {
      results = evaluate_node(node, values);
    } catch (const Error&) {  // an index out of range: reported when the function runs
    }
    if (!results) return copy_node(to, node, inputs);
    std::vector<Ref> out;
    for (size_t i = 0; i < results->size(); ++i)
      out.push_back(add_constant(module, to, node.outputs[i].tensor, (*results)[i]));
    if (context.timing) ++context.timing->fired;
    if (context.firings_left) --*context.firings_left;
    if (context.last_firing)
      *context.last_firing =
          fmt::format("fold of {} ({})", node_label(function, static_cast<NodeId>(&node - first)),
                      node.op->name);
    return out;
  });
}

}  // namespace tokamak
