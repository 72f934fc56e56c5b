#pragma once
// Fused regions. A node of op `region` (or `region_write`, when a state is written) computes what
// its body computes: an ordinary function of the same module, named by the attribute `body`. The
// body is the region's meaning and its test oracle; the plan decides which kernel runs it.
//
// The body's inputs are the region's inputs, in order and with exactly their types: weights and
// constants of the model come in as inputs, so that layers share a body. Its results are the
// region's outputs, in order. Bodies do not nest. A body that writes a state has it as its first
// input and its first result; inputs of the node after those of the body are ordering inputs.
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

// The number of inputs of a write of `state` without its ordering inputs; SIZE_MAX: all.
size_t written_inputs(const Module& module, const OpDef* op, const Attrs& attrs, const Type& state);

// Puts `body` into the module under "fused.<hint>.<hash of its content>", unless it is there.
std::string add_body(Module& module, Function body, std::string_view hint);

// Names of all functions that are bodies of regions of the module.
std::set<std::string> body_names(const Module& module);
// Drops bodies made by add_body that no region uses.
void drop_unused_bodies(Module& module);

// Replaces the regions that `which` selects by the nodes of their bodies.
void inline_regions(Module& module, Function& function,
                    const std::function<bool(const Node&)>& which);

}  // namespace tokamak
