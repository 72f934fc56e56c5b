#pragma once
// Predicted time of a node or a region on a machine: calls and barriers, arithmetic, weights from
// memory, activations from the level that holds them. docs/fusion.md has the formulas.
#include <map>

#include "compile/fuse/fusion_graph.h"
#include "plan/machine.h"

namespace tokamak {

using ShapeValues = std::map<std::string, int64_t, std::less<>>;

struct RegionCost {
  double seconds = 0;
  double bytes = 0;  // every input and every output once
  double flops = 0;
};

// Refers to the graph.
class CostModel {
 public:
  CostModel(const FusionGraph& graph, const Machine& machine, std::vector<ShapeValues> shapes);

  // One call of its own; nothing for what needs none.
  const RegionCost& single(NodeId id, size_t shape) const { return alone_[id][shape]; }
  RegionCost region(const Candidate& candidate, size_t shape) const;
  // Over all shapes, each relative to the time of the whole function at that shape: so that neither
  // the large nor the small shapes decide alone. In seconds of the first shape.
  double weighted(const std::vector<RegionCost>& per_shape) const;
  double single_cost(NodeId id) const { return singles_[id]; }
  double region_cost(const Candidate& candidate) const;
  // What an edge costs when it goes through memory: a write, a read, a call and a barrier.
  double edge_cost(Ref value) const;

  const std::vector<ShapeValues>& shapes() const { return shapes_; }
  double whole(size_t shape) const { return whole_[shape]; }
  double value_bytes(Ref r, size_t shape) const { return size_of(r, shape).bytes; }

 private:
  struct ValueSize {
    double elements = 0, bytes = 0;
  };
  const ValueSize& size_of(Ref r, size_t shape) const {
    return sizes_[r.node][r.output * shapes_.size() + shape];
  }
  double extent(const SymExpr& e, size_t shape) const;
  double elements(Ref r, size_t shape) const { return size_of(r, shape).elements; }
  RegionCost call_cost(NodeId id, size_t shape) const;
  void measure_values();
  double move_seconds(Ref r, size_t shape) const;
  double vector_work(NodeId id, size_t shape) const;
  double pack_work(NodeId matrix, size_t shape) const;
  double matrix_seconds(NodeId id, size_t shape) const;
  double node_ops(NodeId id, size_t shape) const;
  double linears_seconds(const Candidate& c, size_t shape) const;
  double rows_seconds(const Candidate& c, size_t shape) const;
  double spread(double work, bool parallel) const;  // seconds of element-wise work

  const FusionGraph& graph_;
  const Function& fn_;
  const Machine machine_;
  std::vector<ShapeValues> shapes_;
  double weight_bandwidth_ = 0;
  std::vector<double> whole_;
  std::vector<double> singles_;
  // Symbols are evaluated once: the planner asks often.
  std::vector<std::vector<ValueSize>> sizes_;  // per node: output, then shape
  std::vector<std::vector<double>> ops_;       // per node and shape
  std::vector<std::vector<RegionCost>> alone_;
};

// Shapes at which a function's regions are judged: decode of one and of several sequences, a small
// and a full chunk of a step.
std::vector<ShapeValues> design_shapes(const Function& fn);

}  // namespace tokamak
