#include "base/error.h"
#include "graph/attrs.h"
#include "graph/region.h"

namespace tokamak {
namespace {

using Substitution = std::map<std::string, SymExpr, std::less<>>;

Type substitute(Type type, const Substitution& with) {
  for (Dim& d : type.tensor.dims) d.extent = d.extent.substitute(with);
  return type;
}

Value substitute_extents(Value value, const Substitution& with) {
  if (value.is_string()) return SymExpr::parse(value.as_string()).substitute(with).text();
  if (value.is_array())
    for (Value& v : value.as_array()) v = substitute_extents(std::move(v), with);
  return value;
}

Attrs substitute(Attrs attrs, const Substitution& with) {
  for (auto& [key, value] : attrs.as_object())
    if (is_extent_attr(key)) value = substitute_extents(std::move(value), with);
  return attrs;
}

// Copies nodes with symbols replaced, in the bodies of regions too.
void substitute_nodes(Module& module, const Function& source, Function& fn,
                      const Substitution& with) {
  std::vector<std::vector<Ref>> now(source.nodes().size());
  for (NodeId id = 0; id < source.nodes().size(); ++id) {
    const Node& node = source.node(id);
    if (node.op->tier == Tier::kStructural) {
      const std::string& name = node.attrs.at("name").as_string();
      now[id] = {node.op->name == "input"    ? fn.add_input(name, substitute(node.outputs[0], with))
                 : node.op->name == "weight" ? fn.weight(name)
                                             : fn.constant(name)};
      continue;
    }
    std::vector<Ref> inputs;
    inputs.reserve(node.inputs.size());
    for (Ref r : node.inputs) inputs.push_back(now[r.node][r.output]);
    Attrs attrs = substitute(node.attrs, with);
    if (is_region(node)) {
      Function body(&module, "body");
      substitute_nodes(module, region_body(module, node.attrs), body, with);
      attrs.set("body", add_body(module, std::move(body), "region"));
    }
    fn.set_provenance(node.provenance);
    now[id] = fn.add_multi(node.op->name, std::move(inputs), std::move(attrs), node.name);
  }
  for (const Function::Result& r : source.results())
    fn.set_result(r.name, now[r.ref.node][r.ref.output]);
}

std::vector<Fact> iota_facts(const Function& fn, int64_t q_start_step) {
  std::vector<Fact> facts;
  if (fn.find_input("q_start").valid()) {
    facts.push_back({"q_start", Fact::Kind::kIotaTimes, q_start_step});
  }
  if (fn.find_input("out_rows").valid()) facts.push_back({"out_rows", Fact::Kind::kIotaTimes, 1});
  return facts;
}

const Function& find_step(const Module& module) {
  const Function* step = module.find_function("step");
  if (!step) fail(ErrorCode::kInvalidArgument, "module {} has no function step", module.name);
  return *step;
}

}  // namespace

Function& specialize(Module& module, std::string_view from, std::string new_name,
                     const Substitution& with, std::vector<Fact> facts) {
  const Function* source = module.find_function(from);
  if (!source) fail(ErrorCode::kInvalidArgument, "module {} has no function {}", module.name, from);
  for (const auto& [symbol, expr] : with) {
    if (!module.find_symbol(symbol)) {
      fail(ErrorCode::kInvalidArgument, "specialize {}: symbol {} is not declared", from, symbol);
    }
  }
  for (const Fact& fact : facts) {
    if (!source->find_input(fact.input).valid()) {
      fail(ErrorCode::kInvalidArgument,
           "specialize {}: a fact names the input {}, which the function does not have", from,
           fact.input);
    }
  }
  // Built separately, so that a failure leaves the module unchanged.
  Function fn(&module, new_name);
  try {
    substitute_nodes(module, *source, fn, with);
  } catch (const Error&) {
    drop_unused_bodies(module);
    throw;
  }
  fn.facts() = source->facts();
  for (Fact& fact : facts) {
    std::erase_if(fn.facts(), [&](const Fact& f) { return f.input == fact.input; });
    fn.facts().push_back(std::move(fact));
  }
  Function& result = module.add_function(std::move(new_name));
  result = std::move(fn);
  return result;
}

Function& specialize_decode(Module& module) {
  const SymExpr b = SymExpr::symbol("B");
  return specialize(module, "step", "decode", {{"T", b}, {"R", b}},
                    iota_facts(find_step(module), 1));
}

Function& specialize_verify(Module& module, int k) {
  if (k < 1)
    fail(ErrorCode::kInvalidArgument, "verify: {} drafted tokens, at least 1 is needed", k);
  const SymExpr rows = SymExpr(int64_t{k} + 1) * SymExpr::symbol("B");
  return specialize(module, "step", fmt::format("verify{}", k), {{"T", rows}, {"R", rows}},
                    iota_facts(find_step(module), int64_t{k} + 1));
}

}  // namespace tokamak
