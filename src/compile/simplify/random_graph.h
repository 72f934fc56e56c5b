#pragma once
// Random graphs that can be run, for the differential tests: single ops, idioms in many spellings
// (what the rules look for), and reads and writes of states.
#include "graph/graph.h"

namespace tokamak {

Module random_graph(uint64_t seed);

}  // namespace tokamak
