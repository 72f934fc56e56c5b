#pragma once
// The calls of a plan with their costs; identical calls in several layers share a row.
#include "compile/explain/explain.h"

namespace tokamak {

struct CallTable {
  Value kernels, calls, totals;
};
CallTable call_table(const ExplainRequest& request, size_t plan);

// Bytes reserved for an argument in the arena: its size at the guard's upper bounds.
uint64_t planned_bytes(const PlanSet& set, const Plan& plan, const CallArg& arg);

}  // namespace tokamak
