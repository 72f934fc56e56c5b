#include "compile/fuse/cost.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace tokamak {
namespace {

// Below these much work a kernel stays on one core, as the cpu backend's do.
constexpr double kForkElements = 2 * 16384;
constexpr double kForkProducts = 2 * 96 * 1024;
// Elements of a prologue that every core computes for itself instead of waiting for the others.
constexpr double kRedundantElements = 8192;
// Loop IR is interpreted, a tile at a time.
constexpr double kLoopFactor = 1.3, kLoopStart = 2e-7;
constexpr double kPackOps = 2;  // per element, to bring activations into tiles

struct OpWeight {
  std::string_view op;
  double ops;  // per element
};
constexpr OpWeight kOpWeights[] = {
    {"div", 4},      {"sqrt", 4},     {"rsqrt", 6}, {"exp", 10},     {"sigmoid", 14},
    {"silu", 14},    {"tanh", 20},    {"gelu", 24}, {"softcap", 24}, {"log", 60},
    {"sin", 60},     {"cos", 60},     {"erf", 60},  {"rms_norm", 4}, {"layer_norm", 6},
    {"softmax", 16}, {"quantize", 8}, {"rope", 6},  {"gather", 1},   {"embed", 2},
};

double ops_per_element(std::string_view op) {
  for (const OpWeight& w : kOpWeights)
    if (w.op == op) return w.ops;
  return 1;
}

}  // namespace

std::vector<ShapeValues> design_shapes(const Function& fn) {
  const bool decode = std::any_of(fn.facts().begin(), fn.facts().end(),
                                  [](const Fact& f) { return f.input == "out_rows"; });
  std::vector<ShapeValues> out;
  for (int64_t size : decode ? std::vector<int64_t>{1, 8} : std::vector<int64_t>{16, 512}) {
    ShapeValues values;
    for (const SymbolDecl& s : fn.module().symbols) {
      int64_t v = s.name == "B" && !decode ? 1 : s.name == "R" && !decode ? 1 : size;
      v = std::clamp(v, s.lo, s.hi) / s.multiple * s.multiple;
      values[s.name] = std::max(v, s.lo);
    }
    if (out.empty() || out.back() != values) out.push_back(std::move(values));
  }
  return out;
}

CostModel::CostModel(const FusionGraph& graph, const Machine& machine,
                     std::vector<ShapeValues> shapes)
    : graph_(graph), fn_(graph.fn()), machine_(machine), shapes_(std::move(shapes)) {
  measure_values();
  double weights = 0;
  for (NodeId id = 0; id < fn_.nodes().size(); ++id)
    if (fn_.node(id).op->name == "weight" && graph.needed(id)) weights += value_bytes({id, 0}, 0);
  weight_bandwidth_ = machine_.level_of(weights / 2).bandwidth;
  singles_.resize(fn_.nodes().size());
  alone_.resize(fn_.nodes().size());
  whole_.assign(shapes_.size(), 0);
  for (NodeId id = 0; id < fn_.nodes().size(); ++id)
    for (size_t s = 0; s < shapes_.size(); ++s) {
      alone_[id].push_back(call_cost(id, s));
      whole_[s] += alone_[id].back().seconds;
    }
  for (NodeId id = 0; id < fn_.nodes().size(); ++id) singles_[id] = weighted(alone_[id]);
}

void CostModel::measure_values() {
  sizes_.resize(fn_.nodes().size());
  ops_.resize(fn_.nodes().size());
  for (NodeId id = 0; id < fn_.nodes().size(); ++id)
    for (const Type& t : fn_.node(id).outputs) {
      bool tensor = t.kind == Type::Kind::kTensor;
      SymExpr count = tensor ? t.tensor.elements() : SymExpr(0),
              bytes = tensor ? t.tensor.bytes() : SymExpr(0);
      for (size_t s = 0; s < shapes_.size(); ++s)
        sizes_[id].push_back({extent(count, s), extent(bytes, s)});
    }
  for (NodeId id = 0; id < fn_.nodes().size(); ++id) {
    if (!graph_.is_call(id)) {  // a view costs nothing, also inside a region
      ops_[id].assign(shapes_.size(), 0);
      continue;
    }
    const Node& node = fn_.node(id);
    std::vector<Type> in;
    for (Ref r : node.inputs) in.push_back(fn_.type(r));
    SymExpr flops = node.op->flops ? node.op->flops(in, node.outputs) : SymExpr(0);
    for (size_t s = 0; s < shapes_.size(); ++s)
      ops_[id].push_back(node.op->flops ? extent(flops, s) : vector_work(id, s));
  }
}

double CostModel::extent(const SymExpr& e, size_t shape) const {
  return static_cast<double>(e.eval(shapes_[shape]));
}

double CostModel::move_seconds(Ref r, size_t shape) const {
  double bytes = value_bytes(r, shape);
  if (fn_.node(r.node).op->name == "weight") return bytes / weight_bandwidth_;
  return bytes / machine_.level_of(bytes).bandwidth;
}

double CostModel::spread(double work, bool parallel) const {
  return work / machine_.vector_ops * (parallel ? 1 : machine_.cores);
}

double CostModel::vector_work(NodeId id, size_t shape) const {
  const Node& node = fn_.node(id);
  double n = 0;
  for (uint32_t o = 0; o < node.outputs.size(); ++o) n += elements({id, o}, shape);
  if (node.op->name == "append")
    for (size_t i = 4; i < first_ordering_input(fn_, node); ++i)
      n += 4 * elements(node.inputs[i], shape);
  return n * ops_per_element(node.op->name);
}

double CostModel::pack_work(NodeId matrix, size_t shape) const {
  return elements(fn_.node(matrix).inputs[0], shape) * kPackOps;
}

