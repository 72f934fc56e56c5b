#pragma once
// What the fusion planner knows of a function: who consumes what, what a group of nodes takes and
// gives, and what a backend's kernels for regions accept.
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "graph/region.h"

namespace tokamak {

// A kernel for regions, as its KernelDesc spells it: "region.linears(rms_norm quantize; linear;
// add mul quantize)". The ops of each part, in the order of the pattern.
struct RegionKernel {
  std::string kind;
  std::vector<std::set<std::string, std::less<>>> parts;
  bool takes(size_t part, std::string_view op) const {
    return part < parts.size() && (parts[part].contains(op) || parts[part].contains("*"));
  }
};
std::vector<RegionKernel> region_kernels(const Backend& backend);

// A group of nodes that one kernel could run.
struct Candidate {
  std::vector<NodeId> nodes;  // ascending
  std::string kind;
  std::string rule;        // "linears 3, prologue rms_norm quantize, epilogue silu mul"
  size_t prologue = 0;     // linears: nodes in front of the matrices
  double cost = 0;         // of the region, in the planner's units
  double single_cost = 0;  // of its nodes one by one
};

// Built once per function; refers to it.
class FusionGraph {
 public:
  explicit FusionGraph(const Function& fn);

  const Function& fn() const { return fn_; }
  bool needed(NodeId id) const { return needed_[id]; }
  // A call of its own when it is not fused: neither frame nor a view of another value.
  bool is_call(NodeId id) const;
  const std::vector<NodeId>& consumers(Ref r) const { return consumers_[r.node][r.output]; }
  bool is_result(Ref r) const { return results_.contains(r); }
  bool structural(Ref r) const { return fn_.node(r.node).op->tier == Tier::kStructural; }

  // Values that the group takes from outside, in order of first use; those that it gives.
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

bool same_shape(const TensorType& a, const TensorType& b);  // extents; names of axes do not matter

// --- candidates.cc: every group worth a look, without costs.
std::vector<Candidate> enumerate_candidates(const FusionGraph& graph, const Backend& backend);
constexpr size_t kMaxRegionOps = 16;
constexpr size_t kMaxSpan = 60;  // nodes between the first and the last of a region

}  // namespace tokamak
