#pragma once
// The plans of each function of a model: which shapes get one, under which guards, and what they
// have in common.
#include <string>
#include <vector>

#include "compile/compiler.h"

namespace tokamak {

// What the eager mode leaves of the passes.
CompileOptions options_for_mode(CompileOptions options);

// A set with the sizes and tables of the model, without plans.
PlanSet new_plan_set(const Module& module, const ModelConfig& config, const Backend& backend,
                     const CompileOptions& options);
void plan_step(PlanSet& set, const Function& step, const Backend& backend,
               const CompileOptions& options);
void plan_decode(PlanSet& set, const Function& decode, const Backend& backend,
                 const CompileOptions& options);
void plan_verify(PlanSet& set, const Function& verify, int k, const Backend& backend,
                 const CompileOptions& options);

// Names how the plans round: KV blocks may be shared only between plans with the same id.
std::string numerics_id(const PlanSet& set, const std::vector<Function*>& functions,
                        const Backend& backend);

}  // namespace tokamak
