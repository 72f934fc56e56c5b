#pragma once
// The extents and strides of a program for given symbol values, checked against the actual tensors.
// Every executor needs this before it accesses memory.
#include <span>

#include "loop/program.h"

namespace tokamak::loop {

// Element of a tensor for row indices i and column j: offset + sum rows[k] * i[k] + column * j, and
// + by * g with 0 <= g < limit for rows by index. All coefficients are >= 0.
struct BoundAccess {
  int64_t rows[kMaxRowAxes] = {};
  int64_t column = 0, by = 0, offset = 0, limit = 0;
};

// Owned by an executor, used by one thread at a time. The constructor compiles the expressions;
// bind() does not allocate.
class Bounds {
 public:
  Bounds() = default;
  // Symbols outside `symbol_order` throw Error(kInvalidArgument).
  Bounds(const Program& program, std::span<const std::string> symbol_order);

  // Takes the sizes of the tensors. Throws Error(kOutOfRange) if an access would be out of bounds.
  // Cheap if nothing changed since the last call.
  void bind(std::span<const int64_t> values, std::span<const int64_t> in_elements,
            std::span<const int64_t> out_elements);

  int64_t row_count() const { return row_count_; }
  int64_t columns() const { return columns_; }
  // The row's index on each axis.
  void row_indices(int64_t row, int64_t* out) const {
    for (size_t k = axes_; k-- > 0;) {
      out[k] = row % extents_[k];
      row /= extents_[k];
    }
  }
  void next_row(int64_t* row) const {
    for (size_t k = axes_; k-- > 0;) {
      if (++row[k] < extents_[k]) return;
      row[k] = 0;
    }
  }
  int64_t row_offset(const BoundAccess& a, const int64_t* row) const {
    int64_t at = a.offset;
    for (size_t k = 0; k < axes_; ++k) at += a.rows[k] * row[k];
    return at;
  }
  const BoundAccess& of_instr(size_t i) const { return instrs_[i]; }  // loads and indices
  const BoundAccess& of_store(size_t i) const { return stores_[i]; }

 private:
  struct Compiled {
    std::vector<CompiledExpr> rows;
    CompiledExpr column, by, offset, limit;
  };
  Compiled compile(const Access& access, std::span<const std::string> order) const;
  void bind_access(const Compiled& from, std::span<const int64_t> values, BoundAccess& to) const;
  void check(const BoundAccess& a, int64_t elements) const;
  void bind_all(std::span<const int64_t> values, std::span<const int64_t> in_elements,
                std::span<const int64_t> out_elements);

  size_t axes_ = 0;
  std::vector<CompiledExpr> row_exprs_;
  CompiledExpr column_expr_;
  std::vector<Compiled> instr_exprs_, store_exprs_;
  std::vector<int32_t> params_;  // of each instruction: the input it loads from, -1: none
  std::vector<bool> has_access_;
  int64_t extents_[kMaxRowAxes] = {};
  int64_t row_count_ = 0, columns_ = 0;
  std::vector<BoundAccess> instrs_, stores_;
  std::vector<int64_t> last_;  // what bind() was given, when it succeeded
};

}  // namespace tokamak::loop
