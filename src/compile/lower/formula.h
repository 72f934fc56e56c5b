#pragma once
// The formulas of LoopForm (ops/op.h) as expressions.
#include <string>
#include <string_view>
#include <vector>

#include "loop/program.h"

namespace tokamak {

struct Formula {
  struct Term {
    enum class Kind : uint8_t { kCall, kOperand, kColumns, kNumber, kAttribute };
    Kind kind = Kind::kCall;
    loop::Op op = loop::Op::kConst;  // kCall
    std::vector<size_t> args = {};   // kCall: terms
    size_t operand = 0;              // kOperand
    double number = 0;               // kNumber
    std::string attribute = {};      // kAttribute
  };
  std::vector<Term> terms;
  size_t root = 0;  // always a call
};

// Operands from `inputs` on are absent: an add or mul with one of them is its other operand.
// Throws Error(kInvalidArgument) with the text.
Formula parse_formula(std::string_view text, size_t inputs);

}  // namespace tokamak
