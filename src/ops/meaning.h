#pragma once
// Helpers shared by the meanings: the accumulator type, storing with rounding, dot products, and
// iterating over a broadcast tensor.
#include <algorithm>
#include <type_traits>
#include <vector>

#include "ops/field.h"
#include "ops/infer.h"
#include "ops/op.h"
#include "ops/traced.h"
#include "tensor/block_formats.h"

namespace tokamak {

// The type of intermediate values of an op: double for float (rounded once at the end), otherwise
// S.
template <class S>
using Wide = std::conditional_t<std::is_same_v<S, float> || std::is_same_v<S, Traced>, double, S>;
// A local variable with the precision of a stored element.
template <class S>
using Stored = std::conditional_t<std::is_same_v<S, Traced>, float, S>;

template <class S>
Wide<S> to_scalar(double value) {
  if constexpr (std::is_same_v<S, Field>)
    return Field::from_double(value);
  else
    return value;
}

// Stores a computed value and rounds it once: to f16 or bf16 where the tensor has that type,
// otherwise to S. A value of a narrow type is a number of that type over double too; the field
// rounds nothing.
template <class S>
void store(const TensorRef<S>& y, int64_t at, Wide<S> value) {
  if constexpr (std::is_same_v<S, Field>)
    y.f[at] = value;
  else
    y.f[at] = y.storage == DType::kF16 || y.storage == DType::kBF16
                  ? S(round_to_dtype(y.storage, value))
                  : S(value);
}

template <class S>
Wide<S> dot(const S* a, const S* b, int64_t n) {
  // Eight independent sums: the compiler may use vector registers without reordering anything.
  Wide<S> sum[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int lane = 0; lane < 8; ++lane) sum[lane] += Wide<S>(a[i + lane]) * Wide<S>(b[i + lane]);
  for (int lane = 0; i < n; ++i, ++lane) sum[lane] += Wide<S>(a[i]) * Wide<S>(b[i]);
  return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

// Stores elements of another tensor; they are rounded only if the output is narrower than f32.
template <class S>
void store_values(const TensorRef<S>& y, int64_t at, const S* from, int64_t n) {
  if (y.storage == DType::kF32)
    std::copy_n(from, n, y.f + at);
  else
    for (int64_t i = 0; i < n; ++i) store(y, at + i, Wide<S>(from[i]));
}

// Copies values; source and destination may be the same memory.
template <class T>
void copy_values(const T* from, T* to, int64_t n) {
  if (from != to) std::copy_n(from, n, to);
}

inline int64_t product(std::span<const int64_t> dims, size_t from = 0, size_t to = SIZE_MAX) {
  int64_t n = 1;
  for (size_t i = from; i < std::min(to, dims.size()); ++i) n *= dims[i];
  return n;
}

// The last extent, and the number of rows of that length.
template <class S>
int64_t row_length(const TensorRef<S>& t) {
  return t.dims.empty() ? 1 : t.dims.back();
}
template <class S>
int64_t row_count(const TensorRef<S>& t) {
  return t.dims.empty() ? 1 : product(t.dims, 0, t.dims.size() - 1);
}

// An axis attribute counted from the end when negative.
inline size_t axis_of(const Attrs& attrs, size_t rank, int64_t fallback = 0) {
  int64_t axis = attrs.get_int("axis", fallback);
  return static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(rank) : axis);
}

// Iterates over the elements of `shape` in order and gives the offset of the matching element in a
// tensor that is broadcast to it (trailing-aligned).
class BroadcastWalk {
 public:
  BroadcastWalk(std::span<const int64_t> shape, std::span<const int64_t> dims)
      : shape_(shape), index_(shape.size(), 0), stride_(shape.size(), 0) {
    int64_t stride = 1;
    for (size_t back = 1; back <= dims.size(); ++back) {
      int64_t extent = dims[dims.size() - back];
      if (extent != 1) stride_[shape.size() - back] = stride;
      stride *= extent;
    }
  }
  int64_t offset() const { return offset_; }
  void next() {
    for (size_t axis = shape_.size(); axis-- > 0;) {
      offset_ += stride_[axis];
      if (++index_[axis] < shape_[axis]) return;
      offset_ -= stride_[axis] * shape_[axis];
      index_[axis] = 0;
    }
  }

 private:
  std::span<const int64_t> shape_;
  std::vector<int64_t> index_, stride_;
  int64_t offset_ = 0;
};

// Rows at which sequences or groups begin, and the end of the last one.
template <class S>
void check_starts(std::string_view op, const TensorRef<S>& starts, int64_t rows) {
  for (int64_t i = 0, least = 0; i < starts.elements(); least = starts.i[i++])
    if (starts.i[i] < least || starts.i[i] > rows)
      fail_infer(op, "start {} is {}, not between {} and {}", i, starts.i[i], least, rows);
}
inline void check_index(std::string_view op, std::string_view what, int64_t index, int64_t count) {
  if (index < 0 || index >= count) fail_infer(op, "{} {} does not exist of {}", what, index, count);
}

// The meaning of an op over S; null if it has none.
template <class S>
Meaning<S> meaning_of(const OpDef& op) {
  if constexpr (std::is_same_v<S, float>)
    return op.f32;
  else if constexpr (std::is_same_v<S, double>)
    return op.f64;
  else if constexpr (std::is_same_v<S, Traced>)
    return op.traced;
  else
    return op.field;
}

}  // namespace tokamak
