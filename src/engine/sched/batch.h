#pragma once
// Turns a schedule into the inputs of a step: ids, positions, slots, tables, rows to sample.
#include "engine/config.h"
#include "engine/kv/kv_cache.h"
#include "engine/sched/pending_step.h"

namespace tokamak {

// Reserves room for the largest tables, which grow by one column at a time.
void prepare_inputs(const EngineConfig& config, StepInputs& inputs);

// Fills step.inputs from step.entries (and their first_out). No allocation once the vectors have
// grown, except the token history of a sequence with penalties when it takes a row.
void build_inputs(const EngineConfig& config, const KvCache& kv, PendingStep& step);

}  // namespace tokamak
