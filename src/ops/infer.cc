#include "ops/infer.h"

namespace tokamak {

const TensorType& Rule::tensor(size_t i, std::string_view what, int rank) const {
  if (i >= inputs()) fail("{} is missing", what);
  const Type& type = context_.in[i];
  if (type.kind != Type::Kind::kTensor) fail("{} must be a tensor, got {}", what, type.text());
  if (rank >= 0 && type.tensor.rank() != rank)
    fail("{} must have {} axes, got {}", what, rank, type.text());
  return type.tensor;
}

const TensorType& Rule::values(size_t i, std::string_view what, int rank) const {
  const TensorType& t = tensor(i, what, rank);
  if (is_integer(t.dtype)) fail("{} must hold floating-point values, got {}", what, t.text());
  return t;
}

const TensorType& Rule::plain(size_t i, std::string_view what, int rank) const {
  const TensorType& t = tensor(i, what, rank);
  if (is_block_type(t.dtype)) fail("{} must have a plain element type, got {}", what, t.text());
  return t;
}

const TensorType& Rule::integers(size_t i, std::string_view what, int rank) const {
  const TensorType& t = tensor(i, what, rank);
  if (t.dtype != DType::kI32) fail("{} must be i32, got {}", what, t.text());
  return t;
}

const std::string& Rule::state(size_t i) const {
  if (i >= inputs() || context_.in[i].kind != Type::Kind::kState)
    fail("input {} must be a state", i);
  return context_.in[i].name;
}

void Rule::view(size_t i) const {
  if (i >= inputs() || context_.in[i].kind != Type::Kind::kView) fail("input {} must be a view", i);
}

std::optional<InferContext::Plane> Rule::plane(std::string_view state, int index) const {
  return context_.plane ? context_.plane(state, index) : std::nullopt;
}

void Rule::same(const SymExpr& a, std::string_view a_what, const SymExpr& b,
                std::string_view b_what) const {
  if (a != b) fail("{} is {} but {} is {}", a_what, a.text(), b_what, b.text());
}

size_t Rule::axis(int rank, int64_t fallback) const {
  int64_t axis = attrs().get_int("axis", fallback), from_start = axis < 0 ? axis + rank : axis;
  if (from_start < 0 || from_start >= rank)
    fail("axis {} does not exist in a tensor with {} axes", axis, rank);
  return static_cast<size_t>(from_start);
}

SymExpr Rule::extent_attr(const Value& value) const {
  SymExpr extent = value.is_string() ? SymExpr::parse(value.as_string()) : SymExpr(value.as_int());
  if (auto n = extent.constant(); n && *n < 0) fail("extent {} is negative", *n);
  return extent;
}

std::vector<Dim> Rule::dims_from_attrs() const {
  const Value::Array& extents = attrs().at("dims").as_array();
  const Value::Array& axes = attrs().at("axes").as_array();
  if (extents.size() != axes.size()) fail("{} dims but {} axis names", extents.size(), axes.size());
  std::vector<Dim> dims;
  for (size_t i = 0; i < extents.size(); ++i)
    dims.push_back({axes[i].as_string(), extent_attr(extents[i])});
  return dims;
}

std::vector<Dim> broadcast_dims(const Rule& rule, const std::vector<Dim>& a,
                                const std::vector<Dim>& b) {
  const std::vector<Dim>&longer = a.size() >= b.size() ? a : b,
        &shorter = a.size() >= b.size() ? b : a;
  std::vector<Dim> out = longer;
  size_t skip = longer.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i) {
    Dim& dim = out[skip + i];
    const Dim& other = shorter[i];
    if (other.extent == SymExpr(1)) continue;
    if (dim.extent == SymExpr(1))
      dim = other;
    else if (dim.extent == other.extent)
      dim.bound |= other.bound;
    else
      rule.fail("extents {} and {} do not broadcast", dim.extent.text(), other.extent.text());
  }
  return out;
}

DType arithmetic_dtype(const Rule& rule, const TensorType& a, const TensorType& b) {
  bool a_int = is_integer(a.dtype), b_int = is_integer(b.dtype);
  if (!a_int && !b_int) return DType::kF32;
  if (a.dtype != DType::kI32 || b.dtype != DType::kI32)
    rule.fail("{} with {}: cast one of them first", dtype_name(a.dtype), dtype_name(b.dtype));
  return DType::kI32;
}

}  // namespace tokamak
