#include "compile/pass.h"

#include <algorithm>
#include <cstdio>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "graph/region.h"

namespace tokamak {

void remove_dead_code(Module& module, Function& function, const PassContext&) {
  rebuild(module, function, [](Function& to, const Node& node, const std::vector<Ref>& in) {
    return copy_node(to, node, in);
  });
  drop_unused_bodies(module);
  drop_unused_constants(module);
}

const Pass* find_pass(std::string_view name) {
  for (const Pass& pass : pipeline())
    if (pass.name == name) return &pass;
  return nullptr;
}

std::vector<const Pass*> chosen_passes(const CompileOptions& options) {
  auto known = [](const std::string& name) {
    const Pass* pass = find_pass(name);
    if (pass) return pass;
    std::string names;
    for (const Pass& p : pipeline())
      names += fmt::format("{}{}", names.empty() ? "" : ", ", p.name);
    fail(ErrorCode::kInvalidArgument, "unknown pass \"{}\"; the passes are {}", name, names);
  };
  for (const std::string& name : options.disabled_passes) known(name);
  for (const std::string& name : options.dump_after) known(name);
  std::vector<const Pass*> chosen;
  for (const std::string& name : options.passes) chosen.push_back(known(name));
  if (options.passes.empty())
    for (const Pass& pass : pipeline())
      if (pass.on) chosen.push_back(&pass);
  return chosen;
}

namespace {

std::vector<PassTiming> run_these(Module& module, Function& function, const PassContext& context,
                                  bool (*wanted)(const Pass&)) {
  std::vector<PassTiming> timings;
  SteadyClock clock;
  for (const Pass* pass : chosen_passes(context.options)) {
    if (!wanted(*pass)) continue;
    PassTiming timing;
    timing.name = pass->name;
    timing.nodes_before = function.nodes().size();
    timing.skipped = context.options.disabled_passes.contains(timing.name);
    if (!timing.skipped) {
      PassContext inner = context;
      inner.timing = &timing;
      Nanos start = clock.now();
      pass->run(module, function, inner);
      timing.seconds = seconds(clock.now() - start);
      try {
        verify_function(function);
      } catch (const Error& e) {
        fail(ErrorCode::kInternal, "after pass {}: {}", pass->name, e.what());
      }
    }
    timing.nodes_after = function.nodes().size();
    if (context.options.dump && !timing.skipped)
      context.options.dump->write(fmt::format("{}-{}", function.name(), timing.name), "tkg",
                                  print_function(function));
    log::debug("pass {}: {} -> {} nodes, {:.1f} ms{}", timing.name, timing.nodes_before,
               timing.nodes_after, timing.seconds * 1e3, timing.skipped ? " (off)" : "");
    if (context.options.dump_after.contains(timing.name))
      fmt::print(stderr, "// {} after {}\n{}\n", function.name(), timing.name,
                 print_function(function));
    if (context.options.after_pass) context.options.after_pass(function, timing);
    timings.push_back(std::move(timing));
  }
  return timings;
}

}  // namespace

std::vector<PassTiming> run_passes(Module& module, Function& function, const PassContext& context) {
  return run_these(module, function, context, [](const Pass&) { return true; });
}
std::vector<PassTiming> run_general_passes(Module& module, Function& function,
                                           const PassContext& context) {
  return run_these(module, function, context, [](const Pass& p) { return !p.final; });
}
std::vector<PassTiming> run_final_passes(Module& module, Function& function,
                                         const PassContext& context) {
  return run_these(module, function, context, [](const Pass& p) { return p.final; });
}

void run_derived_passes(Module& module, Function& function, const PassContext& context) {
  const std::vector<std::string>& asked = context.options.passes;
  CompileOptions options = context.options;
  options.passes.clear();
  std::vector<const char*> names = {"use-facts", "dead-code"};
  if (options.materialized_prefill)  // step is not absorbed, these are
    names = {"absorb-latent", "use-facts", "quantize-activations", "choose-storage", "dead-code"};
  for (const char* name : names)
    if (asked.empty() || std::find(asked.begin(), asked.end(), name) != asked.end())
      options.passes.emplace_back(name);
  if (options.passes.empty()) return;
  run_passes(module, function, {context.backend, options});
}

}  // namespace tokamak
