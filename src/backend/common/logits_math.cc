#include "backend/common/logits_math.h"

#include <limits>

namespace tokamak {
namespace {

constexpr size_t kLanes = 16;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

}  // namespace

float finite_max(std::span<const float> row) {
  float peak[kLanes], poison[kLanes];
  std::fill_n(peak, kLanes, kLowest);
  std::fill_n(poison, kLanes, 0.0f);
  size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) {
      float x = row[i + lane];
      peak[lane] = x > peak[lane] ? x : peak[lane];
      poison[lane] += x * 0.0f;  // NaN for infinities and NaN
    }
  for (; i < row.size(); ++i) {
    peak[0] = row[i] > peak[0] ? row[i] : peak[0];
    poison[0] += row[i] * 0.0f;
  }
  float best = kLowest, sum = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    best = std::max(best, peak[lane]);
    sum += poison[lane];
  }
  return sum == 0.0f ? best : std::numeric_limits<float>::quiet_NaN();
}

int32_t argmax(std::span<const float> row) {
  float best = kLowest;
  size_t from = 0;
  // Find the first run that holds the maximum, then the place in it.
  for (size_t start = 0; start < row.size(); start += kRun) {
    size_t n = std::min(kRun, row.size() - start);
    float peak = row[start];
    for (size_t i = 1; i < n; ++i) peak = row[start + i] > peak ? row[start + i] : peak;
    if (peak > best) {
      best = peak;
      from = start;
    }
  }
  for (size_t i = from; i < std::min(from + kRun, row.size()); ++i)
    if (row[i] == best) return static_cast<int32_t>(i);
  return 0;
}

double sum_exp(std::span<const float> row, float peak, float inverse_temperature) {
  double sum[8] = {};
  size_t i = 0;
  for (; i + 8 <= row.size(); i += 8) {
    float e[8];
    for (size_t lane = 0; lane < 8; ++lane)
      e[lane] = fast_exp((row[i + lane] - peak) * inverse_temperature);
    for (size_t lane = 0; lane < 8; ++lane) sum[lane] += static_cast<double>(e[lane]);
  }
  for (; i < row.size(); ++i)
    sum[0] += static_cast<double>(fast_exp((row[i] - peak) * inverse_temperature));
  return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

double log_sum_exp(std::span<const float> row, float peak) {
  return static_cast<double>(peak) + std::log(sum_exp(row, peak, 1.0f));
}

void run_maxima(std::span<const float> row, std::span<float> out) {
  for (size_t start = 0, run = 0; start < row.size(); start += kRun, ++run) {
    size_t n = std::min(kRun, row.size() - start);
    float peak[kLanes];
    std::fill_n(peak, kLanes, kLowest);
    if (n == kRun) {
      for (size_t i = 0; i < kRun; i += kLanes)
        for (size_t lane = 0; lane < kLanes; ++lane) {
          float x = row[start + i + lane];
          peak[lane] = x > peak[lane] ? x : peak[lane];
        }
    } else {
      for (size_t i = 0; i < n; ++i) peak[0] = std::max(peak[0], row[start + i]);
    }
    out[run] = *std::max_element(peak, peak + kLanes);
  }
}

}  // namespace tokamak
