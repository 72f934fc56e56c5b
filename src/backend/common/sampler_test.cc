#include "backend/common/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <new>
#include <numeric>

#include "backend/common/logits_math.h"
#include "base/error.h"
#include "base/rng.h"

namespace {
int64_t allocations = 0;
}
void* operator new(size_t size) {
  ++allocations;
  if (void* p = std::malloc(size ? size : 1)) return p;
  throw std::bad_alloc();
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size ? size : 1);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace tokamak {
namespace {

using Spec = std::shared_ptr<const SampleSpec>;

Spec spec_of(SampleSpec s) { return std::make_shared<const SampleSpec>(std::move(s)); }

// A step of sequences with one output row each, row number = sequence number.
StepInputs one_each(size_t sequences, const Spec& spec, int32_t position = 0) {
  StepInputs step;
  for (size_t b = 0; b < sequences; ++b) {
    auto i = static_cast<int32_t>(b);
    step.ids.push_back(0);
    step.seq.push_back(i);
    step.row.push_back(i);
    step.kv_len.push_back(1);
    step.out_rows.push_back(i);
    step.samples.push_back({SampleRow::Mode::kSample, -1, 0, position, 0, spec});
  }
  return step;
}

std::vector<float> random_logits(int64_t n, uint64_t seed, double scale = 3) {
  Rng rng(seed);
  std::vector<float> logits(static_cast<size_t>(n));
  for (float& x : logits) x = static_cast<float>(rng.normal() * scale);
  return logits;
}

// The same choice in the plainest words: sort everything, filter, add noise.
int32_t plain_choice(const SampleRow& sample, std::vector<double> x,
                     const std::vector<int32_t>& history, size_t prompt) {
  const SampleSpec& s = *sample.spec;
  std::map<int32_t, int> all, output;
  for (size_t i = 0; i < history.size(); ++i) {
    ++all[history[i]];
    if (i >= prompt) ++output[history[i]];
  }
  for (auto [id, n] : all) {
    double& v = x[static_cast<size_t>(id)];
    v = v > 0 ? v / double{s.repetition_penalty} : v * double{s.repetition_penalty};
  }
  for (auto [id, n] : output)
    x[static_cast<size_t>(id)] -= double{s.frequency_penalty} * n + double{s.presence_penalty};
  for (auto [id, bias] : s.logit_bias) x[static_cast<size_t>(id)] += double{bias};
  if (sample.generated < s.min_tokens)
    for (int32_t id : s.banned_until_min) x[static_cast<size_t>(id)] = -INFINITY;
  std::vector<int32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return x[static_cast<size_t>(a)] > x[static_cast<size_t>(b)];
  });
  if (s.temperature <= 0) return order[0];
  double peak = x[static_cast<size_t>(order[0])], t = double{s.temperature};
  auto weight = [&](int32_t id) { return std::exp((x[static_cast<size_t>(id)] - peak) / t); };
  std::erase_if(order, [&](int32_t id) { return weight(id) < double{s.min_p} || weight(id) == 0; });
  if (s.top_k > 0 && order.size() > static_cast<size_t>(s.top_k))
    order.resize(static_cast<size_t>(s.top_k));
  double total = 0, sum = 0;
  for (int32_t id : order) total += weight(id);
  size_t keep = 0;
  while (keep < order.size() && (keep == 0 || sum < double{s.top_p} * total))
    sum += weight(order[keep++]);
  if (s.top_p < 1) order.resize(keep);
  int32_t best = order[0];
  double top = -INFINITY;
  for (int32_t id : order) {
    double value = (x[static_cast<size_t>(id)] - peak) / t +
                   double{keyed_gumbel(s.seed, sample.choice, sample.position, id)};
    if (value > top) {
      top = value;
      best = id;
    }
  }
  return best;
}

