#pragma once
// The meaning of a program: row by row, each instruction evaluated by the meaning of the graph op
// of its name. f32 values are rounded once per instruction, wide values are not rounded. Slow.
#include <map>
#include <span>
#include <string>

#include "loop/program.h"
#include "ops/op.h"

namespace tokamak::loop {

// S = float: the definition; double: nothing is rounded. Tensors hold decoded values; outputs of
// type q8a get the values before they are quantised. Throws Error(kOutOfRange) when a tensor is too
// small or an index is beyond its limit.
template <class S>
void evaluate_program(const Program& program,
                      const std::map<std::string, int64_t, std::less<>>& symbols,
                      std::span<const TensorRef<S>> in, std::span<const TensorRef<S>> out);

}  // namespace tokamak::loop
