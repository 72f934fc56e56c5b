#include "compile/lower/region.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "compile/lower/lower.h"

namespace tokamak {
namespace {

// The model's own names would keep layers from sharing a region.
Type without_name(Type type) {
  type.name.clear();
  return type;
}

class RegionBuilder {
 public:
  explicit RegionBuilder(const Function& body) : fn_(body) {}

  // Throws Error(kUnsupported) with the reason.
  Region run() {
    for (NodeId id : fn_.inputs()) add_value({id, 0});
    region_.inputs = static_cast<uint32_t>(region_.values.size());
    set_levels();
    for (int level = 0; level <= last_level_; ++level) {
      for (const std::vector<NodeId>& nodes : components(level))
        add_programs(nodes, results(nodes));
      for (NodeId id = 0; id < level_.size(); ++id)
        if (level_[id] == level && anchor_[id]) add_anchor(id);
    }
    for (const Function::Result& r : fn_.results()) region_.results.push_back(value(r.ref));
    return std::move(region_);
  }

 private:
  bool structural(NodeId id) const { return fn_.node(id).op->tier == Tier::kStructural; }

  // How many anchors lie on the longest path to a node; -1: an input or a constant.
  void set_levels() {
    size_t count = fn_.nodes().size();
    level_.assign(count, -1);
    anchor_.assign(count, false);
    for (NodeId id = 0; id < count; ++id) {
      if (structural(id)) continue;
      anchor_[id] = !has_loop_form(*fn_.node(id).op);
      level_[id] = 0;
      for (Ref in : fn_.node(id).inputs)
        level_[id] = std::max(level_[id], level_[in.node] + (anchor_[in.node] ? 1 : 0));
      last_level_ = std::max(last_level_, level_[id]);
    }
  }

  // Nodes of one level that are connected, in order.
  std::vector<std::vector<NodeId>> components(int level) const {
    std::vector<NodeId> root(level_.size());
    std::iota(root.begin(), root.end(), 0);
    auto find = [&](NodeId id) {
      while (root[id] != id) id = root[id] = root[root[id]];
      return id;
    };
    auto member = [&](NodeId id) { return level_[id] == level && !anchor_[id]; };
    for (NodeId id = 0; id < root.size(); ++id)
      for (Ref in : fn_.node(id).inputs)
        if (member(id) && member(in.node)) root[find(id)] = find(in.node);
    std::map<NodeId, std::vector<NodeId>> parts;
    for (NodeId id = 0; id < root.size(); ++id)
      if (member(id)) parts[find(id)].push_back(id);
    std::vector<std::vector<NodeId>> out;
    for (auto& [first, nodes] : parts) out.push_back(std::move(nodes));
    std::sort(out.begin(), out.end());
    return out;
  }

  // Values of these nodes that something else reads.
  std::vector<Ref> results(const std::vector<NodeId>& nodes) const {
    std::set<NodeId> inside(nodes.begin(), nodes.end());
    std::set<Ref> out;
    for (NodeId id = 0; id < fn_.nodes().size(); ++id)
      for (Ref in : fn_.node(id).inputs)
        if (!inside.contains(id) && inside.contains(in.node)) out.insert(in);
    for (const Function::Result& r : fn_.results())
      if (inside.contains(r.ref.node)) out.insert(r.ref);
    return {out.begin(), out.end()};
  }

  // One program for all results, or else one per shape, or one for each.
  void add_programs(const std::vector<NodeId>& nodes, const std::vector<Ref>& results) {
    if (results.empty()) return;  // dead code
    Part part = make_part(nodes, results);
    LoweredRegion lowered = lower_region(part.function);
    if (lowered) return add_program(part, std::move(*lowered.program), results);
    if (results.size() == 1) fail(ErrorCode::kUnsupported, "{}", lowered.reason);
    std::map<std::string, std::vector<Ref>> by_size;
    for (Ref r : results) by_size[fn_.type(r).tensor.elements().text()].push_back(r);
    std::vector<std::vector<Ref>> groups;
    for (auto& [size, group] : by_size) groups.push_back(std::move(group));
    if (groups.size() == 1) {
      groups.clear();
      for (Ref r : results) groups.push_back({r});
    }
    std::sort(groups.begin(), groups.end());
    for (const std::vector<Ref>& group : groups) add_programs(ancestors(nodes, group), group);
  }