double CostModel::node_ops(NodeId id, size_t shape) const { return ops_[id][shape]; }

// The dot products against the stream of weights, whichever takes longer.
double CostModel::matrix_seconds(NodeId id, size_t shape) const {
  const Node& node = fn_.node(id);
  bool integer = fn_.type(node.inputs[0]).kind == Type::Kind::kTensor &&
                 fn_.tensor(node.inputs[0]).dtype == DType::kQ8A;
  double dot = node_ops(id, shape) / (integer ? machine_.i8_ops : machine_.f32_flops);
  double memory = 0;
  for (Ref r : node.inputs)
    if (graph_.structural(r)) memory += move_seconds(r, shape);
  return std::max(dot, memory);
}

RegionCost CostModel::call_cost(NodeId id, size_t shape) const {
  RegionCost c;
  if (!graph_.is_call(id)) return c;
  const Node& node = fn_.node(id);
  c.flops = node_ops(id, shape);
  c.seconds = machine_.call_seconds;
  for (Ref r : graph_.inputs_of({id})) c.bytes += value_bytes(r, shape);
  for (uint32_t o = 0; o < node.outputs.size(); ++o) c.bytes += value_bytes({id, o}, shape);
  bool matrix = node.op->name == "linear" || node.op->name == "matmul";
  bool parallel = matrix ? c.flops / 2 >= kForkProducts
                         : elements({id, 0}, shape) >= kForkElements || node.op->name == "attend";
  if (parallel) c.seconds += machine_.barrier_seconds;
  if (matrix) {
    c.seconds += matrix_seconds(id, shape) + spread(pack_work(id, shape), false);
  } else {
    c.seconds += spread(vector_work(id, shape), parallel);
  }
  for (Ref r : graph_.inputs_of({id}))
    if (!matrix || !graph_.structural(r)) c.seconds += move_seconds(r, shape);
  for (uint32_t o = 0; o < node.outputs.size(); ++o) c.seconds += move_seconds({id, o}, shape);
  return c;
}

double CostModel::linears_seconds(const Candidate& c, size_t shape) const {
  double seconds = 0, products = 0, before = 0, behind = 0, size = 0, pack = 0, tokens = 0;
  for (size_t i = 0; i < c.nodes.size(); ++i) {
    NodeId id = c.nodes[i];
    if (fn_.node(id).op->name == "linear") {
      seconds += matrix_seconds(id, shape);
      products += node_ops(id, shape) / 2;
      pack = pack_work(id, shape);
      size = elements(fn_.node(id).inputs[0], shape);
      tokens = extent(fn_.tensor(fn_.node(id).inputs[0]).extent(0), shape);
    } else {
      (i < c.prologue ? before : behind) += vector_work(id, shape);
    }
  }
  // Either every core makes the activations for itself, or all of them once and wait.
  bool parallel = products >= kForkProducts;
  bool redundant =
      tokens <= 4 || size <= (c.prologue > 0 ? kRedundantElements : 4 * kRedundantElements);
  if (parallel) seconds += machine_.barrier_seconds * (redundant ? 1 : 2);
  seconds += spread(before + pack, parallel && !redundant);
  return seconds + spread(behind, parallel);
}

double CostModel::rows_seconds(const Candidate& c, size_t shape) const {
  double work = 0, touched = 0;
  for (NodeId id : c.nodes) {
    work += vector_work(id, shape);
    touched += elements({id, 0}, shape);
  }
  bool parallel = touched >= kForkElements;
  double seconds = spread(work, parallel) + (parallel ? machine_.barrier_seconds : 0);
  return c.kind == "loop" ? seconds * kLoopFactor + kLoopStart : seconds;
}

RegionCost CostModel::region(const Candidate& c, size_t shape) const {
  RegionCost cost;
  cost.seconds = machine_.call_seconds +
                 (c.kind == "linears" ? linears_seconds(c, shape) : rows_seconds(c, shape));
  for (NodeId id : c.nodes) cost.flops += node_ops(id, shape);
  bool matrices = c.kind == "linears";
  for (Ref r : graph_.inputs_of(c.nodes)) {
    cost.bytes += value_bytes(r, shape);
    bool counted = matrices && graph_.structural(r) && fn_.tensor(r).rank() > 1;
    if (!counted) cost.seconds += move_seconds(r, shape);
  }
  // What stays inside is written and read once, in the nearest level.
  double inside = 0;
  for (NodeId id : c.nodes) inside += value_bytes({id, 0}, shape);
  for (Ref r : graph_.outputs_of(c.nodes)) {
    cost.bytes += value_bytes(r, shape);
    cost.seconds += move_seconds(r, shape);
    inside -= value_bytes(r, shape);
  }
  cost.seconds += 2 * std::max(inside, 0.0) / machine_.levels.front().bandwidth;
  return cost;
}

double CostModel::weighted(const std::vector<RegionCost>& per_shape) const {
  double sum = 0;
  for (size_t s = 0; s < per_shape.size(); ++s)
    sum += whole_[s] > 0 ? per_shape[s].seconds / whole_[s] : 0;
  return sum * whole_[0] / static_cast<double>(per_shape.size());
}

double CostModel::region_cost(const Candidate& candidate) const {
  std::vector<RegionCost> costs;
  for (size_t s = 0; s < shapes_.size(); ++s) costs.push_back(region(candidate, s));
  return weighted(costs);
}

double CostModel::edge_cost(Ref value) const {
  std::vector<RegionCost> costs(shapes_.size());
  for (size_t s = 0; s < shapes_.size(); ++s) {
    costs[s].seconds = machine_.call_seconds + 2 * move_seconds(value, s);
    if (elements(value, s) >= kForkElements) costs[s].seconds += machine_.barrier_seconds;
  }
  return weighted(costs);
}

}  // namespace tokamak
