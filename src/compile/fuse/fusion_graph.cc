#include "compile/fuse/fusion_graph.h"

#include <algorithm>

#include "graph/rebuild.h"

namespace tokamak {
namespace {

bool contains(const std::vector<NodeId>& nodes, NodeId id) {
  return std::binary_search(nodes.begin(), nodes.end(), id);
}

void state_first(const Function& fn, std::vector<Ref>& refs) {
  std::stable_partition(refs.begin(), refs.end(),
                        [&](Ref r) { return fn.type(r).kind == Type::Kind::kState; });
}

}  // namespace

FusionGraph::FusionGraph(const Function& fn) : fn_(fn), needed_(needed_nodes(fn)) {
  consumers_.resize(fn.nodes().size());
  for (NodeId id = 0; id < fn.nodes().size(); ++id)
    consumers_[id].resize(fn.node(id).outputs.size());
  for (NodeId id = 0; id < fn.nodes().size(); ++id) {
    if (!needed_[id]) continue;
    for (Ref r : fn.node(id).inputs) {
      std::vector<NodeId>& list = consumers_[r.node][r.output];
      if (list.empty() || list.back() != id) list.push_back(id);
    }
  }
  for (const Function::Result& r : fn.results()) results_.insert(r.ref);
}

bool FusionGraph::is_call(NodeId id) const {
  return needed_[id] && is_call_node(fn_, fn_.node(id));
}

std::vector<Ref> FusionGraph::inputs_of(const std::vector<NodeId>& nodes) const {
  std::vector<Ref> out;
  for (NodeId id : nodes) {
    const Node& node = fn_.node(id);
    size_t count = node.op->writes_state ? first_ordering_input(fn_, node) : node.inputs.size();
    for (size_t i = 0; i < count; ++i) {
      Ref r = node.inputs[i];
      if (contains(nodes, r.node)) continue;
      if (std::find(out.begin(), out.end(), r) == out.end()) out.push_back(r);
    }
  }
  state_first(fn_, out);
  return out;
}

std::vector<Ref> FusionGraph::outputs_of(const std::vector<NodeId>& nodes) const {
  std::vector<Ref> out;
  for (NodeId id : nodes)
    for (uint32_t o = 0; o < fn_.node(id).outputs.size(); ++o) {
      Ref r{id, o};
      const std::vector<NodeId>& users = consumers(r);
      bool outside = std::any_of(users.begin(), users.end(),
                                 [&](NodeId user) { return !contains(nodes, user); });
      if (outside || is_result(r)) out.push_back(r);
    }
  state_first(fn_, out);
  return out;
}

bool FusionGraph::convex(const std::vector<NodeId>& nodes) const {
  NodeId first = nodes.front(), last = nodes.back();
  std::vector<bool> reached(last - first + 1, false);  // from the group, by way of others
  for (NodeId id = first; id <= last; ++id) {
    bool inside = contains(nodes, id);
    for (Ref r : fn_.node(id).inputs) {
      if (r.node < first) continue;
      bool from_group = contains(nodes, r.node), from_path = reached[r.node - first];
      if (inside && from_path) return false;
      if (!inside && (from_group || from_path)) reached[id - first] = true;
    }
  }
  return true;
}

Function FusionGraph::body_of(const std::vector<NodeId>& nodes, const std::vector<Ref>& inputs,
                              const std::vector<Ref>& outputs) const {
  Function body(&fn_.module(), "body");
  std::map<Ref, Ref> now;
  for (size_t i = 0; i < inputs.size(); ++i)
    now[inputs[i]] = body.add_input(fmt::format("in{}", i), fn_.type(inputs[i]));
  for (NodeId id : nodes) {
    const Node& node = fn_.node(id);
    size_t count = node.op->writes_state ? first_ordering_input(fn_, node) : node.inputs.size();
    std::vector<Ref> in;
    for (size_t i = 0; i < count; ++i) in.push_back(now.at(node.inputs[i]));
    std::vector<Ref> made = body.add_multi(node.op->name, std::move(in), node.attrs);
    for (uint32_t o = 0; o < made.size(); ++o) now[{id, o}] = made[o];
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Type& t = fn_.type(outputs[i]);
    body.set_result(t.kind == Type::Kind::kState ? t.name : fmt::format("out{}", i),
                    now.at(outputs[i]));
  }
  return body;
}

std::string FusionGraph::label(NodeId id) const {
  const Node& node = fn_.node(id);
  return node.name.empty() ? std::string(node.op->name)
                           : fmt::format("{} {}", node.op->name, node.name);
}

std::string FusionGraph::region_name(const std::vector<NodeId>& nodes) const {
  std::string out, prefix;
  for (NodeId id : nodes) {
    const std::string& name = fn_.node(id).name;
    if (name.empty()) continue;
    size_t dot = name.rfind('.');
    std::string front = dot == std::string::npos ? "" : name.substr(0, dot + 1);
    if (out.empty()) {
      prefix = front;
      out = name;
    } else {
      out += "+" + (front == prefix ? name.substr(front.size()) : name);
    }
  }
  if (!out.empty()) return out;
  for (NodeId id : nodes) out += fmt::format("{}{}", out.empty() ? "" : "+", fn_.node(id).op->name);
  return out;
}

}  // namespace tokamak
