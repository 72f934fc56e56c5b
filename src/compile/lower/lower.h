#pragma once
// Graph -> Loop IR: the body of a fused region as one program over rows x columns.
#include <optional>
#include <string>

#include "graph/graph.h"
#include "loop/program.h"

namespace tokamak {

struct LoweredRegion {
  std::optional<loop::Program> program;
  std::string reason;  // why there is none, for people: "%3 (matmul): not a row-wise op"
  explicit operator bool() const { return program.has_value(); }
};

// Inputs and outputs of the program are the function's inputs and results, in their order. Takes
// element-wise ops, compare/select/cast, reductions and norms over the last axis, softmax, quantize
// as a result, reshape, transpose, slice, broadcast, iota, and gather from an input; constants of
// one element. The first space (the operand of a reduction, or the shape of a result) in which all
// indices come out linear is taken. Never throws for a body it cannot lower. Cost: a few walks
// over the body.
LoweredRegion lower_region(const Function& body);

// Whether Loop IR has a form of the op at all (OpDef::loop); shapes and uses may still keep it from
// being lowered.
bool has_loop_form(const OpDef& op);

}  // namespace tokamak
