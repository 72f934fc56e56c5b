#include "compile/fuse/cost.h"

#include <algorithm>
#include <cmath>

namespace tokamak {

constexpr double kNoKernel = 1;  // seconds: any region that has the node is better

CostModel::CostModel(const FusionGraph& graph, const KernelSet& kernels, const Machine& machine,
                     std::vector<ShapeValues> shapes)
    : graph_(graph), kernels_(kernels), machine_(machine), meter_(graph.fn(), std::move(shapes)) {
  const Function& fn = graph.fn();
  size_t nodes = fn.nodes().size(), count = meter_.shapes().size();
  alone_.resize(nodes);
  whole_.assign(count, 0);
  has_kernel_.assign(nodes, true);
  for (NodeId id = 0; id < nodes; ++id) {
    if (!graph.is_call(id)) {
      alone_[id].resize(count);
      continue;
    }
    const auto& list = kernels.of_node(fn, fn.node(id));
    has_kernel_[id] = !list.empty() || is_region(fn.node(id));
    for (size_t s = 0; s < count; ++s) {
      alone_[id].push_back(measure({id}, {}, list, s));
      if (has_kernel_[id]) whole_[s] += alone_[id].back().seconds;
    }
  }
  for (NodeId id = 0; id < nodes; ++id) singles_.push_back(weighted(alone_[id]));
}

KernelWork CostModel::work(const std::vector<NodeId>& nodes, const std::vector<OpWork::Part>& parts,
                           size_t shape) const {
  return meter_.work(nodes, parts, graph_.inputs_of(nodes), graph_.outputs_of(nodes), shape);
}

RegionCost CostModel::measure(const std::vector<NodeId>& nodes,
                              const std::vector<OpWork::Part>& parts,
                              std::span<const KernelDesc* const> kernels, size_t shape) const {
  KernelWork work = this->work(nodes, parts, shape);
  RegionCost cost;
  for (const OpWork& op : work.ops) cost.flops += op.flops > 0 ? op.flops : op.vector_ops;
  for (const auto* list : {&work.in, &work.out})
    for (const ValueWork& v : *list) cost.bytes += v.bytes;
  cost.seconds = INFINITY;
  for (const KernelDesc* k : kernels)
    if (guard_holds(*k, work, work))
      cost.seconds = std::min(cost.seconds, kernel_cost(*k, work, machine_));
  if (std::isinf(cost.seconds) && nodes.size() == 1) cost.seconds = kNoKernel;
  return cost;
}

RegionCost CostModel::region(const Candidate& c, size_t shape) const {
  RegionCost cost = measure(c.nodes, c.parts, std::span(&c.kernel, 1), shape);
  if (!std::isinf(cost.seconds)) return cost;
  cost.seconds = 0;
  for (NodeId id : c.nodes) cost.seconds += single(id, shape).seconds;
  return cost;
}

bool CostModel::admitted(const Candidate& c) const {
  for (size_t s = 0; s < shapes().size(); ++s) {
    KernelWork w = work(c.nodes, c.parts, s);
    if (guard_holds(*c.kernel, w, w)) return true;
  }
  return false;
}

double CostModel::weighted(const std::vector<RegionCost>& per_shape) const {
  double sum = 0;
  for (size_t s = 0; s < per_shape.size(); ++s)
    sum += whole_[s] > 0 ? per_shape[s].seconds / whole_[s] : per_shape[s].seconds;
  return sum * (whole_[0] > 0 ? whole_[0] : 1) / static_cast<double>(per_shape.size());
}

double CostModel::region_cost(const Candidate& candidate) const {
  std::vector<RegionCost> costs;
  for (size_t s = 0; s < shapes().size(); ++s) {
    costs.push_back(region(candidate, s));
    double apart = 0;
    for (NodeId id : candidate.nodes) apart += single(id, s).seconds;
    costs.back().seconds = std::min(costs.back().seconds, apart);
  }
  return weighted(costs);
}

double CostModel::edge_cost(Ref value, NodeId consumer) const {
  std::vector<RegionCost> costs(shapes().size());
  const auto& kernels = kernels_.of_node(graph_.fn(), graph_.fn().node(consumer));
  for (size_t s = 0; s < shapes().size() && !kernels.empty(); ++s) {
    KernelWork copy;
    copy.in = copy.out = {ValueWork{value_bytes(value, s)}};
    copy.all_weight_bytes = meter_.all_weight_bytes();
    costs[s].seconds = INFINITY;
    for (const KernelDesc* k : kernels)
      costs[s].seconds = std::min(costs[s].seconds, kernel_cost(*k, copy, machine_));
  }
  return weighted(costs);
}

}  // namespace tokamak