SampleSpec random_spec(Rng& rng, int64_t vocab) {
  SampleSpec s;
  s.seed = rng.next_u64();
  s.temperature = rng.below(6) == 0 ? 0.0f : static_cast<float>(rng.uniform(0.3, 2.0));
  if (rng.below(2)) s.top_k = static_cast<int32_t>(1 + rng.below(static_cast<uint64_t>(vocab)));
  if (rng.below(3) == 0) s.top_k = static_cast<int32_t>(1 + rng.below(5));
  if (rng.below(2)) s.top_p = static_cast<float>(rng.uniform(0.05, 0.999));
  if (rng.below(2)) s.min_p = static_cast<float>(rng.uniform(0.001, 0.3));
  if (rng.below(2)) s.repetition_penalty = static_cast<float>(rng.uniform(0.8, 1.5));
  if (rng.below(2)) s.presence_penalty = static_cast<float>(rng.uniform(-1, 1));
  if (rng.below(2)) s.frequency_penalty = static_cast<float>(rng.uniform(-1, 1));
  if (rng.below(2)) s.logit_bias = {{1, 2.0f}, {3, -100.0f}};
  if (rng.below(2)) {
    s.min_tokens = 4;
    s.banned_until_min = {0, 2};
  }
  return s;
}

TEST(Sampler, EqualsThePlainSpelling) {
  Rng rng(5);
  for (int64_t vocab : {7, 129, 4000}) {
    Sampler sampler(vocab, 1);
    for (int trial = 0; trial < 300; ++trial) {
      SampleSpec spec = random_spec(rng, vocab);
      spec.penalize_prompt = trial % 2 == 1;
      StepInputs step = one_each(1, spec_of(spec), trial);
      step.samples[0].choice = trial % 3;
      step.samples[0].generated = trial % 8;
      RowReset reset{0, 2, {}};
      for (int i = 0; i < 6; ++i)
        reset.ids.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab))));
      step.resets.push_back(reset);
      auto logits = random_logits(vocab, rng.next_u64());
      StepResult out;
      sampler.begin(step);
      sampler.finish(step, logits.data(), out);
      int32_t want = plain_choice(step.samples[0], {logits.begin(), logits.end()}, reset.ids,
                                  spec.penalize_prompt ? 0 : 2);
      ASSERT_EQ(out.ids[0], want) << "vocab " << vocab << ", trial " << trial;
    }
  }
}

// Upper 1e-4 point of chi-square (Wilson-Hilferty).
double chi_square_limit(double df) {
  double z = 3.719, a = 2 / (9 * df);
  return df * std::pow(1 - a + z * std::sqrt(a), 3);
}

void expect_distribution(const SampleSpec& spec, const std::vector<float>& logits,
                         const std::vector<double>& probability) {
  constexpr int kDraws = 40000;
  Sampler sampler(static_cast<int64_t>(logits.size()), 1);
  std::vector<int> count(logits.size(), 0);
  StepInputs step = one_each(1, spec_of(spec));
  StepResult out;
  for (int i = 0; i < kDraws; ++i) {
    step.samples[0].position = i;
    sampler.finish(step, logits.data(), out);
    ++count[static_cast<size_t>(out.ids[0])];
  }
  double statistic = 0;
  int cells = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    double expected = probability[i] * kDraws;
    if (expected == 0) {
      EXPECT_EQ(count[i], 0) << "token " << i << " is filtered out";
      continue;
    }
    statistic += (count[i] - expected) * (count[i] - expected) / expected;
    ++cells;
  }
  EXPECT_LT(statistic, chi_square_limit(cells - 1));
  // What is reported is that distribution: the likeliest tokens first, none that is filtered out.
  SampleSpec reported = spec;
  reported.top_logprobs = 20;
  reported.report_sampled = true;
  step = one_each(1, spec_of(reported));
  sampler.finish(step, logits.data(), out);
  EXPECT_NEAR(std::exp(out.logprobs[0]), probability[static_cast<size_t>(out.ids[0])], 1e-6);
  EXPECT_EQ(std::ssize(out.top), cells);
  for (size_t i = 0; i < out.top.size(); ++i) {
    const TokenLogprob& top = out.top[i].second;
    EXPECT_NEAR(std::exp(top.logprob), probability[static_cast<size_t>(top.id)], 1e-6);
    EXPECT_TRUE(i == 0 || top.logprob <= out.top[i - 1].second.logprob);
  }
}

TEST(Sampler, DrawsFromTheSoftmax) {
  std::vector<float> logits = {2, 1.5f, 1, 0.7f, 0.5f, 0.2f, 0, -0.5f, -1, 0.9f, 1.1f};
  for (double t : {0.7, 1.0, 1.8}) {
    std::vector<double> p;
    for (float x : logits) p.push_back(std::exp(double{x} / t));
    double total = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& x : p) x /= total;
    SampleSpec spec;
    spec.temperature = static_cast<float>(t);
    spec.seed = 77;
    expect_distribution(spec, logits, p);
  }
}

