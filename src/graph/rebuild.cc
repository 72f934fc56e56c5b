#include "graph/rebuild.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "graph/region.h"

namespace tokamak {

std::vector<bool> needed_nodes(const Function& function) {
  std::vector<bool> needed(function.nodes().size());
  for (const Function::Result& r : function.results()) needed[r.ref.node] = true;
  for (size_t id = needed.size(); id-- > 0;) {
    if (!needed[id]) continue;
    const Node& node = function.node(static_cast<NodeId>(id));
    size_t count =
        node.op->writes_state ? first_ordering_input(function, node) : node.inputs.size();
    for (size_t i = 0; i < count; ++i) needed[node.inputs[i].node] = true;
  }
  return needed;
}

std::vector<Ref> copy_node(Function& to, const Node& node, std::vector<Ref> inputs) {
  if (node.op->writes_state) {
    Ref version = inputs.at(0);
    inputs.resize(std::min(inputs.size(),
                           written_inputs(to.module(), node.op, node.attrs, to.type(version))));
    for (Ref read : reads_of(to, version)) inputs.push_back(read);
  }
  return to.add_multi(node.op->name, std::move(inputs), node.attrs, node.name);
}

void rebuild(Module& module, Function& function, const NodeMap& map) {
  Function fresh(&module, function.name());
  fresh.facts() = function.facts();
  std::vector<bool> needed = needed_nodes(function);
  std::vector<std::vector<Ref>> now(function.nodes().size());
  for (NodeId id = 0; id < function.nodes().size(); ++id) {
    const Node& node = function.node(id);
    if (node.op->name == "input") {  // inputs stay, needed or not
      now[id] = {fresh.add_input(node.attrs.at("name").as_string(), node.outputs[0])};
      continue;
    }
    if (!needed[id]) continue;
    if (node.op->name == "weight") {
      now[id] = {fresh.weight(node.attrs.at("name").as_string())};
    } else if (node.op->name == "constant") {
      now[id] = {fresh.constant(node.attrs.at("name").as_string())};
    } else {
      std::vector<Ref> inputs;
      for (Ref in : node.inputs)
        inputs.push_back(now[in.node].empty() ? Ref{} : now[in.node][in.output]);
      // A dropped read leaves a hole among the ordering inputs; copy_node names those that are
      // there.
      if (node.op->writes_state) inputs.resize(first_ordering_input(function, node));
      fresh.set_provenance(node.provenance);
      now[id] = map(fresh, node, inputs);
      TK_CHECK(now[id].size() == node.outputs.size(), "node {} lost an output", node.op->name);
    }
  }
  for (const Function::Result& r : function.results())
    fresh.set_result(r.name, now[r.ref.node][r.ref.output]);
  function = std::move(fresh);
}

void drop_unused_constants(Module& module) {
  std::set<std::string> used;
  for (const auto& fn : module.functions)
    for (const Node& node : fn->nodes())
      if (node.op->name == "constant") used.insert(node.attrs.at("name").as_string());
  module.keep_constants(used);
}

}  // namespace tokamak
