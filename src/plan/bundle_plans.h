#pragma once
// A PlanSet as bytes: what bundles and the compile cache hold. docs/bundle.md has the layout.
#include <span>
#include <string>

#include "plan/plan.h"

namespace tokamak {

std::string serialize_plans(const PlanSet& set);

// Throws Error(kCorrupt) on bytes that are no PlanSet, Error(kUnsupported) on another version.
// Takes memory in proportion to the bytes, whatever counts they claim. Checks the form only:
// check_plan_set() checks the sense.
PlanSet parse_plans(std::span<const std::byte> bytes);

}  // namespace tokamak
