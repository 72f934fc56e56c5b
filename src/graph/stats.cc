#include "base/error.h"
#include "graph/attrs.h"
#include "graph/region.h"

namespace tokamak {
namespace {

double evaluate(const SymExpr& e, const std::map<std::string, int64_t, std::less<>>& values) {
  return static_cast<double>(e.eval(values));
}

SymExpr node_flops(const Function& function, const Node& node) {
  if (is_region(node)) {
    const Function& body = region_body(function.module(), node.attrs);
    SymExpr n = 0;
    for (const Node& inner : body.nodes())
      if (inner.op->tier != Tier::kStructural) n = n + node_flops(body, inner);
    return n;
  }
  if (node.op->flops) {
    std::vector<Type> in;
    for (Ref r : node.inputs) in.push_back(function.type(r));
    return node.op->flops(in, node.outputs);
  }
  SymExpr n = 0;
  for (const Type& t : node.outputs)
    if (t.kind == Type::Kind::kTensor) n = n + t.tensor.elements();
  return n;
}

}  // namespace

GraphStats graph_stats(const Function& function,
                       const std::map<std::string, int64_t, std::less<>>& values) {
  GraphStats stats;
  for (const Node& node : function.nodes()) {
    ++stats.nodes;
    ++stats.per_op[std::string(node.op->name)];
    if (node.op->tier == Tier::kStructural) {
      if (node.op->name != "input") {
        stats.weight_bytes += evaluate(node.outputs[0].tensor.bytes(), values);
      }
      continue;
    }
    stats.flops += evaluate(node_flops(function, node), values);
    for (const Type& t : node.outputs) {
      if (t.kind == Type::Kind::kTensor)
        stats.activation_bytes += evaluate(t.tensor.bytes(), values);
    }
  }
  return stats;
}

// A node's hash combines its op, attributes and inputs' hashes; a function's of its inputs,
// results and facts. Nodes that no result needs do not count.
uint64_t structural_hash(const Function& function) {
  std::vector<uint64_t> hashes(function.nodes().size());
  for (size_t id = 0; id < hashes.size(); ++id) {
    const Node& node = function.node(static_cast<NodeId>(id));
    Hash128 hash;
    hash.add(node.op->name);
    if (is_region(node)) {  // what the body computes counts, not its name
      hash.add(structural_hash(region_body(function.module(), node.attrs)));
    } else {
      hash_value(node.attrs, hash);
    }
    for (Ref r : node.inputs) {
      hash.add(hashes[r.node]);
      hash.add(uint64_t{r.output});
    }
    if (node.op->tier == Tier::kStructural) hash.add(node.outputs[0].text());
    hashes[id] = hash.low();
  }
  Hash128 hash;
  hash.add(function.inputs().size());
  for (NodeId id : function.inputs()) hash.add(hashes[id]);
  hash.add(function.results().size());
  for (const Function::Result& r : function.results()) {
    hash.add(r.name);
    hash.add(hashes[r.ref.node]);
    hash.add(uint64_t{r.ref.output});
  }
  for (const Fact& f : function.facts()) {
    hash.add(f.input);
    hash.add(static_cast<uint64_t>(f.kind));
    hash.add(static_cast<uint64_t>(f.value));
  }
  return hash.low() ^ hash.high();
}

}  // namespace tokamak
