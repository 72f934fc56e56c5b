#include "ops/sampling_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "base/rng.h"

namespace tokamak {
namespace {

constexpr double kRemoved = -std::numeric_limits<double>::infinity();

// The tokens that are left, the likeliest first; equal logits are ordered by id.
std::vector<int32_t> ranked(const Logits& x) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < x.size(); ++i)
    if (x[i] != kRemoved) ids.push_back(static_cast<int32_t>(i));
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    return x[static_cast<size_t>(a)] > x[static_cast<size_t>(b)];
  });
  return ids;
}

// Probabilities of the whole row; removed tokens have 0. Empty if none is left.
std::vector<double> softmax_of(const Logits& x) {
  double peak = *std::max_element(x.begin(), x.end()), total = 0;
  if (peak == kRemoved) return {};
  std::vector<double> p(x.size());
  for (size_t i = 0; i < x.size(); ++i) total += p[i] = std::exp(x[i] - peak);
  for (double& v : p) v /= total;
  return p;
}

void remove_from(Logits& x, std::span<const int32_t> ids) {
  for (int32_t id : ids) x[static_cast<size_t>(id)] = kRemoved;
}

bool contains(std::span<const int32_t> ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

float keyed_gumbel(uint64_t seed, int32_t choice, int32_t position, int32_t token) {
  // One call of Philox gives the noise of two tokens.
  auto words = philox(seed, noise_counter(choice, position), static_cast<uint32_t>(token) / 2);
  size_t half = token & 1 ? 2 : 0;
  double u = to_unit_double(words[half], words[half + 1]);
  return static_cast<float>(-std::log(-std::log(u)));
}

// Beyond the counters that tokens use.
float keyed_draw(uint64_t seed, int32_t choice, int32_t position) {
  return to_unit_float(philox(seed, noise_counter(choice, position), UINT64_MAX)[0]);
}

void penalize_row(Logits& x, const SamplingRow& row) {
  std::map<int32_t, int32_t> in_output;  // of every token of the history
  for (size_t i = 0; i < row.history.size(); ++i)
    in_output[row.history[i]] += static_cast<int64_t>(i) >= row.keys[kKeyPrompt] ? 1 : 0;
  double repetition = row.params[kParamRepetition];
  for (auto [id, count] : in_output) {
    double& v = x[static_cast<size_t>(id)];
    v = v > 0 ? v / repetition : v * repetition;
    if (count > 0) v -= row.params[kParamFrequency] * count + row.params[kParamPresence];
  }
}

// DRY. Token c loses multiplier * base ^ (length - allowed), where length is the longest end of the
// history that also stands before an earlier c, if it reaches `allowed`.
void penalize_repeats_row(Logits& x, const SamplingRow& row) {
  double multiplier = row.params[kParamDryMultiplier], base = row.params[kParamDryBase];
  if (multiplier <= 0) return;
  std::span<const int32_t> ids = row.history;
  int32_t last = row.keys[kKeyDryLast], allowed = row.keys[kKeyDryAllowed];
  if (last >= 0 && ids.size() > static_cast<size_t>(last))
    ids = ids.last(static_cast<size_t>(last));
  auto n = static_cast<int64_t>(ids.size());
  auto at = [&](int64_t i) { return ids[static_cast<size_t>(i)]; };
  int64_t reach = 0;  // no repetition extends across a breaker
  while (reach < n && !contains(row.breakers, at(n - 1 - reach))) ++reach;
  std::map<int32_t, int64_t> longest;
  for (int64_t c = 1; c < n; ++c) {
    int64_t length = 0;
    while (length < std::min(reach, c) && at(c - 1 - length) == at(n - 1 - length)) ++length;
    int64_t& best = longest[at(c)];
    best = std::max(best, length);
  }
  // Beyond this the power would overflow f32.
  auto most = static_cast<int64_t>(88.7f / std::log(std::max(static_cast<float>(base), 1.000001f)));
  for (auto [id, length] : longest)
    if (length > 0 && length >= allowed && !contains(row.breakers, id))
      x[static_cast<size_t>(id)] -=
          multiplier * std::pow(base, static_cast<double>(std::min(length - allowed, most)));
}

// Tokens that are more than n standard deviations of the logits below the largest.
void keep_top_n_sigma_row(Logits& x, const SamplingRow& row) {
  double n = row.params[kParamTopNSigma], sum = 0, squares = 0, count = 0;
  double peak = *std::max_element(x.begin(), x.end());
  if (n <= 0 || row.params[kParamTemperature] <= 0 || peak == kRemoved) return;
  for (double v : x)
    if (v != kRemoved) sum += v, ++count;
  for (double v : x)
    if (v != kRemoved) squares += (v - sum / count) * (v - sum / count);
  double bound = peak - n * std::sqrt(squares / count);
  for (double& v : x)
    if (v < bound) v = kRemoved;
}

// Between temperature - range and temperature + range, the higher the flatter the distribution is:
// its entropy over that of the uniform one, to the power of the exponent.
double row_temperature(const Logits& x, const SamplingRow& row) {
  double temperature = row.params[kParamTemperature], range = row.params[kParamDynatempRange];
  if (range <= 0) return temperature;
  std::vector<double> p = softmax_of(x);
  double entropy = 0, count = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    count += x[i] != kRemoved;
    if (p[i] > 0) entropy -= p[i] * std::log(p[i]);
  }
  if (count < 2) return temperature;
  double low = std::max(0.0, temperature - range), high = temperature + range;
  double share =
      std::pow(std::max(0.0, entropy / std::log(count)), row.params[kParamDynatempExponent]);
  return static_cast<double>(
      std::max(static_cast<float>(low + (high - low) * share), kLeastTemperature));
}

