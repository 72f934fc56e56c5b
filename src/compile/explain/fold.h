#pragma once
// Equal layers are shown once. A layer is recognised by the names of its weights: "blk.12.".
#include <string>
#include <string_view>
#include <vector>

#include "base/value.h"
#include "graph/graph.h"
#include "plan/plan.h"

namespace tokamak {

int layer_of(std::string_view name);                       // -1: the name has none
std::string without_layer(std::string_view name);          // "blk.12.attn_q" -> "blk.*.attn_q"
std::string layer_ranges(const std::vector<int>& layers);  // ascending; "0-4, 6-29"; "" for -1

// The layer of each call: from its name and weights, or from its inputs; -1: none.
std::vector<int> call_layers(const PlanSet& set, const Plan& plan);

// A readable summary of the function: what precedes the layers, one layer of each kind, what
// follows.
// [{"title", "count", "nodes": [{"op", "name", "type", "from": [local index or text], "weights",
// "why", "body"}]}]
Value folded_graph(const Function& function);

}  // namespace tokamak
