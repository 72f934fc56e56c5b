#pragma once
// Passes over one row of logits, written so that the compiler can use vector registers. Results do
// not depend on how a row was batched: each is a function of the row alone.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

namespace tokamak {

// e^x for x <= 0, relative error below 2e-7; results below 1e-37 are 0.
inline float fast_exp(float x) {
  constexpr float kLog2e = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  float clamped = x < -86.0f ? -86.0f : x;
  float whole = clamped * kLog2e + 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
  int32_t exponent = std::bit_cast<int32_t>(whole) - 0x4B400000;
  whole -= 12582912.0f;
  float r = (clamped - whole * kLn2High) - whole * kLn2Low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  float scaled = p * std::bit_cast<float>((exponent + 127) << 23);
  return x < -86.0f ? 0.0f : scaled;
}

// The largest value; NaN when any value is not finite.
float finite_max(std::span<const float> row);
// Lowest index of the largest value.
int32_t argmax(std::span<const float> row);
// Sum of e^((x - peak) * inverse_temperature), in double.
double sum_exp(std::span<const float> row, float peak, float inverse_temperature);
// log(sum(e^x)), good to about 1e-7.
double log_sum_exp(std::span<const float> row, float peak);
// Classifier-free guidance: row = u + scale * (c - u) with the log-probabilities c of `row` and u
// of `other`. A value that is not finite makes the row NaN.
void guide_row(std::span<const float> other, float scale, std::span<float> row);
// DoLa: row = log-probabilities of `row` minus those of the layer that differs most from it. Tokens
// that are less likely than a tenth of the likeliest come after all others, in their own order.
// `layers` has a row per layer. A value that is not finite makes the row NaN.
void contrast_row(std::span<const float> layers, std::span<float> row);
// Largest value of each run of kRun values (the last run may be shorter). `out` has
// (row.size() + kRun - 1) / kRun entries.
constexpr size_t kRun = 64;
void run_maxima(std::span<const float> row, std::span<float> out);

}  // namespace tokamak
