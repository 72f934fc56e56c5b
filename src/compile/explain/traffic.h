#pragma once
// Bytes moved and operations executed by the calls of a plan, at one shape. Computed twice:
// predicted from types (traffic.cc), and counted by evaluating the call's ops over traced memory
// (traffic_count.cc). Every distinct byte of an argument counts once; block tables do not count.
#include <optional>
#include <vector>

#include "compile/explain/step_shape.h"
#include "loop/program.h"
#include "ops/op.h"

namespace tokamak {

struct ArgTraffic {
  double read = 0, written = 0;
  bool operator==(const ArgTraffic&) const = default;
};

// One entry per argument; a repeated argument counts only at its first position.
struct CallTraffic {
  std::vector<ArgTraffic> in, out;
  double bytes() const;
};

// The context of a step: everything that extents and indices need.
struct TrafficSite {
  const PlanSet& set;
  const StepInputs& step;
  const SymbolMap& symbols;
};

// Operations by execution unit: integer dot products, float dot products, element-wise.
struct CallWork {
  double i8 = 0, f32 = 0, vector = 0;
  double total() const { return i8 + f32 + vector; }
};

CallTraffic predict_traffic(const TrafficSite& site, const KernelCall& call);
CallWork predict_work(const TrafficSite& site, const KernelCall& call);
// nullopt if an op of the call cannot be traced. Costs about 5 ns per operation.
std::optional<CallTraffic> count_traffic(const TrafficSite& site, const KernelCall& call);

// --- What a call computes, op by op: one step, or the steps of a region. ---
struct CallStep {
  const OpDef* op;
  const Value* attrs;
  std::vector<uint32_t> in;  // values; the call's inputs first
  uint32_t out;              // its first output
};
struct CallBody {
  std::shared_ptr<const Value> attrs;  // of the call; steps point into it
  std::vector<CallStep> steps;
  std::shared_ptr<const loop::Program> program;  // instead of steps
  std::vector<Type> types;                       // of all values, inputs first
  std::vector<uint32_t> results;                 // values that are the call's outputs
};
CallBody call_body(const PlanSet& set, const KernelCall& call);

// The index of the first input with the same memory, or -1.
int first_same(const std::vector<CallArg>& args, size_t index);

}  // namespace tokamak
