#include "loop/bounds.h"

#include <algorithm>

#include "base/error.h"

namespace tokamak::loop {

Bounds::Bounds(const Program& program, std::span<const std::string> symbol_order)
    : axes_(program.rows.size()) {
  for (const std::string& s : program_symbols(program))
    if (std::find(symbol_order.begin(), symbol_order.end(), s) == symbol_order.end())
      fail(ErrorCode::kInvalidArgument, "loop program: the symbol {} is not declared", s);
  for (const SymExpr& r : program.rows) row_exprs_.emplace_back(r, symbol_order);
  column_expr_ = CompiledExpr(program.columns, symbol_order);
  for (const Instr& i : program.code) {
    bool has = i.op == Op::kLoad || i.op == Op::kIndex;
    instr_exprs_.push_back(has ? compile(i.access, symbol_order) : Compiled{});
    params_.push_back(i.op == Op::kLoad ? static_cast<int32_t>(i.access.param) : -1);
    has_access_.push_back(has);
  }
  for (const Store& s : program.stores) store_exprs_.push_back(compile(s.to, symbol_order));
  instrs_.resize(instr_exprs_.size());
  stores_.resize(store_exprs_.size());
  last_.reserve(symbol_order.size() + program.in.size() + program.out.size());
}

Bounds::Compiled Bounds::compile(const Access& access, std::span<const std::string> order) const {
  Linear parts = linear_parts(access.index, axes_);
  Compiled out;
  for (const SymExpr& r : parts.rows) out.rows.emplace_back(r, order);
  out.column = CompiledExpr(parts.column, order);
  out.by = CompiledExpr(parts.by, order);
  out.offset = CompiledExpr(parts.offset, order);
  out.limit = CompiledExpr(access.limit, order);
  return out;
}

void Bounds::bind_access(const Compiled& from, std::span<const int64_t> values,
                         BoundAccess& to) const {
  for (size_t k = 0; k < axes_; ++k) to.rows[k] = from.rows[k].eval(values);
  to.column = from.column.eval(values);
  to.by = from.by.eval(values);
  to.offset = from.offset.eval(values);
  to.limit = from.limit.eval(values);
}

void Bounds::check(const BoundAccess& a, int64_t elements) const {
  bool bad = a.offset < 0;
  int64_t last = a.offset;
  auto reach = [&](int64_t coefficient, int64_t extent) {
    int64_t part = 0;
    bad = bad || coefficient < 0 || __builtin_mul_overflow(coefficient, extent - 1, &part) ||
          __builtin_add_overflow(last, part, &last);
  };
  for (size_t k = 0; k < axes_; ++k) reach(a.rows[k], extents_[k]);
  reach(a.column, columns_);
  if (a.by != 0 && a.limit > 0) reach(a.by, a.limit);
  if (bad || last >= elements)
    fail(ErrorCode::kOutOfRange, "loop program: an access ends at element {} of {}", last,
         elements);
}

void Bounds::bind(std::span<const int64_t> values, std::span<const int64_t> in_elements,
                  std::span<const int64_t> out_elements) {
  const std::span<const int64_t> now[] = {values, in_elements, out_elements};
  size_t at = 0, size = values.size() + in_elements.size() + out_elements.size();
  bool same = size == last_.size();
  for (std::span<const int64_t> part : now)
    for (int64_t x : part) same = same && last_[at++] == x;
  if (same && size > 0) return;
  last_.clear();
  bind_all(values, in_elements, out_elements);
  for (std::span<const int64_t> part : now) last_.insert(last_.end(), part.begin(), part.end());
}

void Bounds::bind_all(std::span<const int64_t> values, std::span<const int64_t> in_elements,
                      std::span<const int64_t> out_elements) {
  row_count_ = 1;
  columns_ = column_expr_.eval(values);
  int64_t all = columns_;
  for (size_t k = 0; k < axes_; ++k) {
    extents_[k] = row_exprs_[k].eval(values);
    if (extents_[k] < 0 || __builtin_mul_overflow(row_count_, extents_[k], &row_count_))
      fail(ErrorCode::kOutOfRange, "loop program: {} rows", extents_[k]);
  }
  if (columns_ < 0 || __builtin_mul_overflow(row_count_, columns_, &all))
    fail(ErrorCode::kOutOfRange, "loop program: {} columns", columns_);
  for (size_t i = 0; i < instrs_.size(); ++i)
    if (has_access_[i]) bind_access(instr_exprs_[i], values, instrs_[i]);
  for (size_t i = 0; i < stores_.size(); ++i) bind_access(store_exprs_[i], values, stores_[i]);
  if (row_count_ == 0 || columns_ == 0) return;  // nothing is touched
  for (size_t i = 0; i < instrs_.size(); ++i)
    if (params_[i] >= 0) check(instrs_[i], in_elements[static_cast<size_t>(params_[i])]);
  for (size_t i = 0; i < stores_.size(); ++i) check(stores_[i], out_elements[i]);
}

}  // namespace tokamak::loop
