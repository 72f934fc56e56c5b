// Rejection sampling by distribution: chi-square tests with fixed seeds against exact
// probabilities.
#include "backend/common/rejection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "backend/common/sampler.h"
#include "base/rng.h"

namespace tokamak {
namespace {

constexpr int32_t kWords = 6;
// A chi-square statistic with 5 degrees of freedom exceeds this once in 10^4 runs.
constexpr double kBound5 = 25.75;

double chi_square(const std::vector<int64_t>& counts, const std::vector<float>& p) {
  double total = 0, sum = 0;
  for (int64_t n : counts) total += static_cast<double>(n);
  for (size_t i = 0; i < counts.size(); ++i) {
    double expected = total * static_cast<double>(p[i]);
    if (expected == 0) {
      if (counts[i] > 0) return INFINITY;
      continue;
    }
    double off = static_cast<double>(counts[i]) - expected;
    sum += off * off / expected;
  }
  return sum;
}

std::vector<float> random_distribution(Rng& rng) {
  std::vector<float> p(kWords);
  double total = 0;
  for (float& x : p) x = static_cast<float>(std::exp(1.5 * rng.normal()));
  for (float x : p) total += static_cast<double>(x);
  for (float& x : p) x = static_cast<float>(static_cast<double>(x) / total);
  return p;
}

int32_t draw_from(const std::vector<float>& p, double u) {
  size_t i = 0;
  for (; i + 1 < p.size() && u >= static_cast<double>(p[i]); ++i) u -= static_cast<double>(p[i]);
  return static_cast<int32_t>(i);
}

using Rule = std::function<int32_t(const std::vector<float>& p, const std::vector<float>& q,
                                   int32_t draft, uint64_t seed, Rng& rng)>;

struct RuleResult {
  double chi_square = 0, accepted = 0, expected = 0;  // shares of drafts
};

RuleResult run_rule(const Rule& rule, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> p = random_distribution(rng), q = random_distribution(rng);
  constexpr int kDraws = 60000;
  std::vector<int64_t> counts(kWords);
  RuleResult out;
  for (int i = 0; i < kDraws; ++i) {
    int32_t draft = draw_from(q, rng.uniform());
    int32_t id = rule(p, q, draft, static_cast<uint64_t>(i), rng);
    out.accepted += id == draft ? 1.0 / kDraws : 0;
    ++counts[static_cast<size_t>(id)];
  }
  for (size_t i = 0; i < p.size(); ++i) out.expected += static_cast<double>(std::min(p[i], q[i]));
  out.chi_square = chi_square(counts, p);
  return out;
}

TEST(Rejection, TokensHaveTheTargetDistribution) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    RuleResult r = run_rule([](const auto& p, const auto& q, int32_t draft, uint64_t key,
                               Rng&) { return accept_or_replace(p, q, draft, key, 0, 7); },
                            seed);
    EXPECT_LT(r.chi_square, kBound5) << "seed " << seed;
    EXPECT_NEAR(r.accepted, r.expected, 0.01) << "seed " << seed;
  }
}

// The test above would notice: a rule that accepts too much, one that replaces from p instead of
// max(0, p - q), and one whose acceptance reuses the noise of the draft.
TEST(Rejection, WrongRulesFail) {
  const Rule wrong[] = {
      [](const auto& p, const auto& q, int32_t draft, uint64_t key, Rng& rng) {
        auto at = static_cast<size_t>(draft);
        if (rng.uniform() * static_cast<double>(q[at]) < 1.3 * static_cast<double>(p[at]))
          return draft;
        return accept_or_replace(p, q, draft, key, 0, 7);
      },
      [](const auto& p, const auto& q, int32_t draft, uint64_t, Rng& rng) {
        auto at = static_cast<size_t>(draft);
        if (rng.uniform() * static_cast<double>(q[at]) < static_cast<double>(p[at])) return draft;
        return draw_from(p, rng.uniform());
      },
      [](const auto& p, const auto& q, int32_t draft, uint64_t, Rng& rng) {
        auto at = static_cast<size_t>(draft);
        double u = rng.uniform();
        if (u * static_cast<double>(q[at]) < static_cast<double>(p[at])) return draft;
        std::vector<float> rest(p.size());
        double total = 0;
        for (size_t i = 0; i < p.size(); ++i) total += rest[i] = std::max(0.0f, p[i] - q[i]);
        for (float& x : rest) x = static_cast<float>(static_cast<double>(x) / total);
        return draw_from(rest, u);
      },
  };
  for (const Rule& rule : wrong) {
    double largest = 0;
    for (uint64_t seed = 1; seed <= 8; ++seed)
      largest = std::max(largest, run_rule(rule, seed).chi_square);
    EXPECT_GT(largest, 4 * kBound5);
  }
}

TEST(Rejection, EdgesOfTheRule) {
  std::vector<float> a = {0.5f, 0.5f, 0}, b = {0, 0.5f, 0.5f};
  for (uint64_t seed = 0; seed < 100; ++seed) {
    EXPECT_EQ(accept_or_replace(a, a, 0, seed, 0, 0), 0) << "p = q";
    EXPECT_EQ(accept_or_replace(a, b, 2, seed, 0, 0), 0) << "p = 0: what is left of p";
    EXPECT_EQ(accept_or_replace(a, b, 0, seed, 0, 0), 0) << "q = 0";
  }
}

