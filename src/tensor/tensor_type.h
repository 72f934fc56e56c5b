#pragma once
// The type of a tensor in a graph or plan: element type and named, possibly symbolic extents.
#include <string>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/sym.h"

namespace tokamak {

struct Dim {
  std::string
      axis;  // what the extent counts: t (tokens), d (hidden), h (heads), n, k, v (vocabulary) ...
  SymExpr extent;
  bool bound =
      false;  // device-valued: `extent` is an upper bound, the true count exists only on the device
  bool operator==(const Dim&) const = default;
};

struct TensorType {
  DType dtype = DType::kF32;
  std::vector<Dim> dims;  // outermost first

  int rank() const { return static_cast<int>(dims.size()); }
  const SymExpr& extent(int i) const {
    return dims[i < 0 ? dims.size() + static_cast<size_t>(i) : static_cast<size_t>(i)].extent;
  }
  SymExpr elements() const;
  SymExpr bytes() const;     // block types: the last extent must be constant
  std::string text() const;  // "f32[t=T, d=576]", bounded extents as "m<=2*T"
  bool operator==(const TensorType&) const = default;
};

// Parses the text form and advances `pos` past it. Throws Error(kInvalidArgument).
TensorType parse_tensor_type(std::string_view text, size_t& pos);

}  // namespace tokamak