TEST(Sampler, DrawsFromWhatTheFiltersKeep) {
  std::vector<float> logits = {2, 1.5f, 1, 0.7f, 0.5f, 0.2f, 0, -0.5f};
  auto kept = [&](std::vector<size_t> ids) {
    std::vector<double> p(logits.size(), 0);
    double total = 0;
    for (size_t i : ids) total += std::exp(double{logits[i]});
    for (size_t i : ids) p[i] = std::exp(double{logits[i]}) / total;
    return p;
  };
  SampleSpec top_k, top_p, min_p;
  top_k.top_k = 3;
  expect_distribution(top_k, logits, kept({0, 1, 2}));
  top_p.top_p = 0.5f;  // 0.346 + 0.210 reach it
  expect_distribution(top_p, logits, kept({0, 1}));
  min_p.min_p = 0.25f;  // exp(0.7 - 2) = 0.27, exp(0.5 - 2) = 0.22
  expect_distribution(min_p, logits, kept({0, 1, 2, 3}));
}

TEST(Sampler, NoiseIsUniformAndKeyed) {
  std::vector<int> bins(20, 0);
  for (int i = 0; i < 40000; ++i) {
    double u = std::exp(-std::exp(-double{keyed_gumbel(9, i % 3, i / 7, i * 13)}));
    ++bins[std::min<size_t>(19, static_cast<size_t>(u * 20))];
  }
  double statistic = 0;
  for (int n : bins) statistic += (n - 2000.0) * (n - 2000.0) / 2000;
  EXPECT_LT(statistic, chi_square_limit(19));
  float base = keyed_gumbel(1, 2, 3, 4);
  EXPECT_EQ(base, keyed_gumbel(1, 2, 3, 4));
  for (float other : {keyed_gumbel(2, 2, 3, 4), keyed_gumbel(1, 3, 3, 4), keyed_gumbel(1, 2, 4, 4),
                      keyed_gumbel(1, 2, 3, 5)})
    EXPECT_NE(base, other);
}

TEST(Sampler, GreedyTakesTheLowestOfEquals) {
  std::vector<float> logits(300, 1.0f);
  logits[77] = logits[130] = logits[299] = 5.0f;
  SampleSpec greedy;
  greedy.temperature = 0;
  StepResult out;
  Sampler(300, 1).finish(one_each(1, spec_of(greedy)), logits.data(), out);
  EXPECT_EQ(out.ids, std::vector<int32_t>{77});
}

TEST(Sampler, ABatchGivesEachRowWhatItGetsAlone) {
  constexpr int64_t kVocab = 1000;
  constexpr size_t kRows = 6;
  Rng rng(3);
  StepInputs batch = one_each(kRows, nullptr);
  std::vector<float> logits = random_logits(kVocab * static_cast<int64_t>(kRows), 4);
  for (size_t r = 0; r < kRows; ++r) {
    batch.samples[r].spec = spec_of(random_spec(rng, kVocab));
    batch.samples[r].position = static_cast<int32_t>(r * 10);
  }
  StepResult together, alone;
  Sampler(kVocab, kRows).finish(batch, logits.data(), together);
  for (size_t r = 0; r < kRows; ++r) {
    StepInputs one = one_each(1, batch.samples[r].spec, batch.samples[r].position);
    Sampler(kVocab, 1).finish(one, logits.data() + r * kVocab, alone);
    EXPECT_EQ(together.ids[r], alone.ids[0]) << r;
  }
}

