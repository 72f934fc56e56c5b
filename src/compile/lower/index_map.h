#pragma once
// Which element of a value a point of the iteration space reads, while a body is lowered.
#include <vector>

#include "loop/program.h"

namespace tokamak {

// offset + sum of coefficients times variables; the variables are the row axes, the column and the
// row by index, in this order. As the position in a value's row-major elements, or as the place on
// one axis.
struct LinearIndex {
  std::vector<SymExpr> terms;
  SymExpr offset;
  bool operator==(const LinearIndex&) const = default;
};

struct IndexMap {
  LinearIndex index;
  int32_t by = -1;  // the instruction whose value is the row, -1: none
  SymExpr limit;
  bool operator==(const IndexMap&) const = default;
};

class IndexSpace {
 public:
  IndexSpace(std::vector<SymExpr> rows, SymExpr columns);

  const std::vector<SymExpr>& rows() const { return rows_; }
  const SymExpr& columns() const { return columns_; }
  size_t column() const { return rows_.size(); }
  size_t by() const { return rows_.size() + 1; }

  IndexMap whole() const;     // every point its own element
  IndexMap per_row() const;   // every row its own element
  IndexMap constant() const;  // element 0
  LinearIndex zero() const;
  LinearIndex variable(size_t v) const;
  bool depends(const LinearIndex& index, size_t variable) const;

  // The place on each axis of a value with these extents. Throws Error(kUnsupported) when that is
  // not linear: an axis would have to be split at run time.
  std::vector<LinearIndex> split(const IndexMap& map, const std::vector<Dim>& dims) const;
  // The inverse; keeps the row by index of `map`.
  IndexMap join(const IndexMap& map, const std::vector<LinearIndex>& axes,
                const std::vector<Dim>& dims) const;
  // The map of an operand that is broadcast (trailing-aligned) to the value.
  IndexMap broadcast(const IndexMap& map, const std::vector<Dim>& from,
                     const std::vector<Dim>& operand) const;

  SymExpr expression(const IndexMap& map) const;  // as the program's text has it

 private:
  SymExpr extent(size_t variable, const IndexMap& map) const;

  std::vector<SymExpr> rows_;
  SymExpr columns_;
};

}  // namespace tokamak
