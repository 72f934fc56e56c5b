#include "compile/lower/index_map.h"

#include "base/error.h"

namespace tokamak {
namespace {

// k with a = k * b, where there is one.
std::optional<int64_t> whole_ratio(const SymExpr& a, const SymExpr& b) {
  if (a == b) return 1;
  std::map<std::string, int64_t, std::less<>> values;
  int64_t next = 7;  // any values: the guess is checked
  for (const SymExpr* e : {&a, &b})
    for (const std::string& s : e->symbols())
      if (values.emplace(s, next).second) next = next * 2 + 3;
  int64_t x = a.eval(values), y = b.eval(values);
  if (y == 0 || x % y != 0 || x / y < 1) return std::nullopt;
  return b * (x / y) == a ? std::optional(x / y) : std::nullopt;
}

std::vector<SymExpr> strides_of(const std::vector<Dim>& dims) {
  std::vector<SymExpr> out(dims.size(), SymExpr(1));
  for (size_t d = dims.size(); d-- > 1;) out[d - 1] = out[d] * dims[d].extent;
  return out;
}

bool same_extents(const std::vector<Dim>& a, const std::vector<Dim>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].extent != b[i].extent) return false;
  return true;
}

}  // namespace

IndexSpace::IndexSpace(std::vector<SymExpr> rows, SymExpr columns)
    : rows_(std::move(rows)), columns_(std::move(columns)) {}

LinearIndex IndexSpace::zero() const {
  return {std::vector<SymExpr>(rows_.size() + 2, SymExpr(0)), 0};
}
LinearIndex IndexSpace::variable(size_t v) const {
  LinearIndex out = zero();
  out.terms[v] = 1;
  return out;
}
IndexMap IndexSpace::constant() const { return {zero(), -1, 0}; }

IndexMap IndexSpace::whole() const {
  IndexMap out = constant();
  SymExpr step = columns_;
  out.index.terms[column()] = 1;
  for (size_t r = rows_.size(); r-- > 0;) {
    out.index.terms[r] = step;
    step = step * rows_[r];
  }
  return out;
}

IndexMap IndexSpace::per_row() const {
  IndexMap out = constant();
  SymExpr step = 1;
  for (size_t r = rows_.size(); r-- > 0;) {
    out.index.terms[r] = step;
    step = step * rows_[r];
  }
  return out;
}

bool IndexSpace::depends(const LinearIndex& index, size_t variable) const {
  return index.terms[variable] != SymExpr(0);
}

SymExpr IndexSpace::extent(size_t variable, const IndexMap& map) const {
  return variable < rows_.size() ? rows_[variable] : variable == column() ? columns_ : map.limit;
}

std::vector<LinearIndex> IndexSpace::split(const IndexMap& map,
                                           const std::vector<Dim>& dims) const {
  std::vector<LinearIndex> out(dims.size(), zero());
  std::vector<SymExpr> strides = strides_of(dims), last(dims.size(), SymExpr(0));
  auto refuse = [&] {
    std::string text;
    for (const Dim& d : dims) text += (text.empty() ? "" : ", ") + d.extent.text();
    fail(ErrorCode::kUnsupported, "the element {} of [{}] cannot be written as one index per axis",
         expression(map).text(), text);
  };
  for (size_t v = 0; v < map.index.terms.size(); ++v) {
    SymExpr size = extent(v, map);
    if (!depends(map.index, v) || size == SymExpr(1)) continue;
    bool placed = false;
    for (size_t d = 0; d < dims.size() && !placed; ++d) {
      if (dims[d].extent == SymExpr(1)) continue;
      auto k = whole_ratio(map.index.terms[v], strides[d]);
      if (!k) continue;
      out[d].terms[v] = *k;
      last[d] = last[d] + (size - 1) * *k;
      placed = true;
    }
    if (!placed) refuse();
  }
  SymExpr rest = map.index.offset;
  for (size_t d = 0; d < dims.size() && rest != SymExpr(0); ++d) {
    auto whole = rest.constant(), step = strides[d].constant();
    std::optional<int64_t> k;
    if (whole && step && *step > 0)
      k = *whole / *step;
    else
      k = whole_ratio(rest, strides[d]);
    if (!k || *k == 0) continue;
    out[d].offset = *k;
    last[d] = last[d] + *k;
    rest = rest - strides[d] * *k;
  }
  if (rest != SymExpr(0)) refuse();
  for (size_t d = 0; d < dims.size(); ++d) {  // no axis may carry into the next
    auto room = (dims[d].extent - 1 - last[d]).constant();
    if (last[d] != SymExpr(0) && (!room || *room < 0)) refuse();
  }
  return out;
}

IndexMap IndexSpace::join(const IndexMap& map, const std::vector<LinearIndex>& axes,
                          const std::vector<Dim>& dims) const {
  IndexMap out{zero(), map.by, map.limit};
  std::vector<SymExpr> strides = strides_of(dims);
  for (size_t d = 0; d < dims.size(); ++d) {
    for (size_t v = 0; v < out.index.terms.size(); ++v)
      out.index.terms[v] = out.index.terms[v] + axes[d].terms[v] * strides[d];
    out.index.offset = out.index.offset + axes[d].offset * strides[d];
  }
  if (!depends(out.index, by())) out.by = -1, out.limit = 0;
  return out;
}

IndexMap IndexSpace::broadcast(const IndexMap& map, const std::vector<Dim>& from,
                               const std::vector<Dim>& operand) const {
  if (same_extents(from, operand)) return map;
  bool single = true;
  for (const Dim& d : operand) single = single && d.extent == SymExpr(1);
  if (single) return constant();
  std::vector<LinearIndex> axes = split(map, from), own;
  for (size_t d = 0; d < operand.size(); ++d) {
    size_t at = from.size() - operand.size() + d;
    own.push_back(operand[d].extent == SymExpr(1) ? zero() : axes[at]);
  }
  return join(map, own, operand);
}

SymExpr IndexSpace::expression(const IndexMap& map) const {
  loop::Linear parts;
  parts.rows.assign(map.index.terms.begin(),
                    map.index.terms.begin() + static_cast<std::ptrdiff_t>(rows_.size()));
  parts.column = map.index.terms[column()];
  parts.by = map.index.terms[by()];
  parts.offset = map.index.offset;
  return loop::linear_index(parts);
}

}  // namespace tokamak
