// How a token of one row is chosen: the usual case.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/common/logits_math.h"
#include "backend/common/token_chooser.h"
#include "base/rng.h"

namespace tokamak {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
// Largest noise there is: u has 52 bits and stays below 1 by half a step.
constexpr double kMaxNoise = 36.75;

double gumbel(double u) { return -std::log(-std::log(u)); }

}  // namespace

// The logits after the stages that change single tokens; the row itself if none of them does.
std::span<const float> TokenChooser::adjust(const Settings& s, std::span<const float> logits) {
  if (s.history.empty() && s.bias_ids.empty() && s.mask.empty()) return logits;
  std::copy(logits.begin(), logits.end(), scratch_.begin());
  penalize(s);
  discourage_repeats(s);
  bias(s);
  return scratch_;
}

void TokenChooser::bias(const Settings& s) {
  for (size_t i = 0; i < s.bias_ids.size(); ++i)
    scratch_[static_cast<size_t>(s.bias_ids[i])] += s.bias_values[i];
  for (size_t word = 0; word < s.mask.size(); ++word) {
    auto bits = static_cast<uint32_t>(s.mask[word]);
    if (bits == UINT32_MAX) continue;
    for (size_t id = word * 32; id < std::min(word * 32 + 32, scratch_.size()); ++id)
      if ((bits >> (id % 32) & 1) == 0) scratch_[id] = kLowest;
  }
}

void TokenChooser::penalize(const Settings& s) {
  if (s.repetition == 1.0f && s.presence == 0 && s.frequency == 0) return;
  if (++stamp_ == 0) {  // wrapped around: old stamps would look new
    std::fill(counts_.begin(), counts_.end(), Count{});
    stamp_ = 1;
  }
  auto prompt = static_cast<size_t>(s.prompt_tokens);
  for (size_t i = 0; i < s.history.size(); ++i) {
    Count& count = counts_[static_cast<size_t>(s.history[i])];
    if (count.stamp != stamp_) count = {stamp_, 0};
    if (i >= prompt) ++count.in_output;
  }
  for (int32_t id : s.history) {
    Count& count = counts_[static_cast<size_t>(id)];
    if (count.stamp != stamp_) continue;  // done already
    float& x = scratch_[static_cast<size_t>(id)];
    x = x > 0 ? x / s.repetition : x * s.repetition;
    if (count.in_output > 0) x -= s.frequency * static_cast<float>(count.in_output) + s.presence;
    count.stamp = stamp_ - 1;
  }
}

// A value that at least k logits reach, close to the k-th largest: the k-th largest of the maxima
// of short runs. Without enough runs, everything reaches it.
float TokenChooser::top_k_bound(std::span<const float> logits, int64_t k) {
  if (k >= static_cast<int64_t>(maxima_.size())) return kLowest;
  run_maxima(logits, maxima_);
  std::copy(maxima_.begin(), maxima_.end(), selected_.begin());
  std::nth_element(selected_.begin(), selected_.begin() + (k - 1), selected_.end(),
                   std::greater<>());
  return selected_[static_cast<size_t>(k - 1)];
}

void TokenChooser::collect(std::span<const float> logits, float at_least) {
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i)
    if (logits[i] >= at_least && logits[i] != kLowest)
      candidates_.push_back({logits[i], static_cast<int32_t>(i)});
}

void TokenChooser::keep_best(size_t k) {
  if (candidates_.size() <= k) return;
  std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(k),
                   candidates_.end());
  candidates_.resize(k);
}

// The smallest set of best candidates whose mass reaches top_p of the total. Narrows the border
// down like quickselect: linear on average, whatever the distribution.
void TokenChooser::keep_top_p(float top_p, float inverse_temperature, float peak, double total) {
  double wanted = static_cast<double>(top_p) * total, kept = 0;
  auto weight = [&](const Candidate& c) {
    return static_cast<double>(fast_exp((c.logit - peak) * inverse_temperature));
  };
  auto low = candidates_.begin(), high = candidates_.end();
  // Invariant: everything before `low` is kept, nothing from `high` on is.
  while (high - low > 1) {
    auto middle = low + (high - low) / 2;
    std::nth_element(low, middle, high);
    double upper = 0;
    for (auto it = low; it != middle; ++it) upper += weight(*it);
    if (kept + upper >= wanted) {
      high = middle;
    } else {
      kept += upper;
      low = middle;
    }
  }
  // One candidate is left between the two: the one that reaches the border, or the last there is.
  if (low != high) ++low;
  candidates_.erase(low, candidates_.end());
}

