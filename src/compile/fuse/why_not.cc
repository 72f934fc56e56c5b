// The report: what was fused, and for every edge between two kernels why it was not.
#include <algorithm>
#include <cmath>

#include "compile/fuse/fuse.h"

namespace tokamak {
namespace {

class WhyNot {
 public:
  WhyNot(const FusionGraph& graph, const CostModel& cost, const KernelSet& kernels,
         const FusionPlan& plan)
      : graph_(graph),
        fn_(graph.fn()),
        cost_(cost),
        kernels_(kernels),
        plan_(plan),
        part_(parts_of(graph, plan.candidates, plan.cover.chosen)) {
    for (size_t i = 0; i < plan.candidates.size(); ++i)
      for (NodeId id : plan.candidates[i].nodes) holding_[id].push_back(i);
  }

  void add_edges(FusionReport& report) const {
    for (NodeId id = 0; id < fn_.nodes().size(); ++id) {
      if (!graph_.is_call(id)) continue;
      const Node& node = fn_.node(id);
      for (Ref in : node.inputs) {
        Ref value = origin(in);
        if (graph_.structural(value)) continue;
        if (part_[value.node] >= 0 && part_[value.node] == part_[id]) continue;
        report.not_fused.push_back(edge(value, in, id));
      }
    }
  }

  std::string part_name(NodeId id) const {
    if (part_[id] < 0) return graph_.label(id);
    return graph_.region_name(plan_.candidates[static_cast<size_t>(part_[id])].nodes);
  }

 private:
  // The value that an alias shows.
  Ref origin(Ref r) const {
    while (is_alias(fn_, fn_.node(r.node))) r = fn_.node(r.node).inputs[0];
    return r;
  }

  // Whether Loop IR alone expresses the node.
  const loop::Program* program_of(NodeId id) const {
    const Node& node = fn_.node(id);
    if (node.op->writes_state || node.op->reads_state || is_region(node)) return nullptr;
    const std::optional<Region>& region =
        kernels_.region_of(graph_.body_of({id}, graph_.inputs_of({id}), graph_.outputs_of({id})));
    return region ? region->whole_program() : nullptr;
  }

  // A reduction, a matrix, or rows quantised by blocks: what all columns of a row go into.
  bool needs_whole_rows(NodeId id) const {
    const loop::Program* program = program_of(id);
    if (!program) return true;
    return std::any_of(program->code.begin(), program->code.end(),
                       [](const loop::Instr& i) {
                         return loop::op_info(i.op).kind == loop::OpKind::kReduce;
                       }) ||
           is_block_type(program->out[0].dtype);
  }

  bool knows(const KernelSet::Entry& e, NodeId id) const {
    if (!e.pattern.region) return false;
    if (e.pattern.kind == KernelPattern::Anchor::kLoop) return program_of(id) != nullptr;
    std::string_view op = fn_.node(id).op->name;
    return e.pattern.op == op || e.pattern.companion == op || e.pattern.takes_before(op) ||
           e.pattern.takes_after(op);
  }
  // Region kernels whose pattern has the op at all, and both ops.
  bool known(NodeId id) const {
    return std::any_of(kernels_.entries().begin(), kernels_.entries().end(),
                       [&](const KernelSet::Entry& e) { return knows(e, id); });
  }
  bool known_together(NodeId a, NodeId b) const {
    return std::any_of(kernels_.entries().begin(), kernels_.entries().end(),
                       [&](const KernelSet::Entry& e) { return knows(e, a) && knows(e, b); });
  }

  // A kernel of its own on a path from the producer to the consumer; empty: there is none.
  std::string between(NodeId producer, NodeId consumer) const {
    std::vector<bool> from(consumer - producer + 1, false), to(from.size(), false);
    from[0] = to.back() = true;
    for (NodeId id = producer + 1; id < consumer; ++id)
      for (Ref r : fn_.node(id).inputs)
        if (r.node >= producer && from[r.node - producer]) from[id - producer] = true;
    for (NodeId id = consumer; id > producer; --id)
      if (to[id - producer])
        for (Ref r : fn_.node(id).inputs)
          if (r.node >= producer) to[r.node - producer] = true;
    std::string ends[] = {part_name(producer), part_name(consumer)};
    for (NodeId id = producer + 1; id < consumer; ++id) {
      if (!from[id - producer] || !to[id - producer] || !graph_.is_call(id)) continue;
      std::string name = part_name(id);
      if (name != ends[0] && name != ends[1]) return name;
    }
    return "";
  }

