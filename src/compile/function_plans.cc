#include "compile/function_plans.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "base/error.h"
#include "compile/autotune.h"
#include "compile/explain/step_shape.h"
#include "compile/fuse/report.h"
#include "compile/planner/launches.h"
#include "compile/shapes.h"
#include "graph/region.h"

namespace tokamak {
namespace {

int64_t most_rows(const std::vector<GuardRange>& guard, int64_t rows_per_sequence) {
  for (const GuardRange& g : guard)
    if (g.symbol == (rows_per_sequence > 0 ? "B" : "T"))
      return g.hi * std::max<int64_t>(rows_per_sequence, 1);
  return 0;
}

// One plan of the function for each guard; `bound`: what T and R are in it, empty when they vary.
void add_requests(std::vector<PlanRequest>& out, const Function& fn, const Guards& guards,
                  const CompileOptions& options, const std::string& bound = {}) {
  const Function* many = fn.module().find_function(many_rows_name(fn.name()));
  for (const std::vector<GuardRange>& guard : guards) {
    out.push_back({&fn, guard, {}});
    if (!bound.empty()) out.back().bound_symbols = {{"T", bound}, {"R", bound}};
    if (many && most_rows(guard, rows_per_sequence(fn.name())) >= options.bf16_rows) {
      out.back().function = many;
      out.back().name = fn.name();
    }
  }
}

// A set with the sizes and tables of the model, without plans.
PlanSet new_plan_set(const Module& module, const ModelConfig& config, const Backend& backend,
                     const CompileOptions& options) {
  PlanSet set;
  set.model = module.name;
  set.backend = backend.name();
  set.vocab = config.vocab;
  bool scores = config.embedding.classifies();
  set.hidden = scores ? std::ssize(config.embedding.labels) : config.vector_size();
  set.layers = config.layers;
  set.context = options.context > 0 ? options.context : config.context;
  declare_tables(set, module);
  return set;
}

std::vector<PlanRequest> plan_requests(const std::vector<Function*>& functions,
                                       const CompileOptions& options) {
  std::vector<PlanRequest> out;
  add_requests(out, *functions[0], step_guards(options), options);
  size_t next = 1;
  if (next < functions.size() && functions[next]->name() == "decode") {
    add_requests(out, *functions[next++], decode_guards(options), options, "B");
    for (int k : options.verify)
      add_requests(out, *functions[next++], verify_guards(options, k), options,
                   fmt::format("{}*B", k + 1));
  }
  for (; next < functions.size(); ++next) {
    const Function& fn = *functions[next];
    if (fn.name() == kExitFunction)
      add_requests(out, fn, exit_guards(options), options, "B");
    else
      add_requests(out, fn, {function_guard(fn)}, options);
  }
  return out;
}

void check_mixed(const CompileOptions& options, const Backend& backend) {
  if (options.bf16_rows == 0)
    fail(ErrorCode::kUnsupported, "--activations mixed needs a CPU with AMX; {}: use auto",
         backend.name() == "cpu" ? fmt::format("this one is {}", backend.isa())
                                 : fmt::format("the backend is {}", backend.name()));
  if (options.shapes != Shapes::kAuto)
    fail(ErrorCode::kInvalidArgument,
         "--activations mixed needs --shapes auto: with --shapes {} one plan runs steps of few and "
         "of many rows",
         shapes_name(options.shapes));
}

}  // namespace

CompileOptions options_for(CompileOptions options, const Backend& backend) {
  options.pads_decode_above = backend.pads_decode_above();
  bool mixed = options.activations == "mixed";
  if (mixed && options.bf16_rows == 0) options.bf16_rows = backend.bf16_rows();
  if (mixed) check_mixed(options, backend);
  if (!mixed) options.bf16_rows = 0;
  // Absorbed latent attention, int8 activations and narrow storage stay: without them the result
  // would differ.
  if (options.eager && options.passes.empty())
    options.passes = {"absorb-latent", "quantize-activations", "choose-storage", "dead-code"};
  return options;
}

std::vector<Function*> written_functions(Module& module) {
  std::vector<Function*> out = {module.find_function("step")};
  if (!out[0])
    fail(ErrorCode::kInvalidArgument, "module {} has no function step, so it cannot be compiled",
         module.name);
  std::set<std::string> bodies = body_names(module);
  for (const auto& fn : module.functions)
    if (fn.get() != out[0] && !bodies.contains(fn->name())) out.push_back(fn.get());
  return out;
}

std::vector<Function*> specialize_step(Module& module, const CompileOptions& options) {
  if (module.states.empty()) return {};
  std::vector<Function*> out = {&specialize_decode(module)};
  for (int k : options.verify) out.push_back(&specialize_verify(module, k));
  return out;
}

std::string many_rows_name(std::string_view function) { return fmt::format("{}_many", function); }

std::vector<Function*> add_many_rows(Module& module, const std::vector<Function*>& functions,
                                     const PassContext& context) {
  std::vector<Function*> out;
  if (context.options.bf16_rows == 0) return out;
  for (const Function* fn : functions) {
    if (fn->name() != "step" && rows_per_sequence(fn->name()) <= 0) continue;
    out.push_back(&specialize(module, fn->name(), many_rows_name(fn->name()), {}, {}));
    round_to_bf16(module, *out.back(), context);
  }
  return out;
}

PlanSet plan_module(const Module& module, const std::vector<Function*>& functions,
                    const ModelConfig& config, const Backend& backend,
                    const CompileOptions& options) {
  PlanSet set = new_plan_set(module, config, backend, options);
  const Machine machine = compile_machine(options);
  std::vector<PlanRequest> requests = plan_requests(functions, options);
  if (options.autotune) tune_requests(requests, set, backend, machine, options);
  plan_functions(set, requests, backend, machine, options.fusion.get());
  if (options.fusion) {
    options.fusion->plan_functions.clear();
    for (const PlanRequest& r : requests)
      options.fusion->plan_functions.push_back(r.function->name());
  }
  if (options.eager)
    spread_values(set);
  else
    plan_launches(set, backend, machine, options.fusion.get());
  check_plan_set(set);
  return set;
}

}  // namespace tokamak
