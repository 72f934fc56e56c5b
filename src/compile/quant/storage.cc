// Chooses the type that each activation is stored in. Ops compute wide and round once, when they
// store their result; this pass sets the attribute "out" of nodes whose result the backend or the
// user wants narrower than f32. It adds no casts and removes no nodes.
#include <algorithm>

#include "base/error.h"
#include "compile/pass.h"
#include "compile/planner/kernels.h"
#include "plan/plan.h"

namespace tokamak {
namespace {

DType storage_dtype(std::string_view text, std::string_view name) {
  if (auto dtype = storage_from_name(name)) return *dtype;
  fail(ErrorCode::kInvalidArgument,
       "--storage {}: \"{}\" is not a type; use f32, f16 or bf16, and residual=TYPE or logits=TYPE "
       "after a comma",
       text, name);
}

// The role of each value of the function: activation, residual or logits.
class Roles {
 public:
  explicit Roles(const Function& fn)
      : fn_(fn), activation_(fn.nodes().size()), residual_(fn.nodes().size()), logits_(residual_) {
    for (NodeId id = 0; id < fn.nodes().size(); ++id) activation_[id] = is_activation(id);
    for (NodeId id = 0; id < fn.nodes().size(); ++id) find_residual(id);
    for (const Function::Result& r : fn.results())
      if (r.name == "logits" || r.name == kLayerLogits) find_logits(r.ref);
  }

  DType wanted(NodeId id, const StorageWish& wish) const {
    if (!activation_[id] || !has_channels(fn_.node(id).outputs[0])) return DType::kF32;
    if (logits_[id]) return wish.logits;
    return residual_[id] ? wish.residual : wish.activations;
  }

 private:
  // Activations depend on embedding tables, float inputs or states. Values computed only from
  // integers and constants (rope angles, masks) are small and need full precision.
  bool is_activation(NodeId id) const {
    const Node& node = fn_.node(id);
    if (node.op->tier == Tier::kStructural) {
      const Type& type = node.outputs[0];
      return node.op->role == OpDef::Role::kInput && type.kind == Type::Kind::kTensor &&
             dtype_info(type.tensor.dtype).is_float;
    }
    bool indexed = false, weight = false, any = node.op->reads_state;
    for (Ref in : node.inputs) {
      any = any || activation_[in.node];
      weight = weight || fn_.node(in.node).op->role == OpDef::Role::kWeight;
      indexed = indexed || fn_.type(in).tensor.dtype == DType::kI32;
    }
    return any || (weight && indexed);
  }

  // Row statistics (a mean, a sum of squares) are small tensors and may overflow f16.
  static bool has_channels(const Type& type) {
    if (type.kind != Type::Kind::kTensor || type.tensor.rank() < 2) return false;
    auto n = type.tensor.extent(-1).constant();
    return n && *n > 1;
  }

  // The product with the vocabulary and what is applied to it, such as a soft cap.
  void find_logits(Ref r) {
    r = source(r);
    if (logits_[r.node]) return;
    logits_[r.node] = true;
    for (Ref in : fn_.node(r.node).inputs)
      if (activation_[in.node] && fn_.tensor(in).dims == fn_.tensor(r).dims) find_logits(in);
  }

  // The residual stream: x + f(x), and sums with such a value.
  void find_residual(NodeId id) {
    const Node& node = fn_.node(id);
    if (!node.op->sum || !activation_[id]) return;
    for (size_t i = 0; i < 2; ++i) {
      Ref x = source(node.inputs[i]), f = source(node.inputs[1 - i]);
      if (!activation_[x.node] || !activation_[f.node] || x == f) continue;
      if (!residual_[x.node] && !depends(f.node, x.node)) continue;
      residual_[x.node] = residual_[id] = true;
    }
  }

  bool depends(NodeId from, NodeId on) const {
    if (from <= on) return false;
    std::vector<bool> reached(fn_.nodes().size());
    reached[from] = true;
    for (NodeId id = from; id > on; --id)
      if (reached[id])
        for (Ref in : fn_.node(id).inputs) reached[in.node] = true;
    return reached[on];
  }

  // The node that computed a value, through reshapes.
  Ref source(Ref r) const {
    while (fn_.node(r.node).op->alias) r = fn_.node(r.node).inputs[0];
    return r;
  }

  const Function& fn_;
  std::vector<bool> activation_, residual_, logits_;
};

}  // namespace

StorageWish storage_from_text(std::string_view text) {
  StorageWish wish;
  bool first = true;
  for (std::string_view rest = text; first || !rest.empty(); first = false) {
    size_t comma = std::min(rest.find(','), rest.size());
    std::string_view item = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    size_t equals = item.find('=');
    std::string_view key = item.substr(0, equals);
    if (first)
      wish.activations = wish.residual = storage_dtype(text, item);
    else if (equals != std::string_view::npos && key == "residual")
      wish.residual = storage_dtype(text, item.substr(equals + 1));
    else if (equals != std::string_view::npos && key == "logits")
      wish.logits = storage_dtype(text, item.substr(equals + 1));
    else
      fail(ErrorCode::kInvalidArgument,
           "--storage {}: unknown part \"{}\"; use residual=TYPE or logits=TYPE", text, item);
  }
  return wish;
}

void choose_storage(Module& module, Function& function, const PassContext& context) {
  const std::string& asked = context.options.storage;
  StorageWish wish = asked.empty() ? context.backend.storage() : storage_from_text(asked);
  if (wish == StorageWish{}) return;
  KernelSet kernels(context.backend);
  Roles roles(function);
  const Node* first = function.nodes().data();
  rebuild(module, function, [&](Function& to, const Node& node, const std::vector<Ref>& in) {
    DType dtype = roles.wanted(static_cast<NodeId>(&node - first), wish);
    bool free = node.op->storage && node.outputs[0].tensor.dtype == DType::kF32;
    if (!free || dtype == DType::kF32) return copy_node(to, node, in);
    Node narrow = node;
    narrow.attrs.set(kStorageAttr, dtype_name(dtype));
    std::vector<Ref> made = copy_node(to, narrow, in);
    if (!kernels.of_node(to, to.node(made[0].node)).empty()) {
      if (context.timing) ++context.timing->fired;
      return made;
    }
    if (!asked.empty())
      fail(ErrorCode::kUnsupported,
           "--storage {}: backend {} has no kernel that stores {} as {}; use --storage f32 or "
           "another backend",
           asked, context.backend.name(), node.op->name, dtype_name(dtype));
    if (context.timing)
      ++context.timing
            ->refused[fmt::format("no kernel stores {} as {}", node.op->name, dtype_name(dtype))];
    return copy_node(to, node, in);
  });
}

}  // namespace tokamak
