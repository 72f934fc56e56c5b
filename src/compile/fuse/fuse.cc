#include "compile/fuse/fuse.h"

#include <algorithm>

#include "base/channels.h"
#include "base/error.h"
#include "compile/planner/planner.h"
#include "graph/rebuild.h"

namespace tokamak {
namespace {

// Rebuilds the function part by part.
class RegionOutliner {
 public:
  RegionOutliner(Module& module, const FusionGraph& graph, const FusionPlan& plan)
      : module_(module),
        graph_(graph),
        plan_(plan),
        fn_(graph.fn()),
        part_(parts_of(graph, plan.candidates, plan.cover.chosen)),
        fresh_(&module, fn_.name()) {}

  Function build() {
    for (NodeId id : fn_.inputs())
      now_[{id, 0}] =
          fresh_.add_input(fn_.node(id).attrs.at("name").as_string(), fn_.node(id).outputs[0]);
    for (const std::vector<NodeId>& nodes :
         ordered_parts(graph_, plan_.candidates, plan_.cover.chosen)) {
      if (part_[nodes.front()] < 0)
        add_single(nodes.front());
      else
        add_region(static_cast<size_t>(part_[nodes.front()]));
    }
    for (const Function::Result& r : fn_.results()) fresh_.set_result(r.name, at(r.ref));
    fresh_.facts() = fn_.facts();
    return std::move(fresh_);
  }

  std::map<size_t, std::string> bodies;  // per candidate

 private:
  Ref at(Ref r) {
    const Node& node = fn_.node(r.node);
    if (!is_weight(node)) return now_.at(r);
    const std::string& name = node.attrs.at("name").as_string();
    return fn_.module().find_weight(name) ? fresh_.weight(name) : fresh_.constant(name);
  }

  void add_single(NodeId id) {
    const Node& node = fn_.node(id);
    size_t count = node.op->writes_state ? first_ordering_input(fn_, node) : node.inputs.size();
    std::vector<Ref> in;
    for (size_t i = 0; i < count; ++i) in.push_back(at(node.inputs[i]));
    fresh_.set_provenance(node.provenance);
    std::vector<Ref> made = copy_node(fresh_, node, std::move(in));
    for (uint32_t o = 0; o < made.size(); ++o) now_[{id, o}] = made[o];
  }

  void add_region(size_t index) {
    const Candidate& c = plan_.candidates[index];
    std::vector<Ref> inputs = graph_.inputs_of(c.nodes), outputs = graph_.outputs_of(c.nodes);
    bool writes = fn_.type(outputs[0]).kind == Type::Kind::kState;
    std::string body = add_body(module_, graph_.body_of(c.nodes, inputs, outputs), hint(c));
    bodies[index] = body;
    std::vector<Ref> in;
    for (Ref r : inputs) in.push_back(at(r));
    if (writes)
      for (Ref read : reads_of(fresh_, in[0])) in.push_back(read);
    fresh_.set_provenance(fmt::format("fuse {}", c.rule));
    std::vector<Ref> made =
        fresh_.add_multi(writes ? "region_write" : "region", std::move(in),
                         Value::Object{{"body", body}}, graph_.region_name(c.nodes));
    for (size_t o = 0; o < made.size(); ++o) now_[outputs[o]] = made[o];
  }

  // The op that the region is built around.
  std::string_view hint(const Candidate& c) const {
    for (size_t i = 0; i < c.nodes.size(); ++i)
      if (c.parts[i] == OpWork::Part::kAnchor) return fn_.node(c.nodes[i]).op->name;
    return "region";
  }

  Module& module_;
  const FusionGraph& graph_;
  const FusionPlan& plan_;
  const Function& fn_;
  std::vector<int> part_;
  Function fresh_;
  std::map<Ref, Ref> now_;
};

void log_fusion(const FusionReport& report) {
  if (!log::channel_enabled("fusion")) return;
  std::string text = fusion_report_text(report);
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find('\n', at), text.size());
    log::channel("fusion", text.substr(at, end - at));
    at = end + 1;
  }
}

}  // namespace

FusionPlan plan_fusion(const FusionGraph& graph, const CostModel& cost, const KernelSet& kernels) {
  FusionPlan plan;
  plan.candidates = enumerate_candidates(graph, kernels);
  std::vector<double> single(graph.fn().nodes().size());
  for (NodeId id = 0; id < single.size(); ++id) single[id] = cost.single_cost(id);
  for (Candidate& c : plan.candidates) {
    c.cost = cost.region_cost(c);
    for (NodeId id : c.nodes) c.single_cost += single[id];
  }
  plan.cover = cheapest_cover(graph, plan.candidates, single);
  return plan;
}

std::vector<std::string> apply_fusion(Module& module, Function& function, const FusionGraph& graph,
                                      const FusionPlan& plan) {
  std::vector<std::string> bodies;
  if (plan.cover.chosen.empty()) return bodies;
  RegionOutliner outliner(module, graph, plan);
  Function fresh = outliner.build();
  for (size_t i : plan.cover.chosen) bodies.push_back(outliner.bodies.at(i));
  function = std::move(fresh);
  return bodies;
}

void fuse_regions(Module& module, Function& function, const PassContext& context) {
  KernelSet kernels(context.backend, !context.options.passes.empty());
  if (!kernels.has_regions()) return;
  Machine machine = compile_machine(context.options);
  FusionGraph graph(function);
  CostModel cost(graph, kernels, machine, design_shapes(function));
  FusionPlan plan = plan_fusion(graph, cost, kernels);
  if (context.firings_left) {  // bisection: only the first regions
    size_t keep = std::min(*context.firings_left, plan.cover.chosen.size());
    if (keep < plan.cover.chosen.size()) plan.cover.chosen.resize(keep);
    *context.firings_left -= keep;
    if (keep > 0 && context.last_firing) {
      const Candidate& last = plan.candidates[plan.cover.chosen.back()];
      *context.last_firing =
          fmt::format("{} region {}", last.kernel->name, graph.region_name(last.nodes));
    }
  }
  if (context.timing) {
    context.timing->fired = plan.cover.chosen.size();
    for (size_t i : plan.cover.chosen)
      ++context.timing->rules["fuse " + plan.candidates[i].kernel->name];
  }
  FusionReport report;
  bool wanted = context.options.fusion || log::channel_enabled("fusion");
  if (wanted) {
    report.machine = machine.name;
    report_fusion(graph, cost, kernels, plan, report);
    log_fusion(report);
  }
  std::vector<std::string> bodies = apply_fusion(module, function, graph, plan);
  for (size_t i = 0; wanted && i < bodies.size(); ++i) report.regions[i].body = bodies[i];
  if (context.options.fusion) merge_reports(*context.options.fusion, std::move(report));
}

}  // namespace tokamak
