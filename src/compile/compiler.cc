// The offline path, top to bottom. import is compile/import, models are compile/models, passes are
// compile/pipeline.cc, plans are compile/planner.
#include "compile/compiler.h"

#include <algorithm>
#include <map>

#include "base/channels.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "compile/pass.h"
#include "compile/planner/planner.h"
#include "compile/shapes.h"
#include "graph/region.h"

namespace tokamak {
namespace {

// One plan of the function for each guard; `bound`: what T and R are in it, empty when they vary.
void request_plans(std::vector<PlanRequest>& out, const Function& fn, const Guards& guards,
                   const std::string& bound = {}) {
  for (const std::vector<GuardRange>& guard : guards) {
    out.push_back({&fn, guard, {}});
    if (!bound.empty()) out.back().bound_symbols = {{"T", bound}, {"R", bound}};
  }
}

}  // namespace

PlanSet compile_module(Module& module, const ModelConfig& config, const Backend& backend,
                       const CompileOptions& asked) {
  SteadyClock clock;
  Nanos start = clock.now();
  CompileOptions options = asked;
  options.shapes = chosen_shapes(asked, backend);
  // Int8 activations and narrow storage stay: without them the result would be another one.
  if (options.eager && options.passes.empty())
    options.passes = {"quantize-activations", "choose-storage", "dead-code"};
  if (options.dump) options.dump->write("captured", "tkg", print_module(module));
  Function& step = *module.find_function("step");
  std::vector<Function*> others = other_functions(module);
  run_general_passes(module, step, {backend, options});
  for (Function* fn : others) run_general_passes(module, *fn, {backend, options});
  Function& decode = specialize_decode(module);
  run_derived_passes(module, decode, {backend, options});
  std::vector<Function*> planned = {&step, &decode};
  for (int k : options.verify) {
    planned.push_back(&specialize_verify(module, k));
    run_derived_passes(module, *planned.back(), {backend, options});
  }
  planned.insert(planned.end(), others.begin(), others.end());
  // Functions are specialised before they are fused: each is fused for its own shapes.
  for (Function* fn : planned) run_final_passes(module, *fn, {backend, options});
  if (options.dump) options.dump->write("fused", "tkg", print_module(module));

  PlanSet set;
  set.model = module.name;
  set.backend = backend.name();
  set.vocab = config.vocab;
  set.hidden = config.hidden;
  set.layers = config.layers;
  set.context = options.context > 0 ? options.context : config.context;
  declare_tables(set, module);
  std::vector<PlanRequest> requests;
  request_plans(requests, step, step_guards(options));
  request_plans(requests, decode, decode_guards(options), "B");
  for (size_t i = 0; i < options.verify.size(); ++i) {
    int k = options.verify[i];
    request_plans(requests, *planned[2 + i], verify_guards(options, k), fmt::format("{}*B", k + 1));
  }
  for (const Function* fn : others) request_plans(requests, *fn, {function_guard(*fn)});
  plan_functions(set, requests, backend, compile_machine(options), options.fusion.get());
  if (options.eager)
    for (Plan& plan : set.plans) spread_values(set, plan);
  check_plan_set(set);
  if (options.dump) options.dump->write("planned", "txt", plan_set_text(set));
  if (log::channel_enabled("recompiles"))
    log::channel("recompiles",
                 fmt::format("compiled {} for {}: {} plans in {:.1f} ms", set.model, set.backend,
                             set.plans.size(), seconds(clock.now() - start) * 1e3));
  return set;
}

}  // namespace tokamak
