// Sampling as ops of the plan: op by op as they are defined (ref, and cpu without fusion), the cpu
// backend's fused kernel and the host alone choose the same tokens from the same logits, whatever
// the requests ask for.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/backend.h"
#include "backend/common/sampler.h"
#include "base/rng.h"
#include "compile/compiler.h"
#include "compile/import/model_config.h"

namespace tokamak {
namespace {

constexpr int64_t kRows = 24;

// A model whose logits are rows of a table: the same bits everywhere.
Module table_model(int64_t vocab) {
  Module m("table");
  m.symbols = {{"T", 1, kRows, 1}, {"B", 1, kRows, 1}, {"R", 1, kRows, 1}};
  Function& step = m.add_function("step");
  auto integers = [](const char* axis, const char* n) {
    return Type::of({DType::kI32, {{axis, SymExpr::symbol(n), false}}});
  };
  Ref ids = step.add_input("ids", integers("t", "T")),
      rows = step.add_input("out_rows", integers("r", "R"));
  m.add_weight(
      {"table", {DType::kF32, {{"v", kRows, false}, {"d", vocab, false}}}, {{"table"}, {}}});
  Ref x = step.add("embed", {ids, step.weight("table")});
  step.set_result("logits", step.add("gather", {x, rows}, Value::Object{{"axis", 0}}));
  return m;
}

SampleSpec random_spec(Rng& rng, int64_t vocab) {
  SampleSpec s;
  auto number = [&](double lo, double hi) { return static_cast<float>(rng.uniform(lo, hi)); };
  auto token = [&] { return static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab))); };
  s.seed = rng.next_u64();
  s.temperature = rng.below(5) == 0 ? 0.0f : number(0.3, 2.0);
  if (rng.below(2)) s.top_k = static_cast<int32_t>(1 + rng.below(40));
  if (rng.below(2)) s.top_p = number(0.05, 0.999);
  if (rng.below(2)) s.min_p = number(0.001, 0.3);
  if (rng.below(3) == 0) s.typical_p = number(0.1, 0.99);
  if (rng.below(3) == 0) s.xtc_probability = number(0.3, 1), s.xtc_threshold = number(0.01, 0.6);
  if (rng.below(3) == 0) s.top_n_sigma = number(0.3, 3);
  if (rng.below(3) == 0) s.dynatemp_range = number(0.1, 1.5), s.dynatemp_exponent = number(0.3, 3);
  if (rng.below(2)) s.repetition_penalty = number(0.8, 1.5);
  if (rng.below(2)) s.presence_penalty = number(-1, 1);
  if (rng.below(2)) s.frequency_penalty = number(-1, 1);
  if (rng.below(3) == 0) s.dry_multiplier = number(0.2, 2), s.dry_breakers = {token(), token()};
  if (rng.below(3) == 0) s.dry_last_n = static_cast<int32_t>(rng.below(30));
  if (rng.below(2)) s.logit_bias = {{token(), 2.5f}, {token(), -100.0f}};
  if (rng.below(2)) s.min_tokens = 4, s.banned_until_min = {token(), token()};
  if (rng.below(3) == 0) s.top_logprobs = static_cast<int32_t>(rng.below(7));
  if (rng.below(3) == 0) {
    std::vector<SampleStage> all;
    for (int64_t i = 0; i < kSampleStages; ++i) all.push_back(static_cast<SampleStage>(i));
    for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[rng.below(i)]);
    all.resize(1 + rng.below(all.size()));
    s.order = all;
  }
  return s;
}

struct Case {
  StepInputs step;
  std::vector<std::vector<uint32_t>> masks;  // per output; empty: none
};

Case random_case(Rng& rng, int64_t vocab) {
  Case out;
  StepInputs& step = out.step;
  auto rows = static_cast<int32_t>(1 + rng.below(kRows));
  step.q_start.push_back(0);
  for (int32_t b = 0; b < rows; ++b) {
    SampleSpec spec = random_spec(rng, vocab);
    step.ids.push_back(b);
    step.pos.push_back(0);
    step.seq.push_back(b);
    step.slot.push_back(0);
    step.q_start.push_back(b + 1);
    step.kv_len.push_back(1);
    step.row.push_back(b);
    step.out_rows.push_back(b);
    RowReset reset{b, static_cast<int32_t>(rng.below(5)), {}};
    for (uint64_t i = rng.below(40) + 5; i > 0; --i)  // few tokens, so that they repeat
      reset.ids.push_back(static_cast<int32_t>(rng.below(4)));
    step.resets.push_back(reset);
    SampleRow sample{SampleRow::Mode::kSample,           -1,
                     static_cast<int32_t>(rng.below(3)), static_cast<int32_t>(rng.below(1000)),
                     static_cast<int32_t>(rng.below(8)), std::make_shared<const SampleSpec>(spec)};
    if (rng.below(8) == 0) sample.mode = SampleRow::Mode::kScore, sample.target = 3;
    out.masks.emplace_back();
    if (sample.mode == SampleRow::Mode::kSample && rng.below(3) == 0) {
      sample.masked = true;
      for (size_t w = 0; w < mask_words(vocab); ++w)
        out.masks.back().push_back(rng.below(20) == 0 ? 0 : rng.next_u32());
    }
    step.samples.push_back(sample);
  }
  return out;
}

