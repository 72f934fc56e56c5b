#pragma once
// Predicted times of nodes and regions of a function: what the kernels' cost functions say at a few
// shapes. docs/fusion.md explains them.
#include "compile/fuse/fusion_graph.h"
#include "compile/planner/work.h"

namespace tokamak {

struct RegionCost {
  double seconds = 0;
  double bytes = 0;  // every input and every output once
  double flops = 0;
};

// Refers to the graph and the kernels.
class CostModel {
 public:
  CostModel(const FusionGraph& graph, const KernelSet& kernels, const Machine& machine,
            std::vector<ShapeValues> shapes);

  // One call of its own, by the cheapest kernel; nothing for what needs no call.
  const RegionCost& single(NodeId id, size_t shape) const { return alone_[id][shape]; }
  // By the candidate's kernel; where its guard does not hold, the nodes one by one.
  RegionCost region(const Candidate& candidate, size_t shape) const;
  // Whether the guard of the candidate's kernel holds at any of the shapes.
  bool admitted(const Candidate& candidate) const;
  // Over all shapes, each relative to the time of the whole function at that shape: so that neither
  // the large nor the small shapes decide alone. In seconds of the first shape.
  double weighted(const std::vector<RegionCost>& per_shape) const;
  double single_cost(NodeId id) const { return singles_[id]; }
  // A plan runs a region op by op where that is faster, so a region is never slower than its nodes.
  double region_cost(const Candidate& candidate) const;
  // What an edge costs when it goes through memory, by the consumer's own kernel: a call of it that
  // only reads and writes the value.
  double edge_cost(Ref value, NodeId consumer) const;

  const std::vector<ShapeValues>& shapes() const { return meter_.shapes(); }
  double value_bytes(Ref r, size_t shape) const { return meter_.bytes(r, shape); }

 private:
  KernelWork work(const std::vector<NodeId>& nodes, const std::vector<OpWork::Part>& parts,
                  size_t shape) const;
  RegionCost measure(const std::vector<NodeId>& nodes, const std::vector<OpWork::Part>& parts,
                     std::span<const KernelDesc* const> kernels, size_t shape) const;

  const FusionGraph& graph_;
  const KernelSet& kernels_;
  const Machine machine_;
  WorkMeter meter_;
  std::vector<double> whole_, singles_;
  std::vector<bool> has_kernel_;
  std::vector<std::vector<RegionCost>> alone_;
};

}  // namespace tokamak
