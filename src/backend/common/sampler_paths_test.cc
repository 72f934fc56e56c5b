// What a step keeps of its outputs: paths of drafts, phases, masks.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/common/sampler.h"
#include "base/error.h"
#include "base/rng.h"

namespace tokamak {
namespace {

std::shared_ptr<const SampleSpec> path_spec(SampleSpec s) {
  return std::make_shared<const SampleSpec>(std::move(s));
}

// A step of sequences with one output each, row number = sequence number.
StepInputs path_step(size_t sequences, const std::shared_ptr<const SampleSpec>& spec,
                     int32_t position = 0) {
  StepInputs step;
  for (int32_t i = 0; i < static_cast<int32_t>(sequences); ++i) {
    step.ids.push_back(0);
    step.seq.push_back(i);
    step.row.push_back(i);
    step.kv_len.push_back(1);
    step.out_rows.push_back(i);
    step.samples.push_back({SampleRow::Mode::kSample, -1, 0, position, 0, spec});
  }
  return step;
}

std::vector<float> path_logits(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> logits(static_cast<size_t>(n));
  for (float& x : logits) x = static_cast<float>(rng.normal() * 3);
  return logits;
}

// Verifies drafts: `tokens` are the rows of a sequence (the first is known, the others are
// drafted), `parents` their parents. The model continues a row of depth d with token 10 + d.
StepResult verify(const std::vector<int32_t>& tokens, const std::vector<int32_t>& parents) {
  StepInputs step;
  SampleSpec greedy;
  greedy.temperature = 0;
  step.row = {0};
  step.kv_len = {static_cast<int32_t>(tokens.size())};
  std::vector<float> logits(tokens.size() * 32, 0.0f);
  std::vector<size_t> depth;
  for (size_t m = 0; m < tokens.size(); ++m) {
    depth.push_back(parents[m] < 0 ? 0 : depth[static_cast<size_t>(parents[m])] + 1);
    step.ids.push_back(tokens[m]);
    step.seq.push_back(0);
    step.out_rows.push_back(static_cast<int32_t>(m));
    step.samples.push_back({SampleRow::Mode::kSample, -1, 0, 0, 0, path_spec(greedy), parents[m]});
    logits[m * 32 + 10 + depth[m]] = 1;
  }
  Sampler sampler(32, 1);
  StepResult out;
  sampler.finish(step, logits.data(), out);
  std::vector<int32_t> ids = {last_id_of_row(0)};
  sampler.resolve(ids, {});
  EXPECT_EQ(ids[0], 10 + std::ssize(out.path) - 1) << "the last token that holds";
  EXPECT_EQ(out.path_start, (std::vector<int32_t>{0, static_cast<int32_t>(out.path.size())}));
  return out;
}

TEST(SamplerPaths, ThePathFollowsAChainToItsFirstWrongToken) {
  using Rows = std::vector<int32_t>;
  EXPECT_EQ(verify({0, 10, 11, 12}, {-1, 0, 1, 2}).path, (Rows{0, 1, 2, 3}));
  EXPECT_EQ(verify({0, 10, 31, 12}, {-1, 0, 1, 2}).path, (Rows{0, 1}));
  EXPECT_EQ(verify({0, 31, 11, 12}, {-1, 0, 1, 2}).path, (Rows{0}));
  EXPECT_EQ(verify({0}, {-1}).path, (Rows{0}));
}

TEST(SamplerPaths, ThePathFollowsTheRightBranchesOfATree) {
  using Rows = std::vector<int32_t>;
  //      0 -> 1 (wrong) -> 2
  //        -> 3 (10) -> 4 (wrong)
  //                  -> 5 (11) -> 6 (12)
  Rows parents = {-1, 0, 1, 0, 3, 3, 5};
  StepResult out = verify({0, 9, 11, 10, 9, 11, 12}, parents);
  EXPECT_EQ(out.path, (Rows{0, 3, 5, 6}));
  EXPECT_EQ(out.ids, (Rows{10, -1, -1, 11, -1, 12, 13}));
  // If two rows have the right token, the first one is taken.
  EXPECT_EQ(verify({0, 10, 10, 11, 11}, {-1, 0, 0, 2, 1}).path, (Rows{0, 1, 4}));
}

TEST(SamplerPaths, PathsOfSequencesWhoseOutputsAreMixed) {
  SampleSpec greedy;
  greedy.temperature = 0;
  StepInputs step;
  step.row = {0, 1};
  step.kv_len = {2, 2};
  step.ids = {0, 4, 0, 5};
  step.seq = {0, 0, 1, 1};
  step.out_rows = {2, 0, 3, 1};
  for (int32_t parent : {-1, -1, 0, 1})
    step.samples.push_back({SampleRow::Mode::kSample, -1, 0, 0, 0, path_spec(greedy), parent});
  std::vector<float> logits(4 * 8, 0.0f);
  logits[5] = logits[8 + 4] = logits[16 + 1] = logits[24 + 2] = 1;
  StepResult out;
  Sampler(8, 2).finish(step, logits.data(), out);
  EXPECT_EQ(out.path, (std::vector<int32_t>{1, 3, 0, 2}));
  EXPECT_EQ(out.path_start, (std::vector<int32_t>{0, 2, 4}));
}

// Two phases: what the first one drafts, the second one reads and verifies.
TEST(SamplerPaths, PhasesReadWhatEarlierOnesChose) {
  SampleSpec greedy;
  greedy.temperature = 0;
  StepInputs draft = path_step(2, path_spec(greedy));
  for (SampleRow& s : draft.samples) s.mode = SampleRow::Mode::kDraft;
  std::vector<float> logits(2 * 8, 0.0f);
  logits[3] = logits[8 + 6] = 1;
  Sampler sampler(8, 2);
  StepResult out;
  sampler.finish(draft, logits.data(), out);
  EXPECT_EQ(out.ids, (std::vector<int32_t>{3, 6}));
  EXPECT_TRUE(out.path.empty());

  std::vector<int32_t> ids = {1, id_of_output(0), 1, id_of_output(1)};
  sampler.resolve(ids, out);
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 3, 1, 6}));
  StepInputs target = path_step(2, path_spec(greedy));
  target.seq = {0, 0, 1, 1};
  target.out_rows = {0, 1, 2, 3};
  target.samples.resize(4, target.samples[0]);
  target.samples[1].parent = 0;
  target.samples[3].parent = 2;
  logits.assign(4 * 8, 0.0f);
  logits[3] = logits[8 + 4] = logits[16 + 5] = logits[24 + 2] = 1;  // 6 was not right
  sampler.finish({target, ids, 2, 2}, logits.data(), out);
  EXPECT_EQ(out.ids, (std::vector<int32_t>{3, 6, 3, 4, 5, -1}));
  EXPECT_EQ(out.path, (std::vector<int32_t>{2, 3, 4}));
  EXPECT_EQ(out.path_start, (std::vector<int32_t>{0, 0, 0, 2, 3}));
  EXPECT_EQ(out.failed.size(), 4u);
}

