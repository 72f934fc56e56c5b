#pragma once
// Kernels that run many calls of a plan at once (the layers of a decoder, a whole decode step), as
// data. Can be listed without the device. The planner decides for each plan which of them run it
// (compile/planner/launches.h); an executable runs what the plan names.
#include <string>
#include <vector>

#include "plan/machine.h"
#include "plan/plan.h"

namespace tokamak {

// The calls of a plan that a launch takes.
struct LaunchMatch {
  uint32_t first = 0, calls = 0;
  std::string refused;  // why it takes none; empty: it does
};

struct LaunchDesc {
  std::string name;  // "cuda.decode_stream"
  int abi = 1;
  std::string numeric_class;
  // What a step has to be besides within the plan's guard, for people. Of two launches with the
  // same text a plan holds the faster one.
  std::string steps;
  std::vector<GuardRange> guard;  // must hold for every shape of the plan: B <= 8
  std::string needs = {};         // as KernelDesc::needs
  LaunchMatch (*match)(const LaunchDesc& launch, const PlanSet& set, const Plan& plan) = nullptr;
  // Predicted seconds of the calls that match() found, at the largest shape of the plan.
  double (*cost)(const LaunchDesc& launch, const PlanSet& set, const Plan& plan,
                 const Machine& machine) = nullptr;
};

}  // namespace tokamak
