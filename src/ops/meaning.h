#pragma once
// Small tools the meanings share: the type sums are kept in, dot products, and walking a tensor in
// the shape of another.
#include <algorithm>
#include <type_traits>
#include <vector>

#include "ops/field.h"
#include "ops/op.h"
#include "ops/traced.h"

namespace tokamak {

// What is computed inside one op: double for float (rounded once at the end), otherwise S itself.
template <class S>
using Wide = std::conditional_t<std::is_same_v<S, float> || std::is_same_v<S, Traced>, double, S>;
// A value outside memory, as precise as one in it.
template <class S>
using Stored = std::conditional_t<std::is_same_v<S, Traced>, float, S>;

template <class S>
Wide<S> to_scalar(double value) {
  if constexpr (std::is_same_v<S, Field>)
    return Field::from_double(value);
  else
    return value;
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

// Copies values whose memory may be the same.
template <class T>
void copy_values(const T* from, T* to, int64_t n) {
  if (from != to) std::copy_n(from, n, to);
}

inline int64_t product(std::span<const int64_t> dims, size_t from = 0, size_t to = SIZE_MAX) {
  int64_t n = 1;
  for (size_t i = from; i < std::min(to, dims.size()); ++i) n *= dims[i];
  return n;
}

// The last extent, and how many rows of it there are.
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

// Walks the elements of `shape` in order and says where the matching element of a tensor that is
// broadcast to it (trailing-aligned) lies.
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

// The meaning of an op over S; null where it has none.
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
