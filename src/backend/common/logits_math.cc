#include "backend/common/logits_math.h"

#include <cstring>
#include <limits>

namespace tokamak {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Four floats as the compiler's own vector type: comparisons stay exact and become vector code at
// every optimisation level.
using Vec = float __attribute__((vector_size(16)));

Vec load(const float* x) {
  Vec v;
  std::memcpy(&v, x, sizeof v);
  return v;
}
Vec larger(Vec a, Vec b) { return a > b ? a : b; }
float largest(Vec v) { return std::max(std::max(v[0], v[1]), std::max(v[2], v[3])); }

// The largest of up to kRun values.
float run_peak(const float* x, size_t n) {
  if (n == kRun) {
    Vec a = load(x), b = load(x + 4), c = load(x + 8), d = load(x + 12);
    for (size_t i = 16; i < kRun; i += 16) {
      a = larger(load(x + i), a);
      b = larger(load(x + i + 4), b);
      c = larger(load(x + i + 8), c);
      d = larger(load(x + i + 12), d);
    }
    return largest(larger(larger(a, b), larger(c, d)));
  }
  float peak = kLowest;
  for (size_t i = 0; i < n; ++i) peak = std::max(peak, x[i]);
  return peak;
}

}  // namespace

float finite_max(std::span<const float> row) {
  Vec peak[4], poison[4];
  for (int lane = 0; lane < 4; ++lane) {
    peak[lane] = Vec{kLowest, kLowest, kLowest, kLowest};
    poison[lane] = Vec{};
  }
  size_t i = 0;
  for (; i + 16 <= row.size(); i += 16)
    for (size_t lane = 0; lane < 4; ++lane) {
      Vec x = load(row.data() + i + 4 * lane);
      peak[lane] = larger(x, peak[lane]);
      poison[lane] += x * 0.0f;  // NaN for infinities and NaN
    }
  Vec all = larger(larger(peak[0], peak[1]), larger(peak[2], peak[3]));
  Vec sum = (poison[0] + poison[1]) + (poison[2] + poison[3]);
  float best = largest(all), not_finite = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  for (; i < row.size(); ++i) {
    best = std::max(best, row[i]);
    not_finite += row[i] * 0.0f;
  }
  return not_finite == 0.0f ? best : std::numeric_limits<float>::quiet_NaN();
}

int32_t argmax(std::span<const float> row) {
  float best = kLowest;
  size_t from = 0;
  // Find the first run that holds the maximum, then the place in it.
  for (size_t start = 0; start < row.size(); start += kRun) {
    float peak = run_peak(row.data() + start, std::min(kRun, row.size() - start));
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
  // One run at a time through a small buffer: the exponentials are one vector loop, the sums
  // another.
  double sum[8] = {};
  float e[kRun];
  size_t i = 0;
  for (; i + kRun <= row.size(); i += kRun) {
    const float* x = row.data() + i;
    for (size_t j = 0; j < kRun; ++j) e[j] = fast_exp((x[j] - peak) * inverse_temperature);
    for (size_t j = 0; j < kRun; j += 8)
      for (size_t lane = 0; lane < 8; ++lane) sum[lane] += static_cast<double>(e[j + lane]);
  }
  for (; i < row.size(); ++i)
    sum[0] += static_cast<double>(fast_exp((row[i] - peak) * inverse_temperature));
  return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

double log_sum_exp(std::span<const float> row, float peak) {
  return static_cast<double>(peak) + std::log(sum_exp(row, peak, 1.0f));
}

void guide_row(std::span<const float> other, float scale, std::span<float> row) {
  double own_total = log_sum_exp(row, finite_max(row)),
         other_total = log_sum_exp(other, finite_max(other)), factor = static_cast<double>(scale);
  for (size_t i = 0; i < row.size(); ++i) {
    double c = static_cast<double>(row[i]) - own_total,
           u = static_cast<double>(other[i]) - other_total;
    row[i] = static_cast<float>(u + factor * (c - u));
  }
}

namespace {

// log(x) for x from 1e-37 to 2, error below 2e-7 of max(1, |log(x)|); the polynomial is Cephes'.
inline float fast_log(float x) {
  auto bits = std::bit_cast<int32_t>(x);
  int32_t exponent = (bits - 0x3F3504F3) >> 23;  // leaves sqrt(1/2) to sqrt(2)
  float m = std::bit_cast<float>(bits - exponent * (1 << 23)) - 1.0f;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  auto e = static_cast<float>(exponent);
  float low = p * m * m * m - 2.12194440e-4f * e - 0.5f * m * m;
  return m + low + 0.693359375f * e;
}

// Twice the divergence of two distributions from their mean m, KL(m, p) + KL(m, q), as transformers
// defines it for DoLa; p and q are given as logits and the logarithms of their totals.
double divergence(std::span<const float> a, double a_total, std::span<const float> b,
                  double b_total) {
  constexpr float kLeast = 1e-37f;  // of a mean whose logarithm is taken
  double sum = 0;
  float terms[kRun];
  for (size_t start = 0; start < a.size(); start += kRun) {
    const float *x = a.data() + start, *y = b.data() + start;
    size_t n = std::min(kRun, a.size() - start);
    for (size_t i = 0; i < n; ++i) {
      auto p = static_cast<float>(static_cast<double>(x[i]) - a_total),
           q = static_cast<float>(static_cast<double>(y[i]) - b_total);
      float mean = 0.5f * (fast_exp(p) + fast_exp(q));
      terms[i] = mean * (2 * fast_log(mean > kLeast ? mean : kLeast) - p - q);
    }
    for (size_t i = 0; i < n; ++i) sum += static_cast<double>(terms[i]);
  }
  return sum;
}

}  // namespace

void contrast_row(std::span<const float> layers, std::span<float> row) {
  const double kRelativeTop = std::log(0.1), kLast = -1e4;
  float peak = finite_max(row);
  double total = log_sum_exp(row, peak), other_total = 0, most = 0;
  std::span<const float> other;
  for (size_t at = 0; at < layers.size(); at += row.size()) {
    std::span<const float> layer = layers.subspan(at, row.size());
    double layer_total = log_sum_exp(layer, finite_max(layer));
    double apart = layers.size() > row.size() ? divergence(row, total, layer, layer_total) : 0;
    if (!other.empty() && apart <= most) continue;
    other = layer;
    other_total = layer_total;
    most = apart;
  }
  double least = static_cast<double>(peak) + kRelativeTop;
  for (size_t i = 0; i < row.size(); ++i) {
    double x = static_cast<double>(row[i]), own = x - total;
    row[i] = static_cast<float>(x < least ? kLast + own
                                          : own - (static_cast<double>(other[i]) - other_total));
  }
}

void run_maxima(std::span<const float> row, std::span<float> out) {
  for (size_t start = 0, run = 0; start < row.size(); start += kRun, ++run)
    out[run] = run_peak(row.data() + start, std::min(kRun, row.size() - start));
}

}  // namespace tokamak
