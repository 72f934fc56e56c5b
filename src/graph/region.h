#pragma once
// Fused regions. A node of op `region` (or `region_write`, when a state is written) computes what
// its body computes: an ordinary function of the same module, named by the attribute `body`. The
// body is the region's meaning and its test oracle; what runs it is a matter of the plan.
//
// The body's inputs are the region's inputs, in order and with exactly their types: weights and
// constants of the model come in as inputs, so that layers share a body. Its results are the
// region's outputs, in order. Bodies do not nest. A body that writes a state has it as its first
// input and its first result; what follows the body's inputs at the node are ordering inputs.
#include <functional>
#include <set>

#include "graph/graph.h"

namespace tokamak {

inline bool is_region(const Node& node) { return node.op->tier == Tier::kRegion; }

// Throws Error(kInvalidArgument) when the module has no such function.
const Function& region_body(const Module& module, const Attrs& attrs);

// The outputs of a region with these inputs; throws Error(kInvalidArgument, "region: ...") when
// they are not the body's.
std::vector<Type> region_types(const Module& module, const OpDef& op, std::span<const Type> in,
                               const Attrs& attrs);

// Inputs of a write of `state` that are not there for their place only.
size_t written_inputs(const Module& module, const OpDef* op, const Attrs& attrs, const Type& state);

// Puts `body` into the module under "fused.<hint>.<hash of its content>", unless it is there.
std::string add_body(Module& module, Function body, std::string_view hint);

// Names of the functions that regions of the module name.
std::set<std::string> body_names(const Module& module);
// Drops bodies made by add_body that no region names any more.
void drop_unused_bodies(Module& module);

// Puts the nodes of their bodies in the place of the regions that `which` picks.
void inline_regions(Module& module, Function& function,
                    const std::function<bool(const Node&)>& which);

}  // namespace tokamak
