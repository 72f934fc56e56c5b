#pragma once
// What a call of op "region" computes, as plain data in its attributes: the ops of the region's
// body in order. Values are numbered: the call's inputs first, then the outputs of each step.
#include <cstdint>
#include <string>
#include <vector>

#include "base/value.h"

namespace tokamak {

struct RegionStep {
  std::string op;
  Value attrs;               // of the op
  std::vector<uint32_t> in;  // values
  uint32_t out = 0;          // number of its first output
  uint32_t outputs = 1;
};

struct RegionProgram {
  std::string kind;  // which kind of kernel it was made for
  uint32_t inputs = 0;
  std::vector<RegionStep> steps;
  std::vector<uint32_t> results;  // the values that are the call's outputs
  uint32_t values() const {
    return steps.empty() ? inputs : steps.back().out + steps.back().outputs;
  }
  // The step that makes a value; -1 for inputs.
  int maker(uint32_t value) const;
};

Value region_attrs(const RegionProgram& program);
// Throws Error(kCorrupt) when numbers are out of order or out of range.
RegionProgram parse_region(const Value& attrs, size_t call_inputs, size_t call_outputs);

}  // namespace tokamak