// No filter: every token takes part, but those whose noise cannot lift them above the best so far
// are passed over before their noise is computed.
int32_t TokenChooser::choose_among_all(const Settings& s, std::span<const float> logits,
                                       float peak) {
  double inverse = 1.0 / static_cast<double>(s.temperature), best = -INFINITY;
  uint64_t counter = noise_counter(s.choice, s.position);
  int32_t winner = 0;
  auto relative = [&](float logit) {  // log of the probability, up to a constant
    return (static_cast<double>(logit) - static_cast<double>(peak)) * inverse;
  };
  auto consider = [&](size_t token, double u) {
    double value = relative(logits[token]);
    // noise <= -log(1 - u), because -log(u) >= 1 - u
    if (value + kMaxNoise < best || std::exp(value - best) < 1.0 - u) return;
    value += static_cast<double>(static_cast<float>(gumbel(u)));
    if (value > best || (value == best && static_cast<int32_t>(token) < winner)) {
      best = value;
      winner = static_cast<int32_t>(token);
    }
  };
  auto consider_pair = [&](size_t first) {
    auto words = philox(s.seed, counter, first / 2);
    consider(first, to_unit_double(words[0], words[1]));
    if (first + 1 < logits.size()) consider(first + 1, to_unit_double(words[2], words[3]));
  };
  // The likeliest token first: it raises the bar for all others.
  consider_pair(static_cast<size_t>(argmax(logits)) & ~size_t{1});
  run_maxima(logits, maxima_);
  for (size_t run = 0; run < maxima_.size(); ++run) {
    if (relative(maxima_[run]) + kMaxNoise < best) continue;
    for (size_t i = run * kRun; i < std::min((run + 1) * kRun, logits.size()); i += 2)
      consider_pair(i);
  }
  return winner;
}

int32_t TokenChooser::choose_plain(const Settings& s, std::span<const float> logits) {
  int32_t best = argmax(logits);
  float peak = logits[static_cast<size_t>(best)];
  if (peak == kLowest) return kTokenNotAllowed;
  if (s.temperature <= 0 || s.top_k == 1) return best;
  float inverse = 1.0f / s.temperature, bound = kLowest;
  bool top_k = s.top_k > 0 && s.top_k < vocab_, top_p = s.top_p < 1.0f;
  double total = 0;  // mass of what takes part in top-p
  if (s.min_p > 0) bound = peak + std::log(std::min(s.min_p, 1.0f)) * s.temperature;
  if (top_k) bound = std::max(bound, top_k_bound(logits, s.top_k));
  if (!top_k && s.min_p <= 0) {
    if (!top_p) return choose_among_all(s, logits, peak);
    // Tokens below this cannot reach 1 - top_p of the mass together, so the border is above it.
    total = sum_exp(logits, peak, inverse);
    double least =
        std::max(1.0 - static_cast<double>(s.top_p), 1e-6) * total / static_cast<double>(vocab_);
    bound = peak + static_cast<float>(std::log(least)) * s.temperature;
  }
  collect(logits, bound);
  if (top_k) keep_best(static_cast<size_t>(s.top_k));
  if (top_p) {
    if (total == 0)
      for (const Candidate& c : candidates_)
        total += static_cast<double>(fast_exp((c.logit - peak) * inverse));
    keep_top_p(s.top_p, inverse, peak, total);
  }
  return draw(s, s.temperature, peak);
}

// Gumbel-max over the candidates.
int32_t TokenChooser::draw(const Settings& s, float temperature, float peak) {
  double top = -INFINITY;
  int32_t best = 0;
  for (const Candidate& c : candidates_) {
    double value = (static_cast<double>(c.logit) - static_cast<double>(peak)) /
                       static_cast<double>(temperature) +
                   static_cast<double>(keyed_gumbel(s.seed, s.choice, s.position, c.id));
    if (value > top || (value == top && c.id < best)) {
      top = value;
      best = c.id;
    }
  }
  return best;
}

}  // namespace tokamak
