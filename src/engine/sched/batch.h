#pragma once
// A schedule as the backend wants it: ids, positions, slots, tables, rows to sample.
#include "engine/config.h"
#include "engine/kv/kv_cache.h"
#include "engine/sched/step_plan.h"

namespace tokamak {

// Room for the largest tables: they grow by a column at a time.
void prepare_inputs(const EngineConfig& config, StepInputs& inputs);

// Fills step.inputs from step.entries (and their first_out). No allocation once the vectors have
// grown, except the token history of a sequence with penalties when it takes a row.
void build_inputs(const EngineConfig& config, const KvCache& kv, Step& step);

}  // namespace tokamak
