// Sampling stages in any order against the plainest spelling of each.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/common/sampler.h"
#include "base/rng.h"

namespace tokamak {
namespace {

using Spec = std::shared_ptr<const SampleSpec>;
using Ids = std::vector<int32_t>;

// Logits and what is left of them, in double.
struct Plain {
  const SampleSpec& spec;
  const SampleRow& row;
  const Ids& history;
  size_t prompt;
  std::vector<double> x;
  Ids left;

  double& at(int32_t id) { return x[static_cast<size_t>(id)]; }
  void sort() {
    std::stable_sort(left.begin(), left.end(),
                     [&](int32_t a, int32_t b) { return at(a) != at(b) ? at(a) > at(b) : a < b; });
  }
  std::vector<double> probabilities() {  // of left, in its order
    double peak = -INFINITY, total = 0;
    for (int32_t id : left) peak = std::max(peak, at(id));
    for (int32_t id : left) total += std::exp(at(id) - peak);
    std::vector<double> p;
    for (int32_t id : left) p.push_back(std::exp(at(id) - peak) / total);
    return p;
  }

  void penalties() {
    for (int32_t id = 0; id < static_cast<int32_t>(x.size()); ++id) {
      auto seen = std::count(history.begin(), history.end(), id);
      auto output =
          std::count(history.begin() + static_cast<std::ptrdiff_t>(prompt), history.end(), id);
      double& v = at(id);
      if (seen > 0)
        v = v > 0 ? v / double{spec.repetition_penalty} : v * double{spec.repetition_penalty};
      if (output > 0)
        v -= double{spec.frequency_penalty} * static_cast<double>(output) +
             double{spec.presence_penalty};
    }
  }
  void dry() {
    if (spec.dry_multiplier <= 0) return;
    Ids h = history;
    if (spec.dry_last_n >= 0 && h.size() > static_cast<size_t>(spec.dry_last_n))
      h.erase(h.begin(), h.end() - spec.dry_last_n);
    auto breaks = [&](int32_t id) {
      return std::find(spec.dry_breakers.begin(), spec.dry_breakers.end(), id) !=
             spec.dry_breakers.end();
    };
    std::vector<int32_t> longest(x.size(), 0);
    for (size_t i = 0; i < h.size(); ++i) {  // h[i] followed h[i - 1], h[i - 2], ...
      size_t n = 0;
      while (n < i && h[i - 1 - n] == h[h.size() - 1 - n] && !breaks(h[i - 1 - n])) ++n;
      auto& l = longest[static_cast<size_t>(h[i])];
      l = std::max(l, static_cast<int32_t>(n));
    }
    for (int32_t id = 0; id < static_cast<int32_t>(x.size()); ++id) {
      int32_t n = longest[static_cast<size_t>(id)];
      if (n > 0 && n >= spec.dry_allowed_length && !breaks(id))
        at(id) -= double{spec.dry_multiplier} *
                  std::pow(double{spec.dry_base}, n - spec.dry_allowed_length);
    }
  }
  void typical() {
    if (spec.typical_p >= 1) return;
    auto p = probabilities();
    double entropy = 0;
    for (double q : p) entropy -= q > 0 ? q * std::log(q) : 0;
    std::vector<size_t> order(left.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return std::abs(-std::log(p[a]) - entropy) < std::abs(-std::log(p[b]) - entropy);
    });
    Ids kept;
    double mass = 0;
    for (size_t i = 0; i < order.size() && mass <= double{spec.typical_p}; ++i) {
      kept.push_back(left[order[i]]);
      mass += p[order[i]];
    }
    left = kept;
  }
  void top_p() {
    if (spec.top_p >= 1) return;
    sort();
    auto p = probabilities();
    size_t n = 0;
    for (double sum = 0; n < left.size() && (n == 0 || sum < double{spec.top_p}); ++n) sum += p[n];
    left.resize(n);
  }
  void xtc() {
    if (spec.xtc_probability <= 0) return;
    uint64_t counter =
        uint64_t{static_cast<uint32_t>(row.choice)} << 32 | static_cast<uint32_t>(row.position);
    if (to_unit_float(philox(spec.seed, counter, UINT64_MAX)[0]) >= spec.xtc_probability) return;
    sort();
    auto p = probabilities();
    auto n = static_cast<size_t>(std::count_if(
        p.begin(), p.end(), [&](double q) { return q >= double{spec.xtc_threshold}; }));
    if (n >= 2) left.erase(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(n) - 1);
  }
  void temper() {
    double t = double{spec.temperature}, entropy = 0;
    if (spec.dynatemp_range > 0 && left.size() > 1) {
      for (double q : probabilities()) entropy -= q > 0 ? q * std::log(q) : 0;
      double range = double{spec.dynatemp_range}, low = std::max(0.0, t - range);
      double share = entropy / std::log(static_cast<double>(left.size()));
      t = low + (t + range - low) * std::pow(share, double{spec.dynatemp_exponent});
    }
    for (double& v : x) v /= std::max(t, 1e-3);
  }
  void top_n_sigma() {
    if (spec.top_n_sigma <= 0) return;
    double mean = 0, variance = 0, peak = -INFINITY;
    auto n = static_cast<double>(left.size());
    for (int32_t id : left) mean += at(id) / n, peak = std::max(peak, at(id));
    for (int32_t id : left) variance += (at(id) - mean) * (at(id) - mean) / n;
    double least = peak - double{spec.top_n_sigma} * std::sqrt(variance);
    std::erase_if(left, [&](int32_t id) { return at(id) < least; });
  }
  void run(SampleStage stage) {
    switch (stage) {
      case SampleStage::kPenalties:
        return penalties();
      case SampleStage::kDry:
        return dry();
      case SampleStage::kTemperature:
        return temper();
      case SampleStage::kTopK:
        sort();
        if (spec.top_k > 0 && left.size() > static_cast<size_t>(spec.top_k))
          left.resize(static_cast<size_t>(spec.top_k));
        return;
      case SampleStage::kTypical:
        return typical();
      case SampleStage::kTopP:
        return top_p();
      case SampleStage::kMinP: {
        sort();
        double least = at(left[0]) + std::log(double{spec.min_p});
        std::erase_if(left, [&](int32_t id) { return at(id) < least; });
        return;
      }
      case SampleStage::kXtc:
        return xtc();
      case SampleStage::kTopNSigma:
        return top_n_sigma();
    }
  }
  int32_t choose(const std::vector<SampleStage>& order) {
    left.resize(x.size());
    std::iota(left.begin(), left.end(), 0);
    for (SampleStage stage : order) run(stage);
    int32_t best = -1;
    double top = -INFINITY;
    for (int32_t id : left) {
      double v = at(id) + double{keyed_gumbel(spec.seed, row.choice, row.position, id)};
      if (v > top) top = v, best = id;
    }
    return best;
  }
};

const std::vector<SampleStage> kUsual = {
    SampleStage::kPenalties,   SampleStage::kDry,  SampleStage::kTopNSigma,
    SampleStage::kTemperature, SampleStage::kMinP, SampleStage::kTopK,
    SampleStage::kTypical,     SampleStage::kTopP, SampleStage::kXtc};

SampleSpec random_spec(Rng& rng) {
  SampleSpec s;
  s.seed = rng.next_u64();
  s.temperature = static_cast<float>(rng.uniform(0.4, 1.8));
  if (rng.below(2)) s.top_k = static_cast<int32_t>(2 + rng.below(30));
  if (rng.below(2)) s.top_p = static_cast<float>(rng.uniform(0.2, 0.99));
  if (rng.below(2)) s.min_p = static_cast<float>(rng.uniform(0.001, 0.2));
  if (rng.below(2)) s.typical_p = static_cast<float>(rng.uniform(0.2, 0.99));
  if (rng.below(2))
    s.xtc_probability = 0.7f, s.xtc_threshold = static_cast<float>(rng.uniform(0.02, 0.4));
  if (rng.below(2)) s.top_n_sigma = static_cast<float>(rng.uniform(0.5, 3));
  if (rng.below(2)) {
    s.dynatemp_range = static_cast<float>(rng.uniform(0.1, 1));
    s.dynatemp_exponent = static_cast<float>(rng.uniform(0.5, 2));
  }
  if (rng.below(2)) s.repetition_penalty = 1.3f, s.frequency_penalty = 0.2f;
  if (rng.below(2)) {
    s.dry_multiplier = 0.8f;
    s.dry_allowed_length = static_cast<int32_t>(rng.below(4));
    if (rng.below(2)) s.dry_last_n = static_cast<int32_t>(rng.below(30));
    if (rng.below(2)) s.dry_breakers = {1};
  }
  return s;
}

TEST(SamplerStages, EqualThePlainSpelling) {
  Rng rng(12);
  constexpr int64_t kVocab = 60;
  Sampler sampler(kVocab, 1);
  int with_order = 0, dry = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    SampleSpec spec = random_spec(rng);
    std::vector<SampleStage> order = kUsual;
    if (rng.below(2)) {  // any order, some left out
      for (size_t i = order.size(); i-- > 1;) std::swap(order[i], order[rng.below(i + 1)]);
      order.resize(1 + rng.below(order.size()));
      spec.order = order;
      ++with_order;
    }
    dry += spec.dry_multiplier > 0;
    std::vector<float> logits;
    for (int64_t i = 0; i < kVocab; ++i) logits.push_back(static_cast<float>(rng.normal() * 2.5));
    StepInputs step;
    step.ids = step.seq = step.row = step.out_rows = {0};
    step.kv_len = {1};
    auto shared = std::make_shared<const SampleSpec>(spec);
    step.samples.push_back({SampleRow::Mode::kSample, -1, trial % 3, trial, 0, shared});
    Ids history;
    for (uint64_t n = rng.below(40), i = 0; i < n; ++i)
      history.push_back(static_cast<int32_t>(rng.below(3)));
    size_t prompt = rng.below(history.size() + 1);
    step.resets.push_back({0, static_cast<int32_t>(prompt), history});
    sampler.begin(step);
    StepResult result;
    sampler.finish(step, logits.data(), result);
    Plain plain{spec, step.samples[0], history, prompt, {logits.begin(), logits.end()}, {}};
    ASSERT_EQ(result.ids[0], plain.choose(order)) << "trial " << trial;
  }
  EXPECT_GT(with_order, 1000);
  EXPECT_GT(dry, 1000);
}

