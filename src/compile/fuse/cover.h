#pragma once
// The cheapest way to cover the nodes of a function with regions and single nodes.
#include "compile/fuse/fusion_graph.h"

namespace tokamak {

struct Cover {
  std::vector<size_t> chosen;  // candidates, ascending by first node
  double cost = 0;
  size_t states = 0;
  bool exact = true;  // false: the search was cut to its budget, the result may not be the best
};

// Every node is in exactly one part; a part is a candidate, or a node alone at its `single` cost.
// Costs are in Candidate::cost. The parts can be put in an order in which each comes after what it
// needs. Bounded: about a second of work for any graph.
Cover cheapest_cover(const FusionGraph& graph, const std::vector<Candidate>& candidates,
                     const std::vector<double>& single);

// For each node the part it is in: candidate index, or -1 when it is alone.
std::vector<int> parts_of(const FusionGraph& graph, const std::vector<Candidate>& candidates,
                          const std::vector<size_t>& chosen);
// The parts in an order that respects their dependences, each as its nodes; empty when some depend
// on each other in a cycle, and then `stuck` gets the candidates that wait.
std::vector<std::vector<NodeId>> ordered_parts(const FusionGraph& graph,
                                               const std::vector<Candidate>& candidates,
                                               const std::vector<size_t>& chosen,
                                               std::vector<size_t>* stuck = nullptr);

}  // namespace tokamak
