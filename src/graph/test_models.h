#pragma once
// Small graphs for the tests of this lane.
#include "graph/graph.h"

namespace tokamak {

Type tensor_type(std::string_view text);
Type i32_type(std::string axis, std::string_view extent);

// A decoder of `layers` layers with attention over one state each: functions step.
Module tiny_decoder(int layers, double eps = 1e-5);

// One state, written twice with a read of the first version in between.
Module two_writes();

}  // namespace tokamak
