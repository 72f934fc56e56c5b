// The offline path, top to bottom. import is compile/import, models are compile/models, passes are
// compile/pipeline.cc, plans are compile/planner.
#include "compile/compiler.h"

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "compile/pass.h"
#include "compile/planner/planner.h"

namespace tokamak {
namespace {

// Small steps get plans of their own: their arena is small enough to stay in cache.
std::vector<int64_t> bucket_bounds(std::vector<int64_t> bounds, int64_t max) {
  std::erase_if(bounds, [&](int64_t b) { return b >= max; });
  bounds.push_back(max);
  return bounds;
}

// With draft trees every plan reads the mask, whose width is a symbol of its own.
void emit(PlanSet& set, const Function& fn, const Backend& backend, const CompileOptions& o,
          std::vector<GuardRange> guard, GuardRange mask) {
  if (o.tree_mask) guard.push_back(std::move(mask));
  emit_plan(set, fn, backend, std::move(guard));
}

void plan_step(PlanSet& set, const Function& step, const Backend& backend,
               const CompileOptions& o) {
  for (int64_t t : bucket_bounds({64}, o.max_tokens))
    emit(set, step, backend, o,
         {{"T", 1, t, 1},
          {"B", 1, std::min(t, o.max_sequences), 1},
          {"R", 1, std::min(t, o.max_logit_rows), 1}},
         {"M", 1, t, 1});
}

void plan_decode(PlanSet& set, const Function& decode, const Backend& backend,
                 const CompileOptions& o) {
  for (int64_t b : bucket_bounds({1, 8}, std::min(o.max_sequences, o.max_logit_rows))) {
    emit(set, decode, backend, o, {{"B", 1, b, 1}}, {"M", 1, 1, 1});
    set.plans.back().bound_symbols = {{"T", "B"}, {"R", "B"}};
  }
}

void plan_verify(PlanSet& set, const Function& verify, int k, const Backend& backend,
                 const CompileOptions& o) {
  int64_t rows = k + 1;
  int64_t most = std::min(o.max_sequences, std::min(o.max_logit_rows, o.max_tokens) / rows);
  emit(set, verify, backend, o, {{"B", 1, most, 1}}, {"M", rows, rows, 1});
  std::string text = fmt::format("{}*B", rows);
  set.plans.back().bound_symbols = {{"T", text}, {"R", text}};
}

// Blocks of KV may be shared only between plans that round in the same places.
std::string numerics_id(const PlanSet& set, const Backend& backend) {
  Hash128 hash;
  hash.add(backend.isa());
  for (const KernelEntry& k : set.kernels)
    hash.add(fmt::format("{}/{}/{}", k.name, k.abi, k.numeric_class));
  for (const StateEntry& s : set.states)
    for (const PlaneEntry& p : s.planes) hash.add(dtype_name(p.dtype));
  return hash.hex();
}

}  // namespace

PlanSet compile_module(Module& module, const ModelConfig& config, const Backend& backend,
                       const CompileOptions& options) {
  Function& step = *module.find_function("step");
  run_passes(module, step, {backend, options});
  Function& decode = specialize_decode(module);
  run_derived_passes(module, decode, {backend, options});

  PlanSet set;
  set.model = module.name;
  set.backend = backend.name();
  set.vocab = config.vocab;
  set.hidden = config.hidden;
  set.layers = config.layers;
  set.context = options.context > 0 ? options.context : config.context;
  declare_tables(set, module);
  plan_step(set, step, backend, options);
  plan_decode(set, decode, backend, options);
  for (int k : options.verify) {
    Function& verify = specialize_verify(module, k);
    run_derived_passes(module, verify, {backend, options});
    plan_verify(set, verify, k, backend, options);
  }
  set.numerics_id = numerics_id(set, backend);
  check_plan_set(set);
  return set;
}

}  // namespace tokamak
