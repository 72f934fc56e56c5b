// Element-wise ops, copies with strides, rows by index.
#include "backend/cuda/ops/args.h"
#include "backend/cuda/ops/blocks.cuh"

namespace tokamak::cuda {

TK_DEVICE int64_t first_element() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
TK_DEVICE int64_t element_step() { return int64_t{gridDim.x} * blockDim.x; }

TK_DEVICE float unary(Unary op, float x, float number) {
  constexpr float kSqrt2OverPi = 0.79788456f, kSqrtHalf = 0.70710678f;
  switch (op) {
    case Unary::kNeg:
      return -x;
    case Unary::kAbs:
      return fabsf(x);
    case Unary::kExp:
      return expf(x);
    case Unary::kLog:
      return logf(x);
    case Unary::kSqrt:
      return sqrtf(x);
    case Unary::kRsqrt:
      return 1.0f / sqrtf(x);
    case Unary::kSquare:
      return x * x;
    case Unary::kSin:
      return sinf(x);
    case Unary::kCos:
      return cosf(x);
    case Unary::kTanh:
      return tanhf(x);
    case Unary::kErf:
      return erff(x);
    case Unary::kSigmoid:
      return 1.0f / (1.0f + expf(-x));
    case Unary::kRelu:
      return x > 0 || x != x ? x : 0.0f;
    case Unary::kSilu:
      return x / (1.0f + expf(-x));
    case Unary::kGeluTanh:
      return 0.5f * x * (1.0f + tanhf(kSqrt2OverPi * (x + 0.044715f * x * x * x)));
    case Unary::kGeluErf:
      return 0.5f * x * (1.0f + erff(x * kSqrtHalf));
    case Unary::kScale:
      return x * number;
    case Unary::kSoftcap:
      return number * tanhf(x / number);
  }
  return x;
}

TK_DEVICE float binary(Binary op, float a, float b) {
  switch (op) {
    case Binary::kAdd:
      return a + b;
    case Binary::kSub:
      return a - b;
    case Binary::kMul:
      return a * b;
    case Binary::kDiv:
      return a / b;
    case Binary::kMaximum:
      return a != a || a > b ? a : b;
    case Binary::kMinimum:
      return a != a || a < b ? a : b;
  }
  return a;
}

TK_KERNEL(op_unary, UnaryArgs, kElementThreads) {
  for (int64_t i = first_element(); i < a.n; i += element_step())
    store(a.y, a.out, i, unary(a.op, load(a.x, a.in, i), a.number));
}

TK_KERNEL(op_binary, BinaryArgs, kElementThreads) {
  for (int64_t i = first_element(); i < a.n; i += element_step()) {
    int64_t rest = i, at_a = 0, at_b = 0;
    for (int axis = a.rank - 1; axis > 0; --axis) {
      int64_t index = rest % a.dims[axis];
      rest /= a.dims[axis];
      at_a += index * a.sa[axis];
      at_b += index * a.sb[axis];
    }
    at_a += rest * a.sa[0];
    at_b += rest * a.sb[0];
    store(a.y, a.out, i, binary(a.op, load(a.a, a.ta, at_a), load(a.b, a.tb, at_b)));
  }
}

TK_DEVICE int32_t to_integer(float x) {  // towards zero, saturating; NaN gives 0
  if (x != x) return 0;
  if (x >= 2147483648.0f) return 2147483647;
  if (x <= -2147483648.0f) return -2147483647 - 1;
  return static_cast<int32_t>(x);
}

TK_KERNEL(op_copy, CopyArgs, kElementThreads) {
  bool words = a.in == DType::kF32 || a.in == DType::kI32;
  for (int64_t i = first_element(); i < a.n; i += element_step()) {
    int64_t rest = i, from = 0, to = 0;
    for (int axis = a.rank - 1; axis >= 0; --axis) {
      int64_t index = axis > 0 ? rest % a.dims[axis] : rest;
      rest /= a.dims[axis];
      from += index * a.sx[axis];
      to += index * a.sy[axis];
    }
    if (a.in == a.out && words)
      static_cast<uint32_t*>(a.y)[to] = static_cast<const uint32_t*>(a.x)[from];
    else if (a.in == a.out)
      static_cast<uint16_t*>(a.y)[to] = static_cast<const uint16_t*>(a.x)[from];
    else if (a.out == DType::kI32)
      static_cast<int32_t*>(a.y)[to] = to_integer(load(a.x, a.in, from));
    else
      store(a.y, a.out, to, load(a.x, a.in, from));
  }
}

// A negative index gives zeros. Checked on the host: no index is beyond the extent.
TK_KERNEL(op_gather, GatherArgs, kElementThreads) {
  int64_t total = a.outer * a.count * a.inner;
  bool words = a.in == DType::kF32 || a.in == DType::kI32;
  for (int64_t i = first_element(); i < total; i += element_step()) {
    int64_t row = a.index[i / a.inner % a.count], o = i / a.inner / a.count;
    int64_t from = (o * a.extent + row) * a.inner + i % a.inner;
    if (a.in != a.out)
      store(a.y, a.out, i, row < 0 || row >= a.extent ? 0.0f : load(a.x, a.in, from));
    else if (words)
      static_cast<uint32_t*>(a.y)[i] =
          row < 0 || row >= a.extent ? 0u : static_cast<const uint32_t*>(a.x)[from];
    else
      static_cast<uint16_t*>(a.y)[i] =
          row < 0 || row >= a.extent ? uint16_t{0} : static_cast<const uint16_t*>(a.x)[from];
  }
}

// Rows of a table in a block format.
TK_KERNEL(op_gather_blocks, GatherArgs, kElementThreads) {
  int64_t total = a.count * a.inner / 8;
  for (int64_t i = first_element(); i < total; i += element_step()) {
    int64_t row = a.index[i * 8 / a.inner];
    float v[8] = {};
    if (row >= 0 && row < a.extent)
      decode8(a.in, static_cast<const uint8_t*>(a.x) + row * a.row_bytes, i * 8 % a.inner, v);
#pragma unroll
    for (int j = 0; j < 8; ++j) store(a.y, a.out, i * 8 + j, v[j]);
  }
}

TK_KERNEL(op_iota, IotaArgs, kElementThreads) {
  for (int64_t i = first_element(); i < a.n; i += element_step()) a.y[i] = static_cast<int32_t>(i);
}

}  // namespace tokamak::cuda