void expect_same(const StepResult& got, const StepResult& want) {
  EXPECT_EQ(got.ids, want.ids);
  EXPECT_EQ(got.failed, want.failed);
  EXPECT_EQ(got.path, want.path);
  ASSERT_EQ(got.logprobs.size(), want.logprobs.size());
  for (size_t i = 0; i < got.logprobs.size(); ++i)
    EXPECT_NEAR(got.logprobs[i], want.logprobs[i], 2e-6f * (1 + std::abs(want.logprobs[i])));
  ASSERT_EQ(got.top.size(), want.top.size());
  for (size_t i = 0; i < got.top.size(); ++i) {
    EXPECT_EQ(got.top[i].first, want.top[i].first);
    EXPECT_EQ(got.top[i].second.id, want.top[i].second.id);
    EXPECT_NEAR(got.top[i].second.logprob, want.top[i].second.logprob,
                2e-6f * (1 + std::abs(want.top[i].second.logprob)));
  }
}

struct Runner {
  Runner(const std::string& name, bool eager, int64_t vocab, const WeightSource& weights)
      : backend(make_backend(name)) {
    ModelConfig config;
    config.vocab = config.hidden = vocab;
    config.context = 64;
    CompileOptions options;
    options.max_sequences = options.max_tokens = options.max_logit_rows = kRows;
    options.eager = eager;
    Module module = table_model(vocab);
    plans = compile_module(module, config, *backend, options);
    LoadOptions load;
    load.max_rows = kRows;
    load.eager = eager;
    executable = backend->load(plans, weights, load);
  }
  StepResult run(const Case& c) {
    StepResult out;
    Ticket ticket = executable->submit(c.step);
    for (size_t r = 0; r < c.masks.size(); ++r)
      if (!c.masks[r].empty()) executable->set_mask(ticket, static_cast<int32_t>(r), c.masks[r]);
    executable->collect(ticket, out);
    return out;
  }
  std::vector<std::string> kernels() const {  // of the function "sample"
    std::vector<std::string> out;
    for (const Plan& plan : plans.plans)
      if (plan.function == kSampleFunction)
        for (const KernelCall& call : plan.calls) out.push_back(plans.kernels[call.kernel].name);
    return out;
  }
  std::unique_ptr<Backend> backend;
  PlanSet plans;
  std::unique_ptr<Executable> executable;
};

TEST(Sampling, EveryWayToRunItChoosesTheSameTokens) {
  Rng rng(2026);
  for (int64_t vocab : {33, 700}) {
    std::vector<float> table(static_cast<size_t>(kRows * vocab));
    for (float& x : table) x = static_cast<float>(rng.normal() * 3);
    WeightTable weights;
    weights.add_f32("table", {kRows, vocab}, table);
    Runner ref("ref", false, vocab, weights), cpu("cpu", false, vocab, weights),
        eager("cpu", true, vocab, weights);
    EXPECT_EQ(cpu.kernels(), (std::vector<std::string>{"cpu.choose_tokens", "cpu.token_logprobs"}));
    EXPECT_EQ(eager.kernels().size(), 14u);
    EXPECT_EQ(ref.kernels().size(), 14u);
    Sampler host(vocab, kRows);
    for (int trial = 0; trial < 60; ++trial) {
      SCOPED_TRACE(fmt::format("vocab {}, trial {}", vocab, trial));
      Case c = random_case(rng, vocab);
      StepResult want;
      host.begin(c.step);
      host.finish(c.step, table.data(), want);
      for (size_t r = 0; r < c.masks.size(); ++r)
        if (!c.masks[r].empty()) host.set_mask(static_cast<int32_t>(r), c.masks[r]);
      host.complete(want);
      expect_same(cpu.run(c), want);
      expect_same(eager.run(c), want);
      expect_same(ref.run(c), want);
      if (HasFailure()) return;
    }
  }
}

TEST(Sampling, LogitsThatAreNotFiniteAndMasksThatAllowNothingFail) {
  constexpr int64_t kVocab = 40;
  std::vector<float> table(static_cast<size_t>(kRows * kVocab), 1.0f);
  table[5] = NAN;
  table[kVocab + 7] = INFINITY;
  WeightTable weights;
  weights.add_f32("table", {kRows, kVocab}, table);
  Rng rng(3);
  Case c;
  do {
    c = random_case(rng, kVocab);
  } while (c.step.samples.size() < 4);
  for (size_t r = 0; r < c.step.samples.size(); ++r) {
    c.step.samples[r].mode = SampleRow::Mode::kSample;
    c.step.samples[r].masked = r == 2;
    c.masks[r].assign(r == 2 ? mask_words(kVocab) : 0, 0);
  }
  for (const char* name : {"ref", "cpu"}) {
    StepResult out = Runner(name, false, kVocab, weights).run(c);
    EXPECT_EQ(out.failed[0], StepFailure::kNotFinite) << name;
    EXPECT_EQ(out.failed[1], StepFailure::kNotFinite) << name;
    EXPECT_EQ(out.failed[2], StepFailure::kNothingAllowed) << name;
    EXPECT_EQ(out.failed[3], StepFailure::kNone) << name;
    EXPECT_EQ(out.ids[2], -1);
    EXPECT_GE(out.ids[3], 0);
  }
}

}  // namespace
}  // namespace tokamak
