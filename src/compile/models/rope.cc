#include "compile/models/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace tokamak {
namespace {

using Scaling = RopeConfig::Scaling;

// Long wavelengths are stretched, short ones kept, with a smooth ramp in between (Llama 3.1). A
// divisor in float32 arithmetic, as converters write it into the tensor rope_freqs of a GGUF file:
// both formats of a model then give the same bits.
double llama3_divisor(const RopeConfig& r, int64_t pair) {
  float inv = 1 / std::pow(static_cast<float>(r.theta),
                           static_cast<float>(2 * pair) / static_cast<float>(r.dims));
  float wavelength = static_cast<float>(2 * std::numbers::pi) / inv;
  auto original = static_cast<double>(r.original_context);
  if (wavelength < original / r.high_freq_factor) return 1;
  if (wavelength > original / r.low_freq_factor) return r.factor;
  float smooth =
      (static_cast<float>(original) / wavelength - static_cast<float>(r.low_freq_factor)) /
      static_cast<float>(r.high_freq_factor - r.low_freq_factor);
  return 1 / ((1 - smooth) / static_cast<float>(r.factor) + smooth);
}

// The pair index whose angle makes `rotations` turns over the original context (YaRN).
double yarn_pair(const RopeConfig& r, double rotations) {
  double dims = static_cast<double>(r.dims);
  return dims *
         std::log(static_cast<double>(r.original_context) / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(r.theta));
}

double yarn_mscale(double factor, double m) {
  return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1.0;
}

void apply_yarn(const RopeConfig& r, RopeTable& table) {
  double low = yarn_pair(r, r.beta_fast), high = yarn_pair(r, r.beta_slow);
  if (r.yarn_truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(r.dims) - 1);
  if (high == low) high += 0.001;  // avoid division by zero if both ends are equal
  for (size_t i = 0; i < table.inv_freq.size(); ++i) {
    double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    double keep = 1 - ramp;  // 1: extrapolate (unchanged), 0: interpolate (divided)
    table.inv_freq[i] = table.inv_freq[i] / r.factor * (1 - keep) + table.inv_freq[i] * keep;
  }
  if (r.attention_factor > 0)
    table.scale = r.attention_factor;
  else if (r.mscale > 0 && r.mscale_all_dim > 0)
    table.scale = yarn_mscale(r.factor, r.mscale) / yarn_mscale(r.factor, r.mscale_all_dim);
  else
    table.scale = yarn_mscale(r.factor, 1.0);
}

void apply_longrope(const RopeConfig& r, int64_t context, RopeTable& table) {
  bool is_long = r.original_context > 0 && context > r.original_context;
  const std::vector<double>& factors = is_long ? r.long_factor : r.short_factor;
  if (factors.size() != table.inv_freq.size())
    fail(ErrorCode::kCorrupt, "longrope has {} factors for {} rotary pairs", factors.size(),
         table.inv_freq.size());
  for (size_t i = 0; i < factors.size(); ++i) table.inv_freq[i] /= factors[i];
  if (r.attention_factor > 0)
    table.scale = r.attention_factor;
  else if (r.factor > 1)  // float32: as GGUF files store it
    table.scale = static_cast<float>(
        std::sqrt(1 + std::log(r.factor) / std::log(static_cast<double>(r.original_context))));
}

}  // namespace

std::vector<double> llama3_divisors(const RopeConfig& r) {
  std::vector<double> divisors;
  for (int64_t i = 0; i < r.dims / 2; ++i) divisors.push_back(llama3_divisor(r, i));
  return divisors;
}

RopeTable rope_table(const RopeConfig& r, int64_t context) {
  if (r.dims <= 0 || r.dims % 2 != 0)
    fail(ErrorCode::kUnsupported,
         "rotary embedding over {} dimensions: the number must be even and positive", r.dims);
  double theta = r.theta;
  auto dims = static_cast<double>(r.dims);
  if (r.scaling == Scaling::kDynamic && r.original_context > 0 && context > r.original_context) {
    double stretch =
        r.factor * static_cast<double>(context) / static_cast<double>(r.original_context) -
        (r.factor - 1);
    theta *= std::pow(stretch, dims / (dims - 2));
  }
  RopeTable table;
  for (int64_t i = 0; i < r.dims / 2; ++i)
    table.inv_freq.push_back(std::pow(theta, -2.0 * static_cast<double>(i) / dims));

  if (r.scaling == Scaling::kLinear)
    for (double& f : table.inv_freq) f /= r.factor;
  if (r.scaling == Scaling::kLlama3)
    for (size_t i = 0; i < table.inv_freq.size(); ++i)
      table.inv_freq[i] /= llama3_divisor(r, static_cast<int64_t>(i));
  if (r.scaling == Scaling::kYarn) apply_yarn(r, table);
  if (r.scaling == Scaling::kLongRope) apply_longrope(r, context, table);
  if (!r.freq_divisors.empty()) {
    if (r.freq_divisors.size() != table.inv_freq.size())
      fail(ErrorCode::kCorrupt, "rope_freqs has {} entries for {} rotary pairs",
           r.freq_divisors.size(), table.inv_freq.size());
    for (size_t i = 0; i < table.inv_freq.size(); ++i) table.inv_freq[i] /= r.freq_divisors[i];
  }
  if (r.backwards)
    for (double& f : table.inv_freq) f = -f;
  return table;
}

}  // namespace tokamak
