// Uses what specialize() knows about inputs: a gather by an index that is 0, 1, 2 ... returns its
// input. In decode and verify this removes the gather of the rows that need logits.
#include "compile/pass.h"

namespace tokamak {
namespace {

bool counts_rows(const Function& fn, Ref index) {
  const Node& node = fn.node(index.node);
  if (node.op->loop.kind == LoopForm::Kind::kIota) return true;
  if (node.op->role != OpDef::Role::kInput) return false;
  for (const Fact& f : fn.facts())
    if (f.input == node.attrs.at("name").as_string() && f.kind == Fact::Kind::kIotaTimes)
      return f.value == 1;
  return false;
}

bool picks_all_rows(const Function& fn, const std::vector<Ref>& inputs, const Node& node) {
  if (node.op->loop.kind != LoopForm::Kind::kGather || node.attrs.get_int("axis", 0) != 0)
    return false;
  const TensorType &x = fn.tensor(inputs[0]), &index = fn.tensor(inputs[1]);
  return x.rank() > 0 && index.rank() == 1 && x.extent(0) == index.extent(0) &&
         x.dtype == node.outputs[0].tensor.dtype && counts_rows(fn, inputs[1]);
}

}  // namespace

void use_facts(Module& module, Function& function, const PassContext& context) {
  rebuild(module, function, [&](Function& to, const Node& node, const std::vector<Ref>& inputs) {
    if (!picks_all_rows(to, inputs, node)) return copy_node(to, node, inputs);
    if (context.timing) ++context.timing->fired;
    return std::vector<Ref>{inputs[0]};
  });
}

}  // namespace tokamak
