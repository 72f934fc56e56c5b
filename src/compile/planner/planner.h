#pragma once
// Graph -> Plan: which kernel computes each node, where each value lives, for which shapes.
#include <map>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "compile/compiler.h"

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

// planner/emit.cc: the first kernel of the backend's list that takes the node; nullptr, or Error(
// kUnsupported) naming the op, when there is none.
const KernelDesc* find_kernel(const Function& fn, const Node& node, const Backend& backend);
const KernelDesc& select_kernel(const Function& fn, const Node& node, const Backend& backend);

// planner/emit.cc: the symbols, groups and states of a module as the set's tables.
void declare_tables(PlanSet& set, const Module& module);

// planner/emit.cc: appends the plan of `function` under `guard` to the set, adding the weights,
// kernels and inputs it uses. Throws Error(kUnsupported) naming the op when the backend has no
// kernel for a node.
void emit_plan(PlanSet& set, const Function& function, const Backend& backend,
               std::vector<GuardRange> guard);

}  // namespace tokamak