  NotFused edge(Ref value, Ref seen, NodeId consumer) const {
    NotFused out;
    out.function = fn_.name();
    out.producer = part_name(value.node);
    out.consumer = part_name(consumer);
    for (size_t s = 0; s < cost_.shapes().size(); ++s)
      out.bytes += cost_.value_bytes(value, s) / static_cast<double>(cost_.shapes().size());
    if (fn_.type(value).kind != Type::Kind::kTensor) {
      out.reason = "state";
      out.detail = "the reader waits for all rows of the write";
    } else if (const Candidate* c = best_joint(value.node, consumer)) {
      explain_choice(*c, out);
    } else {
      explain_absence(value, seen, consumer, out);
    }
    return out;
  }

  // The cheapest candidate that holds both ends.
  const Candidate* best_joint(NodeId producer, NodeId consumer) const {
    auto it = holding_.find(consumer);
    if (it == holding_.end()) return nullptr;
    const Candidate* best = nullptr;
    double gain = 0;
    for (size_t i : it->second) {
      const Candidate& c = plan_.candidates[i];
      if (!std::binary_search(c.nodes.begin(), c.nodes.end(), producer)) continue;
      double g = swap_gain(c);
      if (!best || g > gain) {
        best = &c;
        gain = g;
      }
    }
    return best;
  }

  // What choosing `c` would save: the regions it cuts fall apart into single nodes.
  double swap_gain(const Candidate& c) const {
    double now = 0, then = c.cost;
    std::set<int> cut;
    for (NodeId id : c.nodes) {
      if (part_[id] >= 0)
        cut.insert(part_[id]);
      else
        now += cost_.single_cost(id);
    }
    for (int p : cut) {
      const Candidate& other = plan_.candidates[static_cast<size_t>(p)];
      now += other.cost;
      for (NodeId id : other.nodes)
        if (!std::binary_search(c.nodes.begin(), c.nodes.end(), id)) then += cost_.single_cost(id);
    }
    return now - then;
  }

  void explain_choice(const Candidate& c, NotFused& out) const {
    if (!cost_.admitted(c)) {
      out.reason = "guard";
      out.detail = fmt::format("{} ({}) would take it where {}", c.kernel->name, c.rule,
                               guard_text(*c.kernel));
      return;
    }
    double gain = swap_gain(c);
    bool free =
        std::all_of(c.nodes.begin(), c.nodes.end(), [&](NodeId id) { return part_[id] < 0; });
    out.reason = free ? "cost" : "other_choice";
    out.saving = std::max(0.0, gain);
    std::string by = std::abs(gain) < 5e-9 ? "no faster"
                                           : fmt::format("{:.2f} us {}", std::abs(gain) * 1e6,
                                                         gain > 0 ? "faster" : "slower");
    out.detail =
        fmt::format("possible as {} ({}), {} than what was chosen", c.kernel->name, c.rule, by);
  }