// A seed gives the same token whatever the row, the batch and the other requests are.
TEST(SamplerStages, TheSeedDecides) {
  Rng rng(4);
  constexpr size_t kVocab = 500;
  SampleSpec spec = random_spec(rng);
  spec.typical_p = 0.9f;
  spec.xtc_probability = 0.5f;
  auto shared = std::make_shared<const SampleSpec>(spec);
  std::vector<float> mine(kVocab), logits;
  for (float& v : mine) v = static_cast<float>(rng.normal());
  int32_t alone = -1;
  for (int32_t others = 0; others < 5; ++others) {
    Sampler sampler(kVocab, 8);
    StepInputs step;
    logits.clear();
    for (int32_t b = 0; b <= others; ++b) {
      step.ids.push_back(0);
      step.seq.push_back(b);
      step.row.push_back(others - b);
      step.kv_len.push_back(1);
      step.out_rows.push_back(b);
      SampleSpec other = random_spec(rng);
      bool last = b == others;
      step.samples.push_back({SampleRow::Mode::kSample, -1, last ? 1 : 0, last ? 9 : b, 0,
                              last ? shared : std::make_shared<const SampleSpec>(other)});
      for (size_t i = 0; i < kVocab; ++i)
        logits.push_back(last ? mine[i] : static_cast<float>(rng.normal()));
    }
    StepResult result;
    sampler.begin(step);
    sampler.finish(step, logits.data(), result);
    if (others == 0) alone = result.ids[0];
    EXPECT_EQ(result.ids.back(), alone);
  }
}

}  // namespace
}  // namespace tokamak
