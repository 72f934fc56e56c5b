#pragma once
// Which launches of many calls run each plan: of those that the backend lists and that take its
// calls, the ones that are predicted to be faster than the calls one by one, fastest first.
#include "backend/backend.h"
#include "compile/fuse/report.h"

namespace tokamak {

// After the plans are made. `report` gets what was considered and may be null. Adds the numeric
// classes of what it chose to the set's numerics_id.
void plan_launches(PlanSet& set, const Backend& backend, const Machine& machine,
                   FusionReport* report);

}  // namespace tokamak
