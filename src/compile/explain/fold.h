#pragma once
// Layers that are equal are shown once. A layer is known by the names of its weights: "blk.12.".
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

// Which layer each call belongs to: by its name and weights, or by what it reads; -1: none.
std::vector<int> call_layers(const PlanSet& set, const Plan& plan);

// The function for people: what comes before the layers, one layer of each kind, what comes behind.
// [{"title", "count", "nodes": [{"op", "name", "type", "from": [local index or text], "weights",
// "why", "body"}]}]
Value folded_graph(const Function& function);

}  // namespace tokamak