  void explain_absence(Ref value, Ref seen, NodeId consumer, NotFused& out) const {
    std::string_view from = fn_.node(value.node).op->name, to = fn_.node(consumer).op->name;
    if (!known(value.node) || !known(consumer)) {
      out.reason = "no_kernel";
      out.detail =
          fmt::format("no region kernel of this backend takes {}", known(value.node) ? to : from);
      out.saving = cost_.edge_cost(value, consumer);
    } else if (fn_.node(value.node).op->dots && needs_whole_rows(consumer)) {
      out.reason = "barrier";
      out.detail = fmt::format(
          "{} needs whole rows, and the columns of a row of {} are computed in parallel", to, from);
      out.saving = cost_.edge_cost(value, consumer);
    } else if (!known_together(value.node, consumer)) {
      out.reason = "no_kernel";
      out.detail = fmt::format("no region kernel of this backend has both {} and {}", from, to);
      out.saving = cost_.edge_cost(value, consumer);
    } else if (std::string other = between(value.node, consumer); !other.empty()) {
      out.reason = "between";
      out.detail = fmt::format(
          "{} lies between them: it reads the first and the second reads its result", other);
    } else if (!same_shape(fn_.tensor(value), fn_.tensor(seen)) ||
               !same_shape(fn_.tensor(value), fn_.node(consumer).outputs[0].tensor)) {
      out.reason = "shape";
      out.detail = fmt::format("{} gives {}, {} works on rows of another shape", from,
                               fn_.tensor(value).text(), to);
      out.saving = cost_.edge_cost(value, consumer);
    } else if (graph_.is_result(value)) {
      out.reason = "frame";
      out.detail = "the value is a result of the function";
    } else if (consumer - value.node > kMaxSpan) {
      out.reason = "size";
      out.detail = fmt::format("{} nodes lie between them", consumer - value.node);
    } else {
      out.reason = "no_kernel";
      out.detail = fmt::format("no region kernel takes {} into {} here", from, to);
      out.saving = cost_.edge_cost(value, consumer);
    }
  }

  const FusionGraph& graph_;
  const Function& fn_;
  const CostModel& cost_;
  const KernelSet& kernels_;
  const FusionPlan& plan_;
  std::vector<int> part_;
  std::map<NodeId, std::vector<size_t>> holding_;
};

void add_region_report(const FusionGraph& graph, const CostModel& cost, const Candidate& c,
                       FusionReport& report) {
  FusedRegion r;
  r.function = graph.fn().name();
  r.id = graph.region_name(c.nodes);
  r.kernel = c.kernel->name;
  r.why = c.rule;
  double share = 1.0 / static_cast<double>(cost.shapes().size());
  for (size_t s = 0; s < cost.shapes().size(); ++s) {
    RegionCost fused = cost.region(c, s);
    r.seconds += share * fused.seconds;
    r.bytes += share * fused.bytes;
    r.flops += share * fused.flops;
    for (NodeId id : c.nodes) {
      RegionCost alone = cost.single(id, s);
      r.unfused_seconds += share * alone.seconds;
      r.unfused_bytes += share * alone.bytes;
    }
  }
  for (NodeId id : c.nodes) r.ops.push_back(graph.label(id));
  report.regions.push_back(std::move(r));
}

FusionReport::Total fusion_totals(const FusionGraph& graph, const CostModel& cost,
                                  const FusionPlan& plan) {
  FusionReport::Total t;
  double share = 1.0 / static_cast<double>(cost.shapes().size());
  for (NodeId id = 0; id < graph.fn().nodes().size(); ++id) {
    t.calls_before += graph.is_call(id);
    for (size_t s = 0; s < cost.shapes().size(); ++s) {
      RegionCost c = cost.single(id, s);
      t.seconds_before += share * c.seconds;
      t.bytes_before += share * c.bytes;
    }
  }
  t.seconds_after = t.seconds_before;
  t.bytes_after = t.bytes_before;
  t.calls_after = t.calls_before;
  for (size_t i : plan.cover.chosen) {
    FusionReport one;
    add_region_report(graph, cost, plan.candidates[i], one);
    t.seconds_after -= one.regions[0].saved();
    t.bytes_after -= one.regions[0].unfused_bytes - one.regions[0].bytes;
    t.calls_after -= plan.candidates[i].nodes.size() - 1;
  }
  t.candidates = plan.candidates.size();
  t.states = plan.cover.states;
  t.exact = plan.cover.exact;
  return t;
}

}  // namespace

void report_fusion(const FusionGraph& graph, const CostModel& cost, const KernelSet& kernels,
                   const FusionPlan& plan, FusionReport& report) {
  for (const ShapeValues& values : cost.shapes())
    report.shapes[graph.fn().name()].push_back({values.begin(), values.end()});
  for (size_t i : plan.cover.chosen) add_region_report(graph, cost, plan.candidates[i], report);
  report.totals[graph.fn().name()] = fusion_totals(graph, cost, plan);
  WhyNot(graph, cost, kernels, plan).add_edges(report);
}

}  // namespace tokamak
