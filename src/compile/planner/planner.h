#pragma once
// Graph -> Plan: which kernel computes each node, where each value lives, for which shapes.
#include <map>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "compile/compiler.h"
#include "plan/machine.h"

namespace tokamak {

// planner/memory.cc: offsets for values with lifetimes. Two values whose lifetimes overlap never
// overlap in memory. The same lifetimes give the same offsets on every machine.
struct Lifetime {
  uint64_t bytes;
  uint32_t first, last;  // calls, inclusive
};
struct Packing {
  std::vector<uint64_t> offsets;
  uint64_t peak = 0, lower_bound = 0;
  std::string method;  // of planner/pack.h
};
constexpr uint64_t kArenaAlignment = 64;
Packing pack_arena(std::span<const Lifetime> values);

// planner/emit.cc: the symbols, groups and states of a module as the set's tables.
void declare_tables(PlanSet& set, const Module& module);

// One plan: a function for a range of shapes.
struct PlanRequest {
  const Function* function;
  std::vector<GuardRange> guard;
  std::vector<std::pair<std::string, std::string>> bound_symbols = {};
  // Kernels by KernelChoice::group, or kOpByOp, to be taken instead of the one with the least
  // predicted time: what compile/autotune.h has measured.
  std::map<std::string, std::string> forced = {};
  // What the plan computes; empty: the function. Trials, and functions for many rows, differ.
  std::string name = {};
  const std::string& plan_function() const { return name.empty() ? function->name() : name; }
};

// planner/emit.cc: appends a plan for each request to the set, adding the weights, kernels, regions
// and inputs they use, and sets its numerics_id. Kernels are chosen by predicted time on the
// machine (planner/choose.h); `report` gets the choices and may be null. Throws Error(kUnsupported)
// naming the op when the backend has no kernel for a node.
void plan_functions(PlanSet& set, const std::vector<PlanRequest>& requests, const Backend& backend,
                    const Machine& machine, FusionReport* report = nullptr);

// The machine that the options name; without one the built-in description.
Machine compile_machine(const CompileOptions& options);

}  // namespace tokamak