// The distribution is that of the samples, for all kinds of settings.
TEST(Rejection, DistributionsAreThoseOfSampling) {
  std::vector<SampleSpec> specs(6);
  specs[1].temperature = 0;
  specs[2].temperature = 0.7f, specs[2].top_k = 4;
  specs[3].top_p = 0.8f, specs[3].logit_bias = {{2, 3.0f}};
  specs[4].min_p = 0.2f, specs[4].temperature = 1.4f;
  specs[5].order = {SampleStage::kTopK, SampleStage::kTemperature};
  specs[5].top_k = 3, specs[5].temperature = 1.7f;
  Rng rng(4);
  std::vector<float> logits(kWords);
  for (float& x : logits) x = static_cast<float>(rng.normal());
  for (size_t i = 0; i < specs.size(); ++i) {
    std::vector<int64_t> counts(kWords);
    std::vector<float> p;
    for (int32_t position = 0; position < 20000; ++position) {
      StepInputs step;
      step.ids = step.seq = step.row = step.out_rows = {0};
      step.kv_len = {1};
      SampleRow& row = step.samples.emplace_back();
      row.spec = std::make_shared<const SampleSpec>(specs[i]);
      row.position = position;
      row.keep_probabilities = position == 0;
      Sampler sampler(kWords, 1);
      StepResult out;
      sampler.finish(step, logits.data(), out);
      if (position == 0) p = out.probabilities.at(0).second;
      ++counts[static_cast<size_t>(out.ids[0])];
    }
    EXPECT_LT(chi_square(counts, p), kBound5) << "spec " << i;
  }
}

// A step with a draft phase and a verify phase: the first token and, where it was the drafted one,
// the second have the target's distribution.
struct ChainCounts {
  std::vector<int64_t> first = std::vector<int64_t>(kWords), second = std::vector<int64_t>(kWords);
};

ChainCounts run_chains(const std::vector<float>& draft_logits, const std::vector<float>& target,
                       bool rejection, bool model_draft) {
  ChainCounts counts;
  for (int i = 0; i < 30000; ++i) {
    SampleSpec spec;
    spec.seed = static_cast<uint64_t>(i) + 100;
    spec.temperature = 0.9f;
    spec.rejection = rejection;
    auto shared = std::make_shared<const SampleSpec>(spec);
    Sampler sampler(kWords, 1);
    StepResult out;
    StepInputs draft;
    draft.ids = draft.seq = draft.row = draft.out_rows = {0};
    draft.kv_len = {1};
    SampleRow& row = draft.samples.emplace_back();
    row.mode = SampleRow::Mode::kDraft;
    row.spec = shared;
    row.position = 1;
    row.keep_probabilities = rejection;
    sampler.finish({draft, draft.ids, 0, 0}, draft_logits.data(), out);
    StepInputs verify;
    verify.ids = {0, id_of_output(0)};
    verify.seq = {0, 0};
    verify.row = {0};
    verify.kv_len = {2};
    verify.out_rows = {0, 1};
    verify.samples.resize(2);
    for (int32_t r = 0; r < 2; ++r) {
      verify.samples[static_cast<size_t>(r)].spec = shared;
      verify.samples[static_cast<size_t>(r)].position = 1 + r;
    }
    verify.samples[1].parent = 0;
    if (model_draft) {  // another executable has drafted
      verify.ids[1] = out.ids[0];
      verify.samples[1].draft_probabilities =
          std::make_shared<const std::vector<float>>(out.probabilities.at(0).second);
      out.clear();
    }
    auto first_output = model_draft ? 0 : 1;
    std::vector<int32_t> ids = verify.ids;
    sampler.resolve(ids, out);
    sampler.finish({verify, ids, first_output, model_draft ? 0 : 1}, target.data(), out);
    auto path = out.path_of(model_draft ? 0 : 1);
    ++counts.first[static_cast<size_t>(out.ids[static_cast<size_t>(path[0])])];
    if (path.size() > 1)
      ++counts.second[static_cast<size_t>(out.ids[static_cast<size_t>(path[1])])];
  }
  return counts;
}

TEST(Rejection, ChainsThroughTheSampler) {
  Rng rng(12);
  std::vector<float> draft(kWords), target(2 * kWords);
  for (float& x : draft) x = static_cast<float>(rng.normal());
  for (float& x : target) x = static_cast<float>(rng.normal());
  auto softmax = [](const float* x) {
    std::vector<float> p(kWords);
    double total = 0;
    for (size_t i = 0; i < p.size(); ++i) total += p[i] = std::exp(x[i] / 0.9f);
    for (float& v : p) v = static_cast<float>(static_cast<double>(v) / total);
    return p;
  };
  std::vector<float> p1 = softmax(target.data()), p2 = softmax(target.data() + kWords),
                     q = softmax(draft.data());
  int64_t strict = 0;
  for (auto [rejection, model_draft] : {std::pair{false, false}, {true, false}, {true, true}}) {
    ChainCounts counts = run_chains(draft, target, rejection, model_draft);
    EXPECT_LT(chi_square(counts.first, p1), kBound5);
    EXPECT_LT(chi_square(counts.second, p2), kBound5);
    int64_t accepted = 0;
    for (int64_t n : counts.second) accepted += n;
    if (!rejection) {
      strict = accepted;
      continue;
    }
    double share = 0;
    for (size_t i = 0; i < p1.size(); ++i) share += static_cast<double>(std::min(p1[i], q[i]));
    EXPECT_NEAR(static_cast<double>(accepted) / 30000, share, 0.01);
    EXPECT_GT(accepted, strict);
  }
}

}  // namespace
}  // namespace tokamak
