#pragma once
// Numbers for the inputs of a graph: random ones, and those at which a comparison in the graph may
// change, from the numbers in its text.
#include <set>
#include <vector>

#include "graph/evaluate.h"
#include "tensor/dtype.h"

namespace tokamak {

double random_value(Rng& rng, Values kind);

// The numbers, those on both sides of them, and what gives one of them when it is squared,
// multiplied or added.
std::vector<double> combined_numbers(const std::set<double>& numbers);

// What an elementary function takes to one of them (asin, log, 1/x, the inverse of erf ...), with
// the neighbours in float32: one of these is often exact.
std::vector<double> inverted_numbers(const std::set<double>& numbers);

float round_to(DType dtype, double value);  // f32, f16 or bf16

}  // namespace tokamak
