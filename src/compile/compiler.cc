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
void plan_function(PlanSet& set, const Function& fn, const Backend& backend,
                   const CompileOptions& o, const Guards& guards, const std::string& bound = {}) {
  for (const std::vector<GuardRange>& guard : guards) {
    emit_plan(set, fn, backend, guard);
    if (o.eager) spread_values(set, set.plans.back());
    if (!bound.empty()) set.plans.back().bound_symbols = {{"T", bound}, {"R", bound}};
  }
}

// Blocks of KV may be shared only between plans that round in the same places.
// Fusing is exact: a region counts as the kernels of its ops.
std::string numerics_id(const PlanSet& set, const std::vector<Function*>& functions,
                        const Backend& backend) {
  std::set<std::string> kernels;
  auto collect = [&](const Function& fn, auto& self) -> void {
    for (const Node& node : fn.nodes()) {
      if (is_region(node)) {
        self(region_body(fn.module(), node.attrs), self);
      } else if (node.op->tier != Tier::kStructural) {
        const KernelDesc* k = find_kernel(fn, node, backend);
        if (k) kernels.insert(fmt::format("{}/{}/{}", k->name, k->abi, k->numeric_class));
      }
    }
  };
  for (const Function* fn : functions) collect(*fn, collect);
  std::set<std::string> folds;  // factors that were multiplied into weights
  for (const WeightEntry& w : set.weights)
    for (const RecipeStep& s : w.recipe.steps)
      if (s.kind == RecipeStep::Kind::kScale || s.kind == RecipeStep::Kind::kScaleColumns)
        folds.insert(w.name + recipe_to_text({{}, {s}}));
  Hash128 hash;
  hash.add(backend.isa());
  for (const std::string& k : kernels) hash.add(k);
  for (const std::string& f : folds) hash.add(f);
  for (const StateEntry& s : set.states)
    for (const PlaneEntry& p : s.planes) hash.add(dtype_name(p.dtype));
  return hash.hex();
}

// The plans, and every loop program in them once.
void dump_plans(StageDump& dump, const PlanSet& set) {
  dump.write("planned", "txt", plan_set_text(set));
  std::map<std::string, std::string> programs;  // text -> the call that has it first
  for (const Plan& plan : set.plans)
    for (const KernelCall& call : plan.calls)
      if (const Value* text = call.attrs.find("program"); text && text->is_string())
        programs.try_emplace(text->as_string(), call.label);
  std::string all;
  for (const auto& [text, label] : programs) all += fmt::format("// {}\n{}\n", label, text);
  if (!all.empty()) dump.write("loops", "txt", all);
}

}  // namespace

PlanSet compile_module(Module& module, const ModelConfig& config, const Backend& backend,
                       const CompileOptions& asked) {
  SteadyClock clock;
  Nanos start = clock.now();
  CompileOptions options = asked;
  options.shapes = chosen_shapes(asked, backend);
  // The int8 activations stay: without them the result would be another one.
  if (options.eager && options.passes.empty())
    options.passes = {"quantize-activations", "dead-code"};
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
  // Only now: what is made of step must not be made of its regions.
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
  plan_function(set, step, backend, options, step_guards(options));
  plan_function(set, decode, backend, options, decode_guards(options), "B");
  for (size_t i = 0; i < options.verify.size(); ++i) {
    int k = options.verify[i];
    plan_function(set, *planned[2 + i], backend, options, verify_guards(options, k),
                  fmt::format("{}*B", k + 1));
  }
  for (const Function* fn : others)
    plan_function(set, *fn, backend, options, {function_guard(*fn)});
  set.numerics_id = numerics_id(set, planned, backend);
  check_plan_set(set);
  if (options.dump) dump_plans(*options.dump, set);
  if (log::channel_enabled("recompiles"))
    log::channel("recompiles",
                 fmt::format("compiled {} for {}: {} plans in {:.1f} ms", set.model, set.backend,
                             set.plans.size(), seconds(clock.now() - start) * 1e3));
  return set;
}

}  // namespace tokamak
