#include "compile/function_plans.h"

#include "compile/shapes.h"

namespace tokamak {
namespace {

// One plan of the function for each guard; `bound`: what T and R are in it, empty when they vary.
void add_requests(std::vector<PlanRequest>& out, const Function& fn, const Guards& guards,
                  const std::string& bound = {}) {
  for (const std::vector<GuardRange>& guard : guards) {
    out.push_back({&fn, guard, {}});
    if (!bound.empty()) out.back().bound_symbols = {{"T", bound}, {"R", bound}};
  }
}

}  // namespace

CompileOptions options_for(CompileOptions options, const Backend& backend) {
  options.shapes = chosen_shapes(options, backend);
  // Absorbed latent attention, int8 activations and narrow storage stay: without them the result
  // would differ.
  if (options.eager && options.passes.empty())
    options.passes = {"absorb-latent", "quantize-activations", "choose-storage", "dead-code"};
  return options;
}

PlanSet new_plan_set(const Module& module, const ModelConfig& config, const Backend& backend,
                     const CompileOptions& options) {
  PlanSet set;
  set.model = module.name;
  set.backend = backend.name();
  set.vocab = config.vocab;
  bool scores = config.embedding.classifies();
  set.hidden = scores ? std::ssize(config.embedding.labels) : config.hidden;
  set.layers = config.layers;
  set.context = options.context > 0 ? options.context : config.context;
  declare_tables(set, module);
  return set;
}

std::vector<PlanRequest> plan_requests(const std::vector<Function*>& functions,
                                       const CompileOptions& options) {
  std::vector<PlanRequest> out;
  add_requests(out, *functions[0], step_guards(options));
  size_t next = 1;
  if (next < functions.size() && functions[next]->name() == "decode") {
    add_requests(out, *functions[next++], decode_guards(options), "B");
    for (int k : options.verify)
      add_requests(out, *functions[next++], verify_guards(options, k), fmt::format("{}*B", k + 1));
  }
  for (; next < functions.size(); ++next) {
    const Function& fn = *functions[next];
    if (fn.name() == kExitFunction)
      add_requests(out, fn, exit_guards(options), "B");
    else
      add_requests(out, fn, {function_guard(fn)});
  }
  return out;
}

}  // namespace tokamak
