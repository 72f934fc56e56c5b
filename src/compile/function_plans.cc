#include "compile/function_plans.h"

#include <algorithm>
#include <set>

#include "base/hash.h"
#include "compile/planner/planner.h"
#include "compile/shapes.h"
#include "graph/region.h"

namespace tokamak {
namespace {

// With draft trees every plan reads the mask, whose width is a symbol of its own.
void emit(PlanSet& set, const Function& fn, const Backend& backend, const CompileOptions& o,
          std::vector<GuardRange> guard, GuardRange mask) {
  if (o.tree_mask) guard.push_back(std::move(mask));
  emit_plan(set, fn, backend, std::move(guard));
  if (o.eager) spread_values(set, set.plans.back());
}

}  // namespace

CompileOptions options_for_mode(CompileOptions options) {
  // The int8 activations stay: without them the result would differ.
  if (options.eager && options.passes.empty())
    options.passes = {"quantize-activations", "dead-code"};
  return options;
}

PlanSet new_plan_set(const Module& module, const ModelConfig& config, const Backend& backend,
                     const CompileOptions& options) {
  PlanSet set;
  set.model = module.name;
  set.backend = backend.name();
  set.vocab = config.vocab;
  set.hidden = config.hidden;
  set.layers = config.layers;
  set.context = options.context > 0 ? options.context : config.context;
  declare_tables(set, module);
  return set;
}

// Padding rows form a sequence of their own.
void plan_step(PlanSet& set, const Function& step, const Backend& backend,
               const CompileOptions& o) {
  for (const ShapeRange& t : shape_ranges(o, {64}, o.max_tokens))
    emit(set, step, backend, o,
         {{"T", t.lo, t.hi, t.multiple, t.pad},
          {"B", 1, std::min(t.hi, o.max_sequences) + (t.pad > 0), 1},
          {"R", 1, std::min(t.hi, o.max_logit_rows), 1}},
         {"M", 1, t.hi, 1});
}

void plan_decode(PlanSet& set, const Function& decode, const Backend& backend,
                 const CompileOptions& o) {
  for (const ShapeRange& b : shape_ranges(o, {1, 8}, std::min(o.max_sequences, o.max_logit_rows))) {
    emit(set, decode, backend, o, {{"B", b.lo, b.hi, b.multiple, b.pad}}, {"M", 1, 1, 1});
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

// Fusion is exact: a region counts as the kernels of its ops.
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

}  // namespace tokamak