TEST(Sampler, LogprobsAreThoseOfTheModel) {
  constexpr int64_t kVocab = 5000;
  auto logits = random_logits(kVocab, 8, 5);
  double total = 0;
  for (float x : logits) total += std::exp(double{x});
  SampleSpec spec;
  spec.temperature = 0.5f;
  spec.repetition_penalty = 1.7f;
  spec.top_logprobs = 4;
  StepInputs step = one_each(2, spec_of(spec));
  step.resets.push_back({0, 3, {1, 2, 3}});
  step.samples[1].mode = SampleRow::Mode::kScore;
  step.samples[1].target = 123;
  std::vector<float> both = logits;
  both.insert(both.end(), logits.begin(), logits.end());
  Sampler sampler(kVocab, 2);
  StepResult out;
  sampler.begin(step);
  sampler.finish(step, both.data(), out);
  EXPECT_EQ(out.ids[1], 123);
  for (size_t r = 0; r < 2; ++r)
    EXPECT_NEAR(double{out.logprobs[r]},
                double{logits[static_cast<size_t>(out.ids[r])]} - std::log(total), 2e-6);
  std::vector<int32_t> order(kVocab);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  ASSERT_EQ(out.top.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(out.top[i].first, static_cast<int32_t>(i / 4));
    EXPECT_EQ(out.top[i].second.id, order[i % 4]);
  }
  EXPECT_EQ(out.path, (std::vector<int32_t>{0}));
  EXPECT_EQ(out.path_start, (std::vector<int32_t>{0, 1, 1}));
}

TEST(Sampler, HistoryGrowsWithWhatIsChosen) {
  SampleSpec spec;
  spec.temperature = 0;
  spec.frequency_penalty = 1.0f;
  StepInputs step = one_each(1, spec_of(spec));
  step.resets.push_back({0, 1, {5}});
  std::vector<float> logits(8, 0.0f);
  logits[2] = 1.5f;
  logits[3] = 1.0f;
  Sampler sampler(8, 1);
  StepResult out;
  std::vector<int32_t> chosen;
  for (int i = 0; i < 4; ++i) {
    sampler.begin(step);
    sampler.finish(step, logits.data(), out);
    chosen.push_back(out.ids[0]);
    step.resets.clear();
    step.ids[0] = -1;
  }
  EXPECT_EQ(chosen, (std::vector<int32_t>{2, 3, 2, 0}));
}

TEST(Sampler, LogitsThatAreNotFiniteFailTheirSequenceOnly) {
  std::vector<float> logits(3 * 100, 0.5f);
  logits[100 + 37] = NAN;
  logits[250] = INFINITY;
  StepResult out;
  Sampler(100, 3).finish(one_each(3, spec_of({})), logits.data(), out);
  using F = StepFailure;
  EXPECT_EQ(out.failed, (std::vector<F>{F::kNone, F::kNotFinite, F::kNotFinite}));
  EXPECT_EQ(out.path_start, (std::vector<int32_t>{0, 1, 1, 1}));
  EXPECT_EQ(out.ids[1], -1);
}

TEST(Sampler, ARowThatHasChosenNothingCannotBeContinued) {
  StepInputs step = one_each(1, spec_of({}));
  step.ids[0] = -1;
  EXPECT_THROW(Sampler(10, 1).resolve(step.ids, {}), Error);
}

TEST(Sampler, DoesNotAllocateOnceWarm) {
  Rng rng(11);
  constexpr int64_t kVocab = 3000;
  auto logits = random_logits(kVocab * 4, 12);
  Sampler sampler(kVocab, 4);
  StepResult out;
  StepInputs step = one_each(4, nullptr);
  for (size_t r = 0; r < 4; ++r) {
    SampleSpec spec = random_spec(rng, kVocab);
    spec.top_logprobs = 5;
    spec.repetition_penalty = r == 0 ? 1.2f : 1.0f;
    spec.presence_penalty = spec.frequency_penalty = 0;
    step.samples[r].spec = spec_of(spec);
  }
  step.resets.push_back({0, 1, std::vector<int32_t>(100, 1)});
  sampler.begin(step);
  sampler.finish(step, logits.data(), out);
  step.resets.clear();
  sampler.finish(step, logits.data(), out);
  int64_t before = allocations;
  for (int i = 0; i < 50; ++i) {
    sampler.begin(step);
    sampler.finish(step, logits.data(), out);
  }
  EXPECT_EQ(allocations, before);
}

TEST(LogitsMath, FastExp) {
  for (double x = 0; x > -85; x -= 0.0137)
    ASSERT_NEAR(double{fast_exp(static_cast<float>(x))} / std::exp(double{static_cast<float>(x)}),
                1, 2e-7)
        << x;
  EXPECT_EQ(fast_exp(-100.0f), 0.0f);
  EXPECT_EQ(fast_exp(-INFINITY), 0.0f);
  EXPECT_EQ(fast_exp(0.0f), 1.0f);
}

}  // namespace
}  // namespace tokamak