  // The nodes among `nodes` that these values depend on, up to values that the region already has.
  std::vector<NodeId> ancestors(const std::vector<NodeId>& nodes,
                                const std::vector<Ref>& of) const {
    std::set<NodeId> needed;
    for (Ref r : of) needed.insert(r.node);
    for (size_t i = nodes.size(); i-- > 0;) {
      if (!needed.contains(nodes[i])) continue;
      for (Ref in : fn_.node(nodes[i]).inputs)
        if (!numbers_.contains(in) && std::binary_search(nodes.begin(), nodes.end(), in.node))
          needed.insert(in.node);
    }
    return {needed.begin(), needed.end()};
  }

  struct Part {
    Function function;
    std::vector<uint32_t> inputs;  // values of the region
  };
  Part make_part(const std::vector<NodeId>& nodes, const std::vector<Ref>& results) const {
    Part part{Function(&fn_.module(), "part"), {}};
    std::map<Ref, Ref> done;
    auto operand = [&](Ref in) {
      if (auto it = done.find(in); it != done.end()) return it->second;
      const Node& from = fn_.node(in.node);
      if (from.op->role == OpDef::Role::kConstant)
        return done[in] = part.function.constant(from.attrs.at("name").as_string());
      uint32_t v = value(in);
      part.inputs.push_back(v);
      return done[in] = part.function.add_input(fmt::format("v{}", v), fn_.type(in));
    };
    for (NodeId id : nodes) {
      const Node& node = fn_.node(id);
      std::vector<Ref> in;
      for (Ref r : node.inputs) in.push_back(operand(r));
      std::vector<Ref> out =
          part.function.add_multi(node.op->name, std::move(in), node.attrs, node.name);
      for (uint32_t o = 0; o < out.size(); ++o) done[{id, o}] = out[o];
    }
    for (size_t i = 0; i < results.size(); ++i)
      part.function.set_result(fmt::format("r{}", i), done.at(results[i]));
    return part;
  }

  void add_program(const Part& part, loop::Program program, const std::vector<Ref>& results) {
    RegionPiece piece;
    piece.program = std::make_shared<const loop::Program>(std::move(program));
    piece.in = part.inputs;
    for (Ref r : results) piece.out.push_back(add_value(r));
    region_.pieces.push_back(std::move(piece));
  }

  void add_anchor(NodeId id) {
    const Node& node = fn_.node(id);
    RegionPiece piece;
    piece.op = node.op->name;
    piece.attrs = node.attrs;
    for (Ref in : node.inputs) piece.in.push_back(value(in));
    for (uint32_t o = 0; o < node.outputs.size(); ++o) piece.out.push_back(add_value({id, o}));
    region_.pieces.push_back(std::move(piece));
  }

  uint32_t add_value(Ref r) {
    auto number = static_cast<uint32_t>(region_.values.size());
    region_.values.push_back(without_name(fn_.type(r)));
    numbers_[r] = number;
    return number;
  }
  uint32_t value(Ref r) const {
    auto it = numbers_.find(r);
    if (it == numbers_.end())
      fail(ErrorCode::kUnsupported, "{} has to be an input of the region",
           fn_.node(r.node).op->name);
    return it->second;
  }

  const Function& fn_;
  Region region_;
  std::map<Ref, uint32_t> numbers_;
  std::vector<int> level_;
  std::vector<bool> anchor_;
  int last_level_ = -1;
};

Region whole_region(const Function& body, loop::Program program) {
  Region region;
  RegionPiece piece;
  for (NodeId id : body.inputs()) region.values.push_back(body.node(id).outputs[0]);
  region.inputs = static_cast<uint32_t>(region.values.size());
  for (uint32_t i = 0; i < region.inputs; ++i) piece.in.push_back(i);
  for (const Function::Result& r : body.results()) {
    region.results.push_back(static_cast<uint32_t>(region.values.size()));
    region.values.push_back(body.type(r.ref));
  }
  piece.out = region.results;
  piece.program = std::make_shared<const loop::Program>(std::move(program));
  region.pieces.push_back(std::move(piece));
  return region;
}

}  // namespace

BuiltRegion build_region(const Function& body) {
  BuiltRegion out;
  bool anchors = std::any_of(body.nodes().begin(), body.nodes().end(), [](const Node& node) {
    return node.op->tier != Tier::kStructural && !has_loop_form(*node.op);
  });
  if (!anchors)
    if (LoweredRegion lowered = lower_region(body)) {
      out.region = whole_region(body, std::move(*lowered.program));
      return out;
    }
  try {
    Region region = RegionBuilder(body).run();
    check_region(region, body.inputs().size(), body.results().size());
    out.region = std::move(region);
  } catch (const Error& e) {
    out.reason = e.what();
  }
  return out;
}

}  // namespace tokamak
