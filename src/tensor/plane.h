#pragma once
// How a plane of a state (the keys or values of a KV cache) stores appended values. Floating types
// round each value. i8 stores each row of the plane's last axis (one head of one token) as int8
// with its own float scale.
#include <cstdint>
#include <span>

#include "tensor/tensor_type.h"

namespace tokamak {

// Per token, scales included; extents are constant. Throws Error on broken blocks and on overflow.
int64_t plane_bytes(const TensorType& type);
int64_t plane_bytes(DType dtype, std::span<const int64_t> dims);

// Returns the scale, max|x| / 127; q is x / scale, rounded to nearest even. A value that is not
// finite makes the scale NaN, so that every read of the row gives NaN.
float quantize_plane_row(const float* x, int64_t n, int8_t* q);

// Replaces each value by what a plane of this type reads back. `width` is the plane's last axis;
// values.size() is a multiple of it.
void round_plane(DType dtype, int64_t width, std::span<float> values);

}  // namespace tokamak
