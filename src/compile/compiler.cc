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

// With draft trees every plan reads the mask, whose width is a symbol of its own.
void request(std::vector<PlanRequest>& out, const Function& fn, const CompileOptions& o,
             std::vector<GuardRange> guard, GuardRange mask,
             std::vector<std::pair<std::string, std::string>> bound = {}) {
  if (o.tree_mask) guard.push_back(std::move(mask));
  out.push_back({&fn, std::move(guard), std::move(bound)});
}

// Rows of padding are a sequence of their own.
void request_step(std::vector<PlanRequest>& out, const Function& step, const CompileOptions& o) {
  for (const ShapeRange& t : shape_ranges(o, {64}, o.max_tokens))
    request(out, step, o,
            {{"T", t.lo, t.hi, t.multiple, t.pad},
             {"B", 1, std::min(t.hi, o.max_sequences) + (t.pad > 0), 1},
             {"R", 1, std::min(t.hi, o.max_logit_rows), 1}},
            {"M", 1, t.hi, 1});
}

void request_decode(std::vector<PlanRequest>& out, const Function& decode,
                    const CompileOptions& o) {
  for (const ShapeRange& b : shape_ranges(o, {1, 8}, std::min(o.max_sequences, o.max_logit_rows)))
    request(out, decode, o, {{"B", b.lo, b.hi, b.multiple, b.pad}}, {"M", 1, 1, 1},
            {{"T", "B"}, {"R", "B"}});
}

void request_verify(std::vector<PlanRequest>& out, const Function& verify, int k,
                    const CompileOptions& o) {
  int64_t rows = k + 1;
  int64_t most = std::min(o.max_sequences, std::min(o.max_logit_rows, o.max_tokens) / rows);
  std::string text = fmt::format("{}*B", rows);
  request(out, verify, o, {{"B", 1, most, 1}}, {"M", rows, rows, 1}, {{"T", text}, {"R", text}});
}

}  // namespace

PlanSet compile_module(Module& module, const ModelConfig& config, const Backend& backend,
                       const CompileOptions& asked) {
  SteadyClock clock;
  Nanos start = clock.now();
  CompileOptions options = asked;
  // Int8 activations and narrow storage stay: without them the result would be another one.
  if (options.eager && options.passes.empty())
    options.passes = {"quantize-activations", "choose-storage", "dead-code"};
  if (options.dump) options.dump->write("captured", "tkg", print_module(module));
  Function& step = *module.find_function("step");
  run_general_passes(module, step, {backend, options});
  Function& decode = specialize_decode(module);
  run_derived_passes(module, decode, {backend, options});
  std::vector<Function*> planned = {&step, &decode};
  for (int k : options.verify) {
    planned.push_back(&specialize_verify(module, k));
    run_derived_passes(module, *planned.back(), {backend, options});
  }
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
  request_step(requests, step, options);
  request_decode(requests, decode, options);
  for (size_t i = 0; i < options.verify.size(); ++i)
    request_verify(requests, *planned[2 + i], options.verify[i], options);
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
