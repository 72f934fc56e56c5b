#pragma once
// A PlanSet without calls, for engine tests on the null backend: two KV groups (all tokens, and a
// window), a vocabulary, and the functions the engine may name.
#include "backend/null/null_backend.h"
#include "engine/config.h"
#include "plan/plan.h"

namespace tokamak {

inline PlanSet fake_plan_set(int64_t vocab = 1000, int64_t window = 24, int64_t context = 512) {
  PlanSet p;
  p.model = "fake";
  p.backend = "null";
  p.vocab = vocab;
  p.hidden = 16;
  p.layers = 2;
  p.context = context;
  p.symbols = {{"T", 1, 64, 1}, {"B", 1, 16, 1}, {"R", 1, 32, 1}};
  p.groups = {{"full", 0, 8}, {"window", window, 4}};
  PlaneEntry plane{"k", DType::kF16, {2, 8}, 32};
  p.states = {{"kv.0", 0, false, {plane}}, {"kv.1", 1, false, {plane}}};
  WeightEntry weight;
  weight.name = "w";
  weight.dims = {1000, 1000};
  p.weights.push_back(weight);
  for (const char* function : {"step", "decode", "verify3"}) {
    Plan plan;
    plan.function = function;
    plan.guard = {{"B", 1, 16, 1}};
    p.plans.push_back(plan);
  }
  return p;
}

inline std::unique_ptr<Executable> null_for(const PlanSet& plans, const EngineConfig& config,
                                            const NullOptions& options) {
  LoadOptions load;
  load.blocks = config.blocks;
  load.max_rows = config.max_num_seqs;
  return make_null_executable(plans, load, options);
}

}  // namespace tokamak
