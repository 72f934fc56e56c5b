#pragma once
// Lists of different lengths that ops take as one tensor with the places where each list starts.
#include "base/rng.h"
#include "graph/evaluate.h"

namespace tokamak {

// Gives the inputs that are lists, or starts of lists, of one of the first `nodes` nodes values
// that the op can take: tokens of the vocabulary, and starts in order.
void make_lists(const Function& fn, size_t nodes, Rng& rng, EvalInputs<double>& inputs);

}  // namespace tokamak
