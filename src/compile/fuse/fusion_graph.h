#pragma once
// What the fusion planner knows about a function: the consumers of each value, and what a group of
// nodes takes and gives.
#include <set>
#include <string>
#include <vector>

#include "compile/planner/kernels.h"

namespace tokamak {

// A group of nodes that a kernel could run.
struct Candidate {
  std::vector<NodeId> nodes;  // ascending
  const KernelDesc* kernel = nullptr;
  std::vector<OpWork::Part> parts;  // of the nodes
  std::string rule;                 // "3 linear of one input, after rms_norm quantize"
  double cost = 0;                  // of the region, in the planner's units
  double single_cost = 0;           // of its nodes one by one
};

// Built once per function; refers to it.
class FusionGraph {
 public:
  explicit FusionGraph(const Function& fn);

  const Function& fn() const { return fn_; }
  bool needed(NodeId id) const { return needed_[id]; }
  // A call of its own when it is not fused.
  bool is_call(NodeId id) const;
  const std::vector<NodeId>& consumers(Ref r) const { return consumers_[r.node][r.output]; }
  bool is_result(Ref r) const { return results_.contains(r); }
  bool structural(Ref r) const { return fn_.node(r.node).op->tier == Tier::kStructural; }

  // Values that the group takes from outside, in order of first use, and those that leave it; a
  // state comes first.
  std::vector<Ref> inputs_of(const std::vector<NodeId>& nodes) const;
  std::vector<Ref> outputs_of(const std::vector<NodeId>& nodes) const;
  // Whether no path leaves the group and comes back.
  bool convex(const std::vector<NodeId>& nodes) const;
  // The group as a function of its own: inputs and results in these orders.
  Function body_of(const std::vector<NodeId>& nodes, const std::vector<Ref>& inputs,
                   const std::vector<Ref>& outputs) const;
  std::string label(NodeId id) const;                               // "rms_norm blk.0.attn_norm"
  std::string region_name(const std::vector<NodeId>& nodes) const;  // "blk.0.attn_q+attn_k"

 private:
  const Function& fn_;
  std::vector<bool> needed_;
  std::vector<std::vector<std::vector<NodeId>>> consumers_;
  std::set<Ref> results_;
};

// --- candidates.cc: every group worth a look, without costs. Bounded: large functions get fewer
// groups per node.
std::vector<Candidate> enumerate_candidates(const FusionGraph& graph, const KernelSet& kernels);
constexpr size_t kMaxRegionOps = 16;
constexpr size_t kMaxSpan = 60;  // nodes between the first and the last of a region

}  // namespace tokamak
