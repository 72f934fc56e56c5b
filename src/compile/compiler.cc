// The offline path, from top to bottom. Import is compile/import, models are compile/models, passes
// are compile/pipeline.cc, plans are compile/planner.
#include "compile/compiler.h"

#include "base/error.h"
#include "compile/adapters.h"
#include "compile/autotune.h"
#include "compile/cache.h"
#include "compile/function_plans.h"
#include "compile/open_model.h"
#include "compile/pass.h"
#include "compile/planner/launches.h"
#include "compile/sampling.h"
#include "compile/shapes.h"

namespace tokamak {

std::unique_ptr<ModelSource> compile_model(const std::filesystem::path& path, Backend& backend,
                                           CompileOptions options, const CompileCache* cache) {
  OpenedModel opened = open_model(path);  // import
  add_adapters(opened, options);
  fit_options(options, opened.model.config);
  if (options.autotune)
    options.load_trial = [&](const PlanSet& plans, const LoadOptions& load) {
      return backend.load(plans, *opened.model.weights, load);
    };
  Module module = build_module(opened.model.config, options);  // build
  PlanSet plans = compile_cached(module, opened.model.config, backend, options, cache);
  return make_source(std::move(opened), std::move(plans));
}

PlanSet compile_module(Module& module, const ModelConfig& config, const Backend& backend,
                       const CompileOptions& asked) {
  CompileOptions options = options_for(asked, backend);
  PassContext context{backend, options};
  CompileRecord record(module, options);

  add_sampling(module, config.vocab, backend);
  std::vector<Function*> functions = {module.find_function("step")},
                         others = other_functions(module);
  if (!functions[0])
    fail(ErrorCode::kInvalidArgument, "module {} has no function step, so it cannot be compiled",
         module.name);
  run_general_passes(module, *functions[0], context);  // passes
  for (Function* fn : others) run_general_passes(module, *fn, context);

  if (!module.states.empty()) {  // specialise; an encoder has no next token
    functions.push_back(&specialize_decode(module));
    for (int k : options.verify) functions.push_back(&specialize_verify(module, k));
  }
  for (size_t i = 1; i < functions.size(); ++i) run_derived_passes(module, *functions[i], context);

  // Fuse, after functions were specialised: each is fused for its own shapes.
  functions.insert(functions.end(), others.begin(), others.end());
  for (Function* fn : functions) run_final_passes(module, *fn, context);
  record.fused(module);

  PlanSet set = new_plan_set(module, config, backend, options);  // plan
  const Machine machine = compile_machine(options);
  std::vector<PlanRequest> requests = plan_requests(functions, options);
  if (options.autotune) tune_requests(requests, set, backend, machine, options);
  plan_functions(set, requests, backend, machine, options.fusion.get());
  if (options.eager)
    spread_values(set);
  else
    plan_launches(set, backend, machine, options.fusion.get());
  check_plan_set(set);
  record.planned(set);
  return set;
}

}  // namespace tokamak
