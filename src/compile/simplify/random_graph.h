#pragma once
// Random graphs for the differential tests: single ops, idioms in many spellings that the rules
// recognise, and reads and writes of states.
#include "graph/graph.h"

namespace tokamak {

Module random_graph(uint64_t seed);

}  // namespace tokamak
