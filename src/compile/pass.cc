#include "compile/pass.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

namespace tokamak {
namespace {

// Nodes that some result needs. A function's results hold the last version of every state, so no
// write is lost.
std::vector<bool> reachable(const Function& function) {
  std::vector<bool> needed(function.nodes().size());
  for (const Function::Result& r : function.results()) needed[r.ref.node] = true;
  for (size_t id = needed.size(); id-- > 0;)
    if (needed[id])
      for (Ref in : function.node(static_cast<NodeId>(id)).inputs) needed[in.node] = true;
  return needed;
}

}  // namespace

void rebuild(Module& module, Function& function, const NodeMap& map) {
  Function fresh(&module, function.name());
  std::vector<bool> needed = reachable(function);
  std::vector<std::vector<Ref>> now(function.nodes().size());
  for (NodeId id = 0; id < function.nodes().size(); ++id) {
    const Node& node = function.node(id);
    if (node.op->name == "input") {  // the signature stays whole, needed or not
      now[id] = {fresh.add_input(node.attrs.at("name").as_string(), node.outputs[0])};
      continue;
    }
    if (!needed[id]) continue;
    if (node.op->name == "weight") {
      now[id] = {fresh.weight(node.attrs.at("name").as_string())};
    } else if (node.op->name == "constant") {
      now[id] = {fresh.constant(node.attrs.at("name").as_string())};
    } else {
      std::vector<Ref> inputs;
      for (Ref in : node.inputs) inputs.push_back(now[in.node][in.output]);
      fresh.set_provenance(node.provenance.empty() ? "" : node.provenance.back());
      now[id] = map(fresh, node, inputs);
      TK_CHECK(now[id].size() == node.outputs.size(), "node {} lost an output", node.op->name);
    }
  }
  for (const Function::Result& r : function.results())
    fresh.set_result(r.name, now[r.ref.node][r.ref.output]);
  fresh.facts() = function.facts();
  function = std::move(fresh);
}

void remove_dead_code(Module& module, Function& function, const PassContext&) {
  rebuild(module, function, [](Function& to, const Node& node, const std::vector<Ref>& in) {
    return to.add_multi(node.op->name, in, node.attrs, node.name);
  });
}

std::vector<PassTiming> run_passes(Module& module, Function& function, const PassContext& context) {
  std::vector<PassTiming> timings;
  SteadyClock clock;
  for (const Pass& pass : pipeline()) {
    PassTiming timing{std::string(pass.name), 0, function.nodes().size(), 0, false};
    timing.skipped = context.options.disabled_passes.contains(timing.name);
    if (!timing.skipped) {
      Nanos start = clock.now();
      pass.run(module, function, context);
      verify_function(function);
      timing.seconds = seconds(clock.now() - start);
    }
    timing.nodes_after = function.nodes().size();
    log::debug("pass {}: {} -> {} nodes, {:.1f} ms{}", timing.name, timing.nodes_before,
               timing.nodes_after, timing.seconds * 1e3, timing.skipped ? " (off)" : "");
    timings.push_back(std::move(timing));
  }
  return timings;
}

}  // namespace tokamak
