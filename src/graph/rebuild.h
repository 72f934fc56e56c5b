#pragma once
// Rebuilding a function node by node, which is how most passes work.
#include <functional>
#include <vector>

#include "graph/graph.h"

namespace tokamak {

// Rebuilds a function, inputs first. `map` returns the refs that replace the node's outputs in the
// new function (usually by calling to.add_multi with the given inputs). Nodes that no result needs
// are dropped: results hold the last version of every state, so a write is always needed; a read
// that only orders a write is not. Every write names those reads of the version it replaces that
// remain.
using NodeMap =
    std::function<std::vector<Ref>(Function& to, const Node& node, const std::vector<Ref>& inputs)>;
void rebuild(Module& module, Function& function, const NodeMap& map);

// Adds the node with the given inputs. A write gets the reads that are in `to` as its ordering
// inputs, and loses those it had.
std::vector<Ref> copy_node(Function& to, const Node& node, std::vector<Ref> inputs);

// Per node, whether some result needs it.
std::vector<bool> needed_nodes(const Function& function);

// Drops constants that no function of the module uses.
void drop_unused_constants(Module& module);

}  // namespace tokamak
