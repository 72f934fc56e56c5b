// Jump-forward through the engine, on the null backend: tokens that a mask forces are appended
// without steps, and nothing else changes.
#include "engine/draft/ngram_drafter.h"
#include "tests/engine/test_run.h"

namespace tokamak {
namespace {

// Positions of an answer come in runs: `free` of them allow any of 50 tokens, then `run` of them
// allow one token each, which depends on the position and on the last free token.
class RunMask final : public TokenMask {
 public:
  RunMask(int32_t free, int32_t run, int32_t end = -1) : free_(free), run_(run), end_(end) {}
  void allow(int32_t, std::span<const int32_t> answer, std::span<const int32_t> drafts,
             std::span<uint32_t> bits) override {
    std::vector<int32_t> ids(answer.begin(), answer.end());
    ids.insert(ids.end(), drafts.begin(), drafts.end());
    int32_t id = forced_at(ids);
    for (int32_t i = id < 0 ? 100 : id; i < (id < 0 ? 150 : id + 1); ++i)
      bits[static_cast<size_t>(i) / 32] |= 1u << (i % 32);
  }
  void force(int32_t, std::span<const int32_t> answer, std::vector<int32_t>& forced) override {
    std::vector<int32_t> ids(answer.begin(), answer.end());
    for (int32_t id = forced_at(ids); id >= 0; id = forced_at(ids)) {
      forced.push_back(id);
      ids.push_back(id);
      if (id == kEnd) return;
    }
  }
  static constexpr int32_t kEnd = 7;

