#pragma once
// Numbers for the inputs of a graph: random ones, and those at which a comparison in the graph may
// change, from the numbers in its text.
#include <set>
#include <vector>

#include "graph/evaluate.h"
#include "tensor/dtype.h"

namespace tokamak {

double random_value(Rng& rng, Values kind);

// The numbers, their neighbours on both sides, and numbers whose squares, products or sums are one
// of them.
std::vector<double> combined_numbers(const std::set<double>& numbers);

// Numbers that an elementary function maps to one of them (by asin, log, 1/x, the inverse of erf
// ...), with their neighbours in float32: one of these is often mapped exactly.
std::vector<double> inverted_numbers(const std::set<double>& numbers);

float round_to(DType dtype, double value);  // f32, f16 or bf16

}  // namespace tokamak