void temper_row(Logits& x, const SamplingRow& row) {
  if (row.params[kParamTemperature] <= 0) return;
  double temperature = row_temperature(x, row);
  for (double& v : x) v /= temperature;
}

void keep_top_k_row(Logits& x, const SamplingRow& row) {
  auto k = static_cast<size_t>(std::max(0.0, row.params[kParamTopK]));
  std::vector<int32_t> ids = ranked(x);
  if (k > 0 && k < ids.size()) remove_from(x, std::span(ids).subspan(k));
}

// The smallest set of the likeliest tokens whose probability reaches top_p of the sum.
void keep_top_p_row(Logits& x, const SamplingRow& row) {
  double top_p = row.params[kParamTopP], mass = 0;
  std::vector<double> p = softmax_of(x);
  if (top_p >= 1 || p.empty()) return;
  std::vector<int32_t> ids = ranked(x);
  size_t kept = 0;
  do {
    mass += p[static_cast<size_t>(ids[kept++])];
  } while (kept < ids.size() && mass < top_p);
  remove_from(x, std::span(ids).subspan(kept));
}

void keep_min_p_row(Logits& x, const SamplingRow& row) {
  double min_p = row.params[kParamMinP];
  if (min_p <= 0) return;
  double bound = *std::max_element(x.begin(), x.end()) + std::log(std::min(min_p, 1.0));
  for (double& v : x)
    if (v < bound) v = kRemoved;
}

// Those whose surprise is closest to the entropy, until they hold more than typical_p.
void keep_typical_row(Logits& x, const SamplingRow& row) {
  double typical_p = row.params[kParamTypicalP], entropy = 0, mass = 0;
  std::vector<double> p = softmax_of(x);
  if (typical_p >= 1 || p.empty()) return;
  std::vector<int32_t> ids;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] != kRemoved) ids.push_back(static_cast<int32_t>(i));
    if (p[i] > 0) entropy -= p[i] * std::log(p[i]);
  }
  auto distance = [&](int32_t id) {
    return static_cast<float>(std::abs(-std::log(p[static_cast<size_t>(id)]) - entropy));
  };
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return distance(a) < distance(b); });
  size_t kept = 0;
  while (kept < ids.size() && mass <= typical_p) mass += p[static_cast<size_t>(ids[kept++])];
  remove_from(x, std::span(ids).subspan(kept));
}

// XTC: with some probability all tokens that reach the threshold are removed but the least likely.
void exclude_top_row(Logits& x, const SamplingRow& row) {
  double probability = row.params[kParamXtcProbability], threshold = row.params[kParamXtcThreshold];
  if (probability <= 0 || threshold > 0.5) return;
  if (static_cast<double>(keyed_draw(row.seed(), row.keys[kKeyChoice], row.keys[kKeyPosition])) >=
      probability)
    return;
  std::vector<double> p = softmax_of(x);
  if (p.empty()) return;
  std::vector<int32_t> reach = ranked(x);
  std::erase_if(reach, [&](int32_t id) { return p[static_cast<size_t>(id)] < threshold; });
  if (reach.size() > 1) remove_from(x, std::span(reach).first(reach.size() - 1));
}

void stages_row(Logits& x, const SamplingRow& row, std::span<const int32_t> order) {
  using Stage = void (*)(Logits&, const SamplingRow&);
  constexpr Stage kStages[kSampleStages] = {
      penalize_row,   penalize_repeats_row, temper_row,      keep_top_k_row,      keep_typical_row,
      keep_top_p_row, keep_min_p_row,       exclude_top_row, keep_top_n_sigma_row};
  bool greedy = row.params[kParamTemperature] <= 0;
  for (int32_t stage : order) {
    if (stage < 0 || stage >= kSampleStages) return;
    if (!greedy || stage < 2) kStages[stage](x, row);  // greedy: only the penalties matter
  }
}

int32_t choose_row(const Logits& x, const SamplingRow& row) {
  double peak = *std::max_element(x.begin(), x.end()), best = kRemoved;
  if (peak == kRemoved) return kTokenNotAllowed;
  bool greedy = row.params[kParamTemperature] <= 0;
  int32_t chosen = kTokenNotAllowed;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == kRemoved) continue;
    auto id = static_cast<int32_t>(i);
    double value = x[i] - peak;
    if (!greedy)
      value += static_cast<double>(
          keyed_gumbel(row.seed(), row.keys[kKeyChoice], row.keys[kKeyPosition], id));
    if (chosen >= 0 && value <= best) continue;
    best = value;
    chosen = id;
  }
  return chosen;
}

}  // namespace tokamak
