#include <algorithm>

#include "base/error.h"
#include "graph/attrs.h"
#include "graph/region.h"

namespace tokamak {
namespace {

uint64_t identity_hash(const OpDef* op, const Attrs& attrs, const std::vector<Ref>& inputs) {
  Hash128 hash;
  hash.add(op->name);
  hash_value(attrs, hash);
  for (Ref r : inputs) hash.add(uint64_t{r.node} << 32 | r.output);
  return hash.low();
}

// What the text form can express: axes named by plain words, at most 16 of them.
void check_writable(const OpDef& op, const Type& type) {
  if (type.kind != Type::Kind::kTensor) return;
  if (type.tensor.rank() > 16) {
    fail(ErrorCode::kInvalidArgument, "{}: the result has {} axes; the limit is 16", op.name,
         type.tensor.rank());
  }
  for (const Dim& d : type.tensor.dims) {
    for (char c : d.axis) {
      const bool word =
          (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
      if (!word)
        fail(ErrorCode::kInvalidArgument, "{}: \"{}\" cannot name an axis", op.name, d.axis);
    }
  }
}

const OpDef* structural_op(std::string_view name) {
  const OpDef* op = find_op(name);
  TK_CHECK(op && op->tier == Tier::kStructural, "{} is not in the op table", name);
  return op;
}

}  // namespace

void Function::set_provenance(std::string text) {
  provenance_.clear();
  if (!text.empty()) provenance_.push_back(std::move(text));
}

NodeId Function::find_equal(uint64_t hash, const OpDef* op, const Attrs& attrs,
                            const std::vector<Ref>& inputs) const {
  auto [begin, end] = pure_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    const Node& node = nodes_[it->second];
    if (node.op == op && node.inputs == inputs && same_bits(node.attrs, attrs)) return it->second;
  }
  return UINT32_MAX;
}

const StateDecl* Function::find_state(std::string_view name) {
  const std::vector<StateDecl>& states = module_->states;
  if (state_index_.size() != states.size()) {
    state_index_.clear();
    for (size_t i = 0; i < states.size(); ++i) state_index_.emplace(states[i].name, i);
  }
  auto it = state_index_.find(std::string(name));
  return it != state_index_.end() && states[it->second].name == name ? &states[it->second]
                                                                     : nullptr;
}

std::vector<Ref> Function::add_multi(std::string_view op_name, std::vector<Ref> inputs, Attrs attrs,
                                     std::string name) {
  const OpDef* op = find_op(op_name);
  if (!op)
    fail(ErrorCode::kInvalidArgument, "there is no op \"{}\"; docs/ops.md lists the ops", op_name);
  if (op->tier == Tier::kStructural) {
    fail(ErrorCode::kInvalidArgument, "{} is part of the function's frame, not an op to add",
         op_name);
  }
  std::vector<Type> types;
  types.reserve(inputs.size());
  for (Ref r : inputs) {
    if (r.node >= nodes_.size() || r.output >= nodes_[r.node].outputs.size()) {
      fail(ErrorCode::kInvalidArgument, "{}: input {} does not exist", op_name, types.size());
    }
    types.push_back(type(r));
  }
  attrs = canonical_attrs(std::move(attrs));

  const uint64_t hash = op->writes_state ? 0 : identity_hash(op, attrs, inputs);
  NodeId id = op->writes_state ? UINT32_MAX : find_equal(hash, op, attrs, inputs);
  if (id == UINT32_MAX) {
    auto plane = [&](std::string_view state, int index) -> std::optional<InferContext::Plane> {
      const StateDecl* decl = find_state(state);
      if (!decl || index < 0 || static_cast<size_t>(index) >= decl->planes.size())
        return std::nullopt;
      const PlaneDecl& p = decl->planes[static_cast<size_t>(index)];
      return InferContext::Plane{p.name, &p.type};
    };
    std::vector<Type> outputs = op->tier == Tier::kRegion
                                    ? region_types(*module_, *op, types, attrs)
                                    : infer_types(*op, {types, attrs, plane});
    for (const Type& t : outputs) check_writable(*op, t);
    TK_CHECK(nodes_.size() < UINT32_MAX - 1);
    id = static_cast<NodeId>(nodes_.size());
    nodes_.push_back({op, std::move(attrs), std::move(inputs), std::move(outputs), std::move(name),
                      provenance_});
    if (!op->writes_state) pure_.emplace(hash, id);
  } else if (nodes_[id].name.empty()) {
    nodes_[id].name = std::move(name);
  }
  std::vector<Ref> refs(nodes_[id].outputs.size());
  for (uint32_t i = 0; i < refs.size(); ++i) refs[i] = {id, i};
  return refs;
}

Ref Function::add(std::string_view op, std::vector<Ref> inputs, Attrs attrs, std::string name) {
  return add_multi(op, std::move(inputs), std::move(attrs), std::move(name)).at(0);
}

Ref Function::add_input(std::string name, Type type) {
  const OpDef* op = structural_op("input");
  check_writable(*op, type);
  const Ref ref{static_cast<NodeId>(nodes_.size()), 0};
  if (!input_index_.emplace(name, ref).second) {
    fail(ErrorCode::kInvalidArgument, "function {}: input \"{}\" is declared twice", name_, name);
  }
  nodes_.push_back({op, Value::Object{{"name", std::move(name)}}, {}, {std::move(type)}, {}, {}});
  inputs_.push_back(ref.node);
  return ref;
}

Ref Function::find_input(std::string_view name) const {
  auto it = input_index_.find(std::string(name));
  return it == input_index_.end() ? Ref{} : it->second;
}

Ref Function::structural(std::string_view op_name, std::string_view name, const TensorType& type) {
  const OpDef* op = structural_op(op_name);
  Attrs attrs = Value::Object{{"name", name}};
  const uint64_t hash = identity_hash(op, attrs, {});
  NodeId id = find_equal(hash, op, attrs, {});
  if (id == UINT32_MAX) {
    id = static_cast<NodeId>(nodes_.size());
    nodes_.push_back({op, std::move(attrs), {}, {Type::of(type)}, {}, {}});
    pure_.emplace(hash, id);
  }
  return {id, 0};
}

Ref Function::weight(std::string_view name) {
  const WeightDecl* decl = module_->find_weight(name);
  if (!decl) fail(ErrorCode::kInvalidArgument, "weight \"{}\" is not declared", name);
  return structural("weight", name, decl->type);
}

Ref Function::constant(std::string_view name) {
  const ConstantDecl* decl = module_->find_constant(name);
  if (!decl) fail(ErrorCode::kInvalidArgument, "constant \"{}\" is not declared", name);
  return structural("constant", name, decl->type);
}

void Function::set_result(std::string name, Ref ref) {
  if (ref.node >= nodes_.size() || ref.output >= nodes_[ref.node].outputs.size()) {
    fail(ErrorCode::kInvalidArgument, "result \"{}\" does not exist", name);
  }
  auto [it, fresh] = result_index_.emplace(name, results_.size());
  if (fresh) {
    results_.push_back({std::move(name), ref});
  } else {
    results_[it->second].ref = ref;
  }
}

bool is_natural(const Function& function, Ref r) {
  if (function.type(r).kind != Type::Kind::kTensor || function.tensor(r).dtype != DType::kI32)
    return false;
  const Node& node = function.node(r.node);
  const std::string_view op = node.op->name;
  if (op == "iota") return true;
  if (op == "reshape" || op == "broadcast" || op == "transpose" || op == "slice")
    return is_natural(function, node.inputs[0]);
  if (op == "constant") {
    const ConstantDecl* c = function.module().find_constant(node.attrs.at("name").as_string());
    return c && std::all_of(c->values.begin(), c->values.end(), [](double v) { return v >= 0; });
  }
  if (op != "input") return false;
  return std::any_of(function.facts().begin(), function.facts().end(), [&](const Fact& f) {
    return function.find_input(f.input) == r && (f.kind == Fact::Kind::kNatural || f.value >= 0);
  });
}

std::optional<uint64_t> Function::text_number(NodeId id) const {
  auto it = text_numbers_.find(id);
  return it == text_numbers_.end() ? std::nullopt : std::optional(it->second);
}

}  // namespace tokamak
