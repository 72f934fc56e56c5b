#pragma once
// The fusion planner: which nodes of a function one kernel runs together. It knows kernels only by
// their descriptions (plan/kernel_desc.h). docs/fusion.md explains the choice.
#include "compile/fuse/cost.h"
#include "compile/fuse/cover.h"
#include "compile/fuse/report.h"
#include "compile/pass.h"

namespace tokamak {

// What was decided for one function, before anything is changed.
struct FusionPlan {
  std::vector<Candidate> candidates;
  Cover cover;
};
FusionPlan plan_fusion(const FusionGraph& graph, const CostModel& cost, const KernelSet& kernels);

// Replaces the chosen groups by regions. Returns their bodies, in the order of Cover::chosen.
std::vector<std::string> apply_fusion(Module& module, Function& function, const FusionGraph& graph,
                                      const FusionPlan& plan);

// --- why_not.cc: regions, totals and unfused edges of the function, added to `report`.
void report_fusion(const FusionGraph& graph, const CostModel& cost, const KernelSet& kernels,
                   const FusionPlan& plan, FusionReport& report);

}  // namespace tokamak
