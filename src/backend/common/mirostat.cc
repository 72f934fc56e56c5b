#include "backend/common/mirostat.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tokamak {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr size_t kSlopeTokens = 100;  // version 1 estimates the exponent of Zipf's law from these

}  // namespace

double Mirostat::value(const SampleRow& sample, std::span<const float> logits, int32_t id) const {
  const SampleSpec& spec = *sample.spec;
  auto x = static_cast<double>(logits[static_cast<size_t>(id)]);
  for (const auto& [biased, bias] : spec.logit_bias)
    if (biased == id) x += static_cast<double>(bias);
  return x / static_cast<double>(spec.temperature);
}

std::span<const uint32_t> Mirostat::filter(const SampleRow& sample, float mu,
                                           std::span<const float> logits,
                                           std::span<const uint32_t> mask) {
  const SampleSpec& spec = *sample.spec;
  x_.resize(logits.size());
  bool finite = true;
  for (size_t i = 0; i < logits.size(); ++i) {
    finite = finite && std::isfinite(logits[i]);
    bool allowed = mask.empty() || (mask[i / 32] >> (i % 32) & 1) != 0;
    x_[i] = allowed ? static_cast<double>(logits[i]) / static_cast<double>(spec.temperature)
                    : kMinusInfinity;
  }
  for (const auto& [id, bias] : spec.logit_bias)
    if (auto i = static_cast<size_t>(id); id >= 0 && i < x_.size() && x_[i] != kMinusInfinity)
      x_[i] = value(sample, logits, id);
  if (sample.generated < spec.min_tokens)
    for (int32_t id : spec.banned_until_min)
      if (id >= 0 && static_cast<size_t>(id) < x_.size())
        x_[static_cast<size_t>(id)] = kMinusInfinity;
  ids_.clear();
  for (size_t i = 0; i < x_.size(); ++i)
    if (x_[i] != kMinusInfinity) ids_.push_back(static_cast<int32_t>(i));
  if (finite && !ids_.empty()) {
    if (spec.mirostat == 1)
      keep_likeliest(mu);
    else
      keep_unsurprising(mu);
    log_total_ = log_sum();
  }
  left_.assign(mask_words(vocab_), 0);
  for (int32_t id : ids_) left_[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  return left_;
}

double Mirostat::log_sum() const {
  double peak = kMinusInfinity, sum = 0;
  for (int32_t id : ids_) peak = std::max(peak, x_[static_cast<size_t>(id)]);
  for (int32_t id : ids_) sum += std::exp(x_[static_cast<size_t>(id)] - peak);
  return peak + std::log(sum);
}

// Version 2: tokens whose surprise is at most mu, but at least the likeliest one.
void Mirostat::keep_unsurprising(float mu) {
  double least = log_sum() - static_cast<double>(mu) * std::log(2.0);
  auto x = [&](int32_t id) { return x_[static_cast<size_t>(id)]; };
  int32_t best = *std::max_element(ids_.begin(), ids_.end(),
                                   [&](int32_t a, int32_t b) { return x(a) < x(b); });
  std::erase_if(ids_, [&](int32_t id) { return x(id) < least; });
  if (ids_.empty()) ids_.push_back(best);
}

// Version 1: the k likeliest tokens, where k follows from mu if probabilities fall as Zipf's law
// says; its exponent is estimated from the likeliest tokens.
void Mirostat::keep_likeliest(float mu) {
  auto before = [&](int32_t a, int32_t b) {
    double xa = x_[static_cast<size_t>(a)], xb = x_[static_cast<size_t>(b)];
    return xa != xb ? xa > xb : a < b;
  };
  auto nth = [&](size_t n) { return ids_.begin() + static_cast<std::ptrdiff_t>(n); };
  size_t most = std::min(kSlopeTokens, ids_.size());
  std::partial_sort(ids_.begin(), nth(most), ids_.end(), before);
  double products = 0, squares = 0;
  for (size_t i = 0; i + 1 < most; ++i) {
    double t = std::log(static_cast<double>(i + 2) / static_cast<double>(i + 1));
    double b = x_[static_cast<size_t>(ids_[i])] - x_[static_cast<size_t>(ids_[i + 1])];
    products += t * b;
    squares += t * t;
  }
  if (squares == 0) return;  // one token
  double s = products / squares, epsilon = s - 1;
  double k = std::pow(epsilon * std::pow(2.0, static_cast<double>(mu)) /
                          (1 - std::pow(static_cast<double>(vocab_), -epsilon)),
                      1 / s);
  if (!(k < static_cast<double>(ids_.size()))) return;  // also if it is not a number
  size_t keep = std::max<size_t>(1, k < 1 ? 1 : static_cast<size_t>(k));
  if (keep > most) std::nth_element(ids_.begin(), nth(keep), ids_.end(), before);
  ids_.resize(keep);
}

float Mirostat::after(const SampleRow& sample, float mu, std::span<const float> logits, int32_t id,
                      double log_total) const {
  const SampleSpec& spec = *sample.spec;
  double surprise = (log_total - value(sample, logits, id)) / std::log(2.0);
  double error = surprise - static_cast<double>(spec.mirostat_tau);
  return mu - static_cast<float>(static_cast<double>(spec.mirostat_eta) * error);
}

}  // namespace tokamak
