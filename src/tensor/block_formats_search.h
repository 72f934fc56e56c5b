#pragma once
// What the encoders of the block formats share: safe rounding, and searches for good scales (a
// format fixes only its decoder).
#include <algorithm>

#include "tensor/block_formats_detail.h"

namespace tokamak::block {

// NaN gives the lower bound, so hostile input never reaches an undefined conversion.
inline float clamp(float x, int low, int high) {
  x = x > static_cast<float>(low) ? x : static_cast<float>(low);
  return x < static_cast<float>(high) ? x : static_cast<float>(high);
}
inline int truncated(float x, int low, int high) { return static_cast<int>(clamp(x, low, high)); }
inline int nearest(float x, int low, int high) {
  return static_cast<int>(std::nearbyint(clamp(x, low, high)));
}
inline float inverse(float x) { return x == 0.0f ? 0.0f : 1.0f / x; }

// The value of largest magnitude, with its sign; the first if several are equal.
inline float signed_peak(const float* x, int n) {
  float peak = x[0];
  for (int j = 1; j < n; ++j)
    if (std::fabs(x[j]) > std::fabs(peak)) peak = x[j];
  return peak;
}

struct ScaleMin {
  float scale = 0, minimum = 0;  // x ~ scale * q - minimum, both not negative
};

// Weighted least squares for scale and minimum with the levels q fixed, and the error that is left.
inline double fit_scale_min(const float* x, int n, const float* weight, const int* q,
                            ScaleMin& fit) {
  double w = 0, wq = 0, wqq = 0, wx = 0, wqx = 0, wxx = 0;
  for (int j = 0; j < n; ++j) {
    double wj = weight[j], qj = q[j], xj = x[j];
    w += wj;
    wq += wj * qj;
    wqq += wj * qj * qj;
    wx += wj * xj;
    wqx += wj * qj * xj;
    wxx += wj * xj * xj;
  }
  double determinant = w * wqq - wq * wq, scale = 0, offset = 0;
  if (determinant > 0) {
    scale = (w * wqx - wq * wx) / determinant;
    offset = (wqq * wx - wq * wqx) / determinant;
  }
  if (offset > 0 || determinant <= 0) {  // the format can only subtract
    offset = 0;
    scale = wqq > 0 ? wqx / wqq : 0;
  }
  fit = {static_cast<float>(scale), static_cast<float>(-offset)};
  return wxx + scale * scale * wqq + offset * offset * w + 2 * scale * offset * wq -
         2 * scale * wqx - 2 * offset * wx;
}

// Tries slightly different grid widths for one sub-block of n <= 32 values and keeps the best
// weighted fit.
inline ScaleMin search_scale_min(const float* x, int n, int levels) {
  float weight[32];
  double square_sum = 0;
  for (int j = 0; j < n; ++j) square_sum += static_cast<double>(x[j]) * x[j];
  auto rms = static_cast<float>(std::sqrt(square_sum / n));
  for (int j = 0; j < n; ++j) weight[j] = rms + std::fabs(x[j]);  // large weights matter more
  auto [low, high] = std::minmax_element(x, x + n);
  float minimum = std::min(*low, 0.0f), range = *high - minimum;
  if (!(range > 0) || !std::isfinite(range)) return {0, std::isfinite(minimum) ? -minimum : 0};
  ScaleMin best{range / static_cast<float>(levels), -minimum};
  double best_error = -1;
  for (int step = -10; step <= 10; ++step) {
    float inverse_scale = (static_cast<float>(levels) + 0.1f * static_cast<float>(step)) / range;
    int q[32];
    for (int j = 0; j < n; ++j) q[j] = nearest((x[j] - minimum) * inverse_scale, 0, levels);
    ScaleMin fit;
    double error = fit_scale_min(x, n, weight, q, fit);
    if (fit.scale <= 0 || (best_error >= 0 && error >= best_error)) continue;
    best_error = error;
    best = fit;
  }
  return best;
}

inline void pack_scale_min(int j, int scale, int minimum, uint8_t* b) {
  if (j < 4) {
    b[j] = static_cast<uint8_t>((b[j] & 0xc0) | scale);
    b[j + 4] = static_cast<uint8_t>((b[j + 4] & 0xc0) | minimum);
  } else {
    b[j + 4] = static_cast<uint8_t>((scale & 15) | (minimum & 15) << 4);
    b[j - 4] = static_cast<uint8_t>((b[j - 4] & 63) | scale >> 4 << 6);
    b[j] = static_cast<uint8_t>((b[j] & 63) | minimum >> 4 << 6);
  }
}

// Symmetric scale of 16 values for levels -half..half - 1, errors weighted by x^2.
inline float search_scale(const float* x, int half) {
  float peak = signed_peak(x, 16);
  if (peak == 0 || !std::isfinite(peak)) return 0;
  auto top = static_cast<float>(half);
  float best = peak / -top;
  double best_gain = -1;
  for (int step = -9; step <= 9; ++step) {
    float inverse_scale = -(top + 0.1f * static_cast<float>(step)) / peak;
    double xq = 0, qq = 0;
    for (int j = 0; j < 16; ++j) {
      double q = nearest(x[j] * inverse_scale, -half, half - 1),
             w = static_cast<double>(x[j]) * x[j];
      xq += w * x[j] * q;
      qq += w * q * q;
    }
    // The error left by the best scale xq / qq is smallest where xq^2 / qq is largest.
    if (qq > 0 && xq * xq / qq > best_gain) {
      best_gain = xq * xq / qq;
      best = static_cast<float>(xq / qq);
    }
  }
  return best;
}

}  // namespace tokamak::block
