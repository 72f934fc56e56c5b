// The offline path, from top to bottom. Import is compile/import, models are compile/models, passes
// are compile/pipeline.cc, plans are compile/planner.
#include "compile/compiler.h"

#include "compile/adapters.h"
#include "compile/autotune.h"
#include "compile/cache.h"
#include "compile/function_plans.h"
#include "compile/open_model.h"
#include "compile/pass.h"
#include "compile/sampling.h"

namespace tokamak {

std::unique_ptr<ModelSource> compile_model(const std::filesystem::path& path, Backend& backend,
                                           CompileOptions options, const CompileCache* cache) {
  OpenedModel opened = open_model(path);  // import
  add_adapters(opened, options);
  fit_options(options, opened.model.config);
  options.load_trial = trial_loader(backend, *opened.model.weights);
  Module module = build_module(opened.model.config, options);  // build
  PlanSet plans = compile_cached(module, opened.model.config, backend, options, cache);
  return make_source(std::move(opened), std::move(plans));
}

PlanSet compile_module(Module& module, const ModelConfig& config, const Backend& backend,
                       const CompileOptions& asked) {
  const CompileOptions options = options_for(asked, backend);
  const PassContext context{backend, options};
  CompileRecord record(module, options);
  add_sampling(module, config.vocab, backend);

  std::vector<Function*> functions = written_functions(module);
  for (Function* fn : functions) run_general_passes(module, *fn, context);  // passes

  std::vector<Function*> derived = specialize_step(module, options);  // specialise
  for (Function* fn : derived) run_derived_passes(module, *fn, context);
  functions.insert(functions.begin() + 1, derived.begin(), derived.end());

  std::vector<Function*> all = functions, many = add_many_rows(module, functions, context);
  all.insert(all.end(), many.begin(), many.end());
  for (Function* fn : all) run_final_passes(module, *fn, context);  // fuse
  record.fused(module);

  PlanSet plans = plan_module(module, functions, config, backend, options);  // plan
  record.planned(plans);
  return plans;
}

}  // namespace tokamak
