#pragma once
// What a plane of a state (the keys or values of a KV cache) stores of the values appended to it.
// Floating types round each value. i8 keeps each row of the plane's last axis (one head of one
// token) as int8 with a float scale of its own.
#include <cstdint>
#include <span>

#include "tensor/tensor_type.h"

namespace tokamak {

// Per token, scales included; extents are constant. Throws Error on broken blocks and on overflow.
int64_t plane_bytes(const TensorType& type);
int64_t plane_bytes(DType dtype, std::span<const int64_t> dims);

// Returns the scale, max|x| / 127; q is x / scale to the nearest even. A value that is not finite
// makes the scale NaN, so that everything that reads the row notices.
float quantize_plane_row(const float* x, int64_t n, int8_t* q);

// Replaces values by what a plane of this type gives back of them. `width` is the plane's last
// axis, and values.size() a multiple of it.
void round_plane(DType dtype, int64_t width, std::span<float> values);

}  // namespace tokamak
