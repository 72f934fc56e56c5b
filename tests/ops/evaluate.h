#pragma once
// Evaluates one op on concrete tensors with the scalar S, as a caller of src/ops does: infers
// types, allocates outputs and runs the meaning.
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/field.h"
#include "ops/meaning.h"

namespace tokamak::testing {

template <class S>
struct Plane {
  std::string name;
  std::vector<int64_t> dims;  // slots first
  std::vector<S> f;
};

// A tensor (f or i), a state (planes) or a view (table).
template <class S>
struct Tensor {
  std::vector<int64_t> dims;
  std::vector<S> f;
  std::vector<int32_t> i;
  std::vector<Plane<S>> planes;
  std::vector<int32_t> table;
  int64_t stride = 0, block_size = 0;
  DType dtype = DType::kF32;

  bool is_state() const { return !planes.empty(); }
  bool is_view() const { return block_size > 0; }
};

template <class S>
Tensor<S> values(std::vector<int64_t> dims, std::vector<S> f) {
  Tensor<S> t;
  t.dims = std::move(dims);
  t.f = std::move(f);
  return t;
}
template <class S>
Tensor<S> integers(std::vector<int64_t> dims, std::vector<int32_t> i) {
  Tensor<S> t;
  t.dims = std::move(dims);
  t.i = std::move(i);
  t.dtype = DType::kI32;
  return t;
}

inline TensorType tensor_type(DType dtype, std::span<const int64_t> dims) {
  TensorType type{dtype, {}};
  for (size_t i = 0; i < dims.size(); ++i)
    type.dims.push_back({std::string("a") + std::to_string(i), SymExpr(dims[i]), false});
  return type;
}

template <class S>
struct Bound {
  Operand<S> operand;
  std::vector<typename StateRef<S>::Plane> planes;
};

template <class S>
Bound<S> bind(Tensor<S>& t) {
  Bound<S> b;
  if (t.is_state()) {
    for (Plane<S>& p : t.planes)
      b.planes.push_back({p.name, p.f.data(), static_cast<int64_t>(p.f.size()) / p.dims[0],
                          std::span(p.dims).subspan(1)});
    b.operand.state = {b.planes, t.planes[0].dims[0]};
  } else if (t.is_view()) {
    b.operand.view = {t.table.data(), t.stride, t.block_size};
  } else {
    b.operand.tensor = {t.dims, t.dtype == DType::kI32 ? nullptr : t.f.data(),
                        t.dtype == DType::kI32 ? t.i.data() : nullptr};
  }
  return b;
}

template <class S>
std::vector<Type> infer(const OpDef& op, const std::vector<Tensor<S>>& inputs, const Attrs& attrs) {
  std::vector<Type> types;
  std::vector<TensorType> planes;
  const Tensor<S>* state = nullptr;
  for (const Tensor<S>& t : inputs) {
    if (t.is_state()) {
      state = &t;
      for (const Plane<S>& p : t.planes)
        planes.push_back(tensor_type(DType::kF32, std::span(p.dims).subspan(1)));
    }
    types.push_back(t.is_state()  ? Type::state("s")
                    : t.is_view() ? Type::view("g")
                                  : Type::of(tensor_type(t.dtype, t.dims)));
  }
  auto plane = [&](std::string_view, int index) -> std::optional<InferContext::Plane> {
    if (!state || static_cast<size_t>(index) >= state->planes.size()) return std::nullopt;
    auto i = static_cast<size_t>(index);
    return InferContext::Plane{state->planes[i].name, &planes[i]};
  };
  return infer_types(op, {types, attrs, plane});
}

template <class S>
std::vector<Tensor<S>> evaluate(std::string_view name, std::vector<Tensor<S>> inputs,
                                const Attrs& attrs = Attrs::object()) {
  const OpDef* op = find_op(name);
  TK_CHECK(op && meaning_of<S>(*op), "op {}", name);
  std::vector<Tensor<S>> outputs;
  for (const Type& type : infer(*op, inputs, attrs)) {
    Tensor<S> t;
    if (type.kind == Type::Kind::kState) {
      t = inputs[0];  // written in place: outputs hold the new version
    } else {
      t.dtype = type.tensor.dtype;
      for (const Dim& d : type.tensor.dims) t.dims.push_back(*d.extent.constant());
      auto n = static_cast<size_t>(*type.tensor.elements().constant());
      if (t.dtype == DType::kI32)
        t.i.assign(n, -12345);
      else
        t.f.assign(n, S(-12345));
    }
    outputs.push_back(std::move(t));
  }
  std::vector<Bound<S>> bound;
  std::vector<Operand<S>> in, out;
  bound.reserve(inputs.size() + outputs.size());
  for (Tensor<S>& t : inputs) in.push_back(bound.emplace_back(bind(t)).operand);
  for (Tensor<S>& t : outputs) {
    out.push_back(bound.emplace_back(bind(t)).operand);
    out.back().tensor.storage = t.dtype;
  }
  meaning_of<S> (*op)({in, out, attrs});
  return outputs;
}

// One-output ops on tensors.
template <class S>
Tensor<S> eval(std::string_view name, std::vector<Tensor<S>> inputs,
               const Attrs& attrs = Attrs::object()) {
  return evaluate<S>(name, std::move(inputs), attrs).at(0);
}

// The nearest number of a type, ties to even, computed with plain arithmetic on doubles: the
// reference for the rounding functions under test.
inline double nearest(DType dtype, double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  bool half = dtype == DType::kF16, brain = dtype == DType::kBF16;
  int digits = half    ? 11
               : brain ? 8
                       : 24,
      smallest = half    ? -24
                 : brain ? -133
                         : -149,
      exponent = 0;
  std::frexp(x, &exponent);
  int step = std::max(exponent - digits, smallest);
  double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -step)), step);
  double limit = half ? 65536.0 : 0x1p128;
  return std::fabs(rounded) < limit ? rounded : std::copysign(INFINITY, x);
}

inline Attrs attrs(std::initializer_list<Value::Member> members) {
  return Attrs(Value::Object(members));
}

}  // namespace tokamak::testing