 private:
  int32_t forced_at(const std::vector<int32_t>& ids) const {
    auto at = static_cast<int32_t>(ids.size());
    if (at == end_) return kEnd;
    if (at % (free_ + run_) < free_) return -1;
    int32_t last = at - at % (free_ + run_) + free_ - 1;
    return 200 + (last < 0 ? 0 : ids[static_cast<size_t>(last)]) + at % 50;
  }
  int32_t free_, run_, end_;
};

RequestSpec random_request(Rng& rng, bool jump) {
  RequestSpec spec = request(random_prompt(rng, 1000, 1 + static_cast<int64_t>(rng.below(60))),
                             1 + static_cast<int32_t>(rng.below(60)));
  spec.n = 1 + static_cast<int32_t>(rng.below(3));
  auto free = static_cast<int32_t>(rng.below(4)), run = static_cast<int32_t>(rng.below(9));
  int32_t end = rng.below(2) == 0 ? -1 : static_cast<int32_t>(rng.below(60));
  if (rng.below(5) > 0) spec.mask = std::make_shared<RunMask>(free + 1, run, end);
  spec.stop_ids = {RunMask::kEnd};
  if (rng.below(4) == 0) spec.stop_ids.push_back(320);
  SampleSpec sample;
  sample.top_logprobs = rng.below(6) == 0 ? 0 : -1;
  sample.presence_penalty = rng.below(3) == 0 ? 0.5f : 0.0f;
  spec.sample = std::make_shared<const SampleSpec>(sample);
  spec.jump_forward = jump;
  return spec;
}

struct JumpOutcome {
  std::map<std::pair<RequestId, int32_t>, Answer> answers;
  EngineStats stats;
};

JumpOutcome run_all(uint64_t seed, int in_flight, bool jump, bool drafts) {
  Rng rng(seed);
  PlanSet plans = fake_plan_set();
  EngineConfig config = default_engine_config(plans, 200, 1);
  config.max_num_seqs = 2 + static_cast<int64_t>(rng.below(6));
  config.max_batched_tokens = config.max_num_seqs + static_cast<int64_t>(rng.below(40));
  config.max_in_flight = in_flight;
  config.max_step_failures = 1000;
  config.blocks = kv_blocks_for(plans, 250 + static_cast<int64_t>(rng.below(500)));
  config.prefix_cache = rng.below(3) > 0;
  NullOptions options = checked(in_flight);
  options.seed = seed;
  if (rng.below(3) == 0) options.fail_every = 5 + static_cast<int64_t>(rng.below(20));
  NgramDrafter drafter(NgramOptions{});
  if (drafts) config.draft_tokens = 3;
  TestRun run(plans, config, options, drafts ? &drafter : nullptr);
  for (RequestId id = 1; id <= 12; ++id) {
    auto at = static_cast<Nanos>(rng.below(20000000));
    run.arrive(at, id, random_request(rng, jump));
  }
  run.run();
  return {run.answers, run.core.stats()};
}

TEST(JumpForward, RandomSchedulesGiveTheSameAnswersInFewerSteps) {
  int64_t jumps = 0, preemptions = 0, accepted = 0;
  for (uint64_t seed = 1; seed <= 40 && !testing::Test::HasFailure(); ++seed) {
    int in_flight = 1 + static_cast<int>(seed % 3);
    bool drafts = seed % 4 == 0;
    SCOPED_TRACE(fmt::format("seed {} in_flight {} drafts {}", seed, in_flight, drafts));
    JumpOutcome off = run_all(seed, in_flight, false, drafts),
                on = run_all(seed, in_flight, true, drafts);
    ASSERT_EQ(on.answers.size(), off.answers.size());
    for (const auto& [key, want] : off.answers) {
      const Answer& got = on.answers.at(key);
      EXPECT_EQ(got.ids, want.ids) << "request " << key.first << " choice " << key.second;
      EXPECT_EQ(got.finish, want.finish);
      EXPECT_EQ(got.stop_id, want.stop_id);
      EXPECT_EQ(got.logprobs, want.logprobs);
    }
    EXPECT_EQ(off.stats.jumps, 0);
    jumps += on.stats.jumps;
    preemptions += on.stats.preemptions;
    accepted += on.stats.draft_accepted;
  }
  EXPECT_GT(jumps, 500);
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(accepted, 0);
}

// Forced text can often be written with other tokens as well. Which ones an answer has must not
// depend on drafts or on the steps in flight.
TEST(JumpForward, OtherSpellingsOfForcedTokens) {
  class Spellings final : public TokenMask {
    static bool forced(size_t at) { return at % 8 == 7 || (at % 8 >= 2 && at % 8 <= 5); }
    static void set(std::span<uint32_t> bits, size_t id) { bits[id / 32] |= 1u << (id % 32); }
    void allow(int32_t, std::span<const int32_t> answer, std::span<const int32_t> drafts,
               std::span<uint32_t> bits) override {
      size_t at = answer.size() + drafts.size();
      set(bits, 40 + at % 8);
      set(bits, 50 + at % (forced(at) ? 8 : 2));
    }
    void force(int32_t, std::span<const int32_t> answer, std::vector<int32_t>& out) override {
      for (size_t at = answer.size(); forced(at); ++at)
        out.push_back(static_cast<int32_t>(40 + at % 8));
    }
  };
  std::map<std::pair<RequestId, int32_t>, Answer> first;
  int64_t accepted = 0;
  for (int in_flight : {1, 2, 4})
    for (bool drafts : {false, true}) {
      SCOPED_TRACE(fmt::format("in_flight {} drafts {}", in_flight, drafts));
      PlanSet plans = fake_plan_set();
      EngineConfig config = default_engine_config(plans, 200, 1000);
      config.max_in_flight = in_flight;
      NgramDrafter drafter({.longest = 4, .shortest = 1, .earliest = false});
      if (drafts) config.draft_tokens = 5;
      TestRun run(plans, config, checked(in_flight), drafts ? &drafter : nullptr);
      for (RequestId id = 1; id <= 6; ++id) {
        RequestSpec spec = request({1, 2, static_cast<int32_t>(id)}, 60);
        spec.mask = std::make_shared<Spellings>();
        spec.jump_forward = true;
        run.arrive(0, id, spec);
      }
      run.run();
      accepted += run.core.stats().draft_accepted;
      if (first.empty()) first = run.answers;
      for (const auto& [key, want] : first)
        EXPECT_EQ(run.answers.at(key).ids, want.ids) << "request " << key.first;
    }
  EXPECT_GT(accepted, 0);
}

TEST(JumpForward, ForcedTokensAreOneChunk) {
  PlanSet plans = fake_plan_set();
  EngineConfig config = default_engine_config(plans, 200, 1000);
  TestRun run(plans, config, checked());
  RequestSpec spec = request({1, 2, 3}, 22);
  spec.mask = std::make_shared<RunMask>(1, 10);
  spec.jump_forward = true;
  std::vector<int64_t> sizes;
  run.on_advance = [&](Nanos, std::span<const Event>, Actions& actions) {
    for (const SubmitAction& s : actions.submits) sizes.push_back(s.inputs->tokens());
  };
  run.arrive(0, 1, spec);
  run.run();
  EXPECT_EQ((run.answers[{1, 0}].ids.size()), 22u);
  EXPECT_EQ(sizes, (std::vector<int64_t>{3, 11}));  // prompt; a token with the run that follows it
  EXPECT_EQ(run.core.stats().jumps, 2);
  EXPECT_EQ(run.core.stats().jump_tokens, 20);
}

// A run before the first step is computed with the prompt and sent with the first token.
TEST(JumpForward, AnswersMayBeginWithARun) {
  class Prefix final : public TokenMask {
    void allow(int32_t, std::span<const int32_t> answer, std::span<const int32_t>,
               std::span<uint32_t> bits) override {
      size_t id = answer.size() < 3 ? 40 + answer.size() : 60;
      bits[id / 32] |= 1u << (id % 32);
    }
    void force(int32_t, std::span<const int32_t> answer, std::vector<int32_t>& forced) override {
      for (size_t at = answer.size(); at < 3; ++at) forced.push_back(static_cast<int32_t>(40 + at));
    }
  };
  PlanSet plans = fake_plan_set();
  for (int32_t limit : {1, 2, 3, 4, 6}) {
    TestRun run(plans, default_engine_config(plans, 200, 1000), checked());
    RequestSpec spec = request({1, 2}, limit);
    spec.mask = std::make_shared<Prefix>();
    spec.jump_forward = true;
    run.arrive(0, 1, spec);
    run.run();
    std::vector<int32_t> want = {40, 41, 42, 60, 60, 60};
    want.resize(static_cast<size_t>(limit));
    EXPECT_EQ((run.answers[{1, 0}].ids), want);
    EXPECT_EQ((run.answers[{1, 0}].finish), Finish::kLength);
    EXPECT_EQ(run.core.stats().steps, std::max(1, limit - 3));
  }
}

}  // namespace
}  // namespace tokamak