TEST(SamplerPaths, MasksRestrictTheChoice) {
  constexpr int64_t kVocab = 70;
  Rng rng(3);
  for (int run = 0; run < 200; ++run) {
    SampleSpec spec;
    spec.seed = rng.next_u64();
    spec.temperature = run % 4 == 0 ? 0.0f : 1.3f;
    if (run % 2 == 0) spec.top_k = 1 + static_cast<int32_t>(rng.below(kVocab));
    if (rng.below(2) == 0) spec.top_p = 0.8f;
    if (rng.below(2) == 0) spec.min_p = 0.05f;
    if (rng.below(2) == 0) spec.logit_bias = {{1, 2.0f}, {3, -100.0f}};
    if (run % 3 == 0) spec.typical_p = 0.7f;
    if (run % 5 == 0) spec.order = {SampleStage::kTemperature, SampleStage::kTopK};
    StepInputs step = path_step(2, path_spec(spec), run);
    step.samples[0].masked = true;
    auto logits = path_logits(2 * kVocab, static_cast<uint64_t>(run));
    std::vector<uint32_t> allowed(mask_words(kVocab), 0);
    SampleSpec by_bias = spec;  // says the same
    for (size_t i = 0; i < kVocab; ++i) {
      if (rng.below(4) == 0 || i == 42)
        allowed[i / 32] |= 1u << (i % 32);
      else
        by_bias.logit_bias.emplace_back(static_cast<int32_t>(i), -INFINITY);
    }
    Sampler sampler(kVocab, 2), plain(kVocab, 2);
    StepResult out, want;
    sampler.begin(step);
    sampler.finish(step, logits.data(), out);
    EXPECT_TRUE(out.ids.empty()) << "it waits for the mask";
    sampler.set_mask(0, allowed);
    sampler.complete(out);
    step.samples[0].masked = false;
    step.samples[0].spec = path_spec(by_bias);
    plain.finish(step, logits.data(), want);
    ASSERT_EQ(out.ids, want.ids) << run;
    EXPECT_NE(allowed[static_cast<size_t>(out.ids[0]) / 32] >> (out.ids[0] % 32) & 1, 0u);
  }
}

TEST(SamplerPaths, AMaskThatAllowsNothingFailsItsSequenceOnly) {
  SampleSpec banned;
  banned.temperature = 0;
  banned.min_tokens = 1;
  banned.banned_until_min = {3};
  StepInputs step = path_step(4, path_spec(banned));
  for (size_t r : {0u, 1u, 2u}) step.samples[r].masked = true;
  auto logits = path_logits(4 * 40, 5);
  Sampler sampler(40, 4);
  StepResult out;
  sampler.begin(step);
  sampler.finish(step, logits.data(), out);
  std::vector<uint32_t> words(2, 0);
  sampler.set_mask(1, words);  // empty; output 0 never gets one
  words[0] = 1u << 7;
  sampler.set_mask(2, words);
  EXPECT_THROW(sampler.set_mask(3, words), Error) << "not masked";
  EXPECT_THROW(sampler.set_mask(2, std::span(words).first(1)), Error);
  sampler.complete(out);
  using F = StepFailure;
  EXPECT_EQ(out.failed,
            (std::vector<F>{F::kNothingAllowed, F::kNothingAllowed, F::kNone, F::kNone}));
  EXPECT_EQ(out.ids[2], 7);
  EXPECT_EQ(out.path, (std::vector<int32_t>{2, 3}));
}

}  // namespace
}  // namespace tokamak
