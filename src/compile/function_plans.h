#pragma once
// Which functions of a model get plans, for which shapes and under which guards.
#include <string>
#include <string_view>
#include <vector>

#include "compile/pass.h"
#include "compile/planner/planner.h"

namespace tokamak {

// The options as the mode and the backend need them.
CompileOptions options_for(CompileOptions options, const Backend& backend);

// The functions as they are written, without bodies of regions: step, then the others (an encoder,
// a pipeline stage). Throws Error(kInvalidArgument) without step.
std::vector<Function*> written_functions(Module& module);
// decode, and verify<k> for each k of the options. None for an encoder, which has no next token.
std::vector<Function*> specialize_step(Module& module, const CompileOptions& options);

// --activations mixed: adds to the module, for step and for what is specialised from it, a function
// for plans of many rows (many_rows_name), and returns these.
std::vector<Function*> add_many_rows(Module& module, const std::vector<Function*>& functions,
                                     const PassContext& context);
std::string many_rows_name(std::string_view function);  // "step_many"

// The plans of step, of what is specialised from it, and of the other functions, in this order;
// checked.
PlanSet plan_module(const Module& module, const std::vector<Function*>& functions,
                    const ModelConfig& config, const Backend& backend,
                    const CompileOptions& options);

}  // namespace tokamak
