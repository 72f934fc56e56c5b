#pragma once
// How far each result of a computation may be off through rounding, measured from that result's own
// inputs: the computation is repeated with every value of every node changed by a relative `delta`
// in a random direction, and the largest change of each result is kept. A value that does not reach
// a result (a masked one, however large) does not widen its bound.
#include <functional>
#include <vector>

#include "graph/evaluate.h"

namespace tokamak {

struct Spread {
  std::vector<std::vector<double>> values;  // without any change
  // Largest change. Infinite where a change decides whether the value is finite.
  std::vector<std::vector<double>> by;
};

// Runs the computation with the visitor and returns its results.
using SpreadRunner = std::function<std::vector<std::vector<double>>(const EvalVisitor<double>&)>;

// Integers keep the values they have without changes, so that comparisons decide alike in all runs.
// Calls `run` 1 + samples times; it must visit the same nodes in the same order each time. Throws
// what `run` throws. `weight` says how many times `delta` the values of a node are off; null: 1.
Spread measure_spread(const SpreadRunner& run, double delta, int samples, uint64_t seed,
                      const std::function<double(const Node&)>& weight = nullptr);

}  // namespace tokamak
