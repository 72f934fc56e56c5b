#pragma once
// A fused region as a kernel sees it: Loop IR, the ops that Loop IR cannot express (anchors), Loop
// IR. Made once, when a plan is emitted (compile/lower/region.h); never changed afterwards.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/value.h"
#include "loop/program.h"
#include "ops/op.h"

namespace tokamak {

// One step of a region: a loop program, or an anchor (a matrix product, a rotation, a write of a
// state) by the name of its op.
struct RegionPiece {
  std::shared_ptr<const loop::Program> program;  // null: an anchor
  std::string op;                                // of an anchor
  Value attrs;                                   // of an anchor
  // Values of the region: what the program's inputs and outputs, or the anchor's operands and
  // results, are.
  std::vector<uint32_t> in, out;
  bool is_anchor() const { return !program; }
};

// Values are numbered: first the inputs of the call, then what the pieces produce, in order. Pieces
// are in an order in which each value is produced before it is used. Types of states and views have
// no name: the call's arguments say which they are.
struct Region {
  uint32_t inputs = 0;
  std::vector<Type> values;  // the type of every value
  std::vector<RegionPiece> pieces;
  std::vector<uint32_t> results;  // the values that are the outputs of the call

  int producer(uint32_t value) const;  // piece that produces a value; -1: an input
  bool is_result(uint32_t value) const;
  // Loop IR alone: exactly one piece, a program whose inputs and outputs are the call's, in order.
  const loop::Program* whole_program() const;
};

// Throws Error(kCorrupt, "region: ...") when numbers are out of order or out of range, when a
// program's parameters are not of the values' types, or when the call has other numbers of
// arguments: as many outputs as the region has results, at least as many inputs (the rest only
// orders it).
void check_region(const Region& region, size_t call_inputs, size_t call_outputs);
std::string region_text(const Region& region);  // for dumps

}  // namespace tokamak
