// Classifier-free guidance under random schedules on the null backend: a token depends on the whole
// history of the sequence and of its shadow, and every read of a block is checked.
#include <cstdlib>

#include "tests/engine/test_run.h"

namespace tokamak {
namespace {

RequestSpec random_guided(Rng& rng, const EngineConfig& config) {
  RequestSpec spec =
      request(random_prompt(rng, config.vocab, 1 + static_cast<int64_t>(rng.below(60))),
              1 + static_cast<int32_t>(rng.below(30)));
  SampleSpec sample;
  sample.temperature = 0;
  sample.guidance_scale = 1.5f;
  if (rng.below(3) == 0) sample.repetition_penalty = 1.1f;  // rows are reset
  spec.sample = std::make_shared<const SampleSpec>(sample);
  if (rng.below(4) > 0) {
    spec.negative_prompt =
        random_prompt(rng, config.vocab, 1 + static_cast<int64_t>(rng.below(60)));
    if (rng.below(2) == 0)  // a common prefix
      std::copy_n(spec.prompt.begin(), std::min(spec.prompt.size(), spec.negative_prompt.size()),
                  spec.negative_prompt.begin());
  }
  spec.n = rng.below(4) == 0 ? 2 : 1;
  spec.score_prompt = rng.below(4) == 0;
  return spec;
}

EngineConfig guided_config(const PlanSet& plans, int in_flight, Rng& rng) {
  EngineConfig config = default_engine_config(plans, 200, 1);
  config.max_num_seqs = 2 + static_cast<int64_t>(rng.below(6));
  config.max_batched_tokens = config.max_num_seqs + static_cast<int64_t>(rng.below(40));
  config.max_out_rows = config.max_num_seqs;
  config.max_in_flight = in_flight;
  config.max_step_failures = 1000;
  config.blocks = kv_blocks_for(plans, 220 + static_cast<int64_t>(rng.below(400)));
  config.policy = static_cast<SchedPolicy>(rng.below(4));
  config.kv_policy = static_cast<KvPolicy>(rng.below(2));
  config.batching = static_cast<Batching>(rng.below(3) == 0 ? rng.below(3) : 0);
  config.prefix_cache = rng.below(3) > 0;
  config.chunked_prefill = rng.below(4) > 0;
  return config;
}

// The answer of a request that has the engine for itself, with room for everything.
std::vector<int32_t> alone(const PlanSet& plans, const NullOptions& options, RequestSpec spec) {
  NullOptions calm = options;
  calm.fail_every = 0;
  calm.max_in_flight = 1;
  TestRun run(plans, default_engine_config(plans, 200, 4096), calm);
  spec.n = 1;
  run.arrive(0, 1, std::move(spec));
  run.run();
  return run.answers[{1, 0}].ids;
}

EngineStats guided_totals;

void guided_run(uint64_t seed, int in_flight) {
  SCOPED_TRACE(fmt::format("seed {} in_flight {}", seed, in_flight));
  Rng rng(seed);
  PlanSet plans = fake_plan_set(1000, rng.below(2) == 0 ? 0 : 40, 512);
  EngineConfig config = guided_config(plans, in_flight, rng);
  NullOptions options = checked(in_flight);
  options.seed = seed;
  if (rng.below(3) == 0) options.fail_every = 5 + static_cast<int64_t>(rng.below(20));
  TestRun run(plans, config, options);
  run.keep_actions = true;
  std::map<RequestId, RequestSpec> wanted;
  for (RequestId id = 1; id <= 10; ++id) {
    RequestSpec spec = random_guided(rng, config);
    if (rng.below(3) == 0) spec.sample = nullptr, spec.negative_prompt.clear();
    try {
      check_request(config, spec);
    } catch (const Error&) {
      spec = request({1, 2, 3}, 5);
    }
    auto at = static_cast<Nanos>(rng.below(20000000));
    if (rng.below(6) == 0)
      run.simulator.at(at + static_cast<Nanos>(rng.below(20000000)), Event::cancel(id));
    run.arrive(at, id, spec);
    wanted[id] = spec;
  }
  run.run();
  for (const auto& [id, spec] : wanted) {
    SCOPED_TRACE(fmt::format("request {} guided {}", id, spec.guided()));
    for (int32_t c = 0; c < spec.n; ++c) {
      const Answer& got = run.answers[{id, c}];
      if (got.finish == Finish::kCancelled) continue;
      EXPECT_EQ(got.error, "");
      std::vector<int32_t> want = spec.guided()
                                      ? alone(plans, options, spec)
                                      : run.model.continuation(spec.prompt, spec.max_tokens);
      EXPECT_EQ(got.ids, want);
      if (spec.guided()) {
        EXPECT_NE(want, run.model.continuation(spec.prompt, spec.max_tokens));
      }
    }
  }
  EngineCore core(config);
  EXPECT_TRUE(run.log.replay(core) == run.actions) << "the replay differs";
  guided_totals.preemptions += run.core.stats().preemptions;
  guided_totals.prefix_hits += run.core.stats().prefix_hits;
}

class Guidance : public testing::TestWithParam<int> {};

TEST_P(Guidance, RandomSchedulesGiveTheSameAnswers) {
  const char* seeds = std::getenv("TOKAMAK_SEEDS");  // for longer runs
  uint64_t last = seeds == nullptr ? 25 : std::strtoull(seeds, nullptr, 10);
  for (uint64_t seed = 1; seed <= last && !HasFailure(); ++seed) guided_run(seed, GetParam());
  EXPECT_GT(guided_totals.preemptions, 0);
  EXPECT_GT(guided_totals.prefix_hits, 0);
}

INSTANTIATE_TEST_SUITE_P(InFlight, Guidance, testing::Values(1, 2));

RequestSpec guided_request(std::vector<int32_t> prompt, std::vector<int32_t> negative,
                           int32_t max) {
  RequestSpec spec = request(std::move(prompt), max);
  spec.negative_prompt = std::move(negative);
  SampleSpec sample;
  sample.temperature = 0;
  sample.guidance_scale = 2;
  spec.sample = std::make_shared<const SampleSpec>(sample);
  return spec;
}

// Each token of prompt, negative prompt and answer is computed once, and a second request finds
// both prompts in the cache.
TEST(GuidanceCost, OneMoreSequence) {
  PlanSet plans = fake_plan_set(1000, 0, 512);
  EngineConfig config = default_engine_config(plans, 512, 4096);
  TestRun run(plans, config, checked());
  std::vector<int32_t> prompt = random_prompt(*std::make_unique<Rng>(1), 1000, 64),
                       negative = random_prompt(*std::make_unique<Rng>(2), 1000, 48);
  run.arrive(0, 1, guided_request(prompt, negative, 20));
  run.run();
  EXPECT_EQ(run.core.stats().tokens_scheduled, 64 + 48 + 2 * 19);
  // The prompts but for their last tokens, then 20 tokens.
  int64_t budget = config.max_batched_tokens, prompts = (63 + 47 + budget - 1) / budget;
  EXPECT_EQ(run.core.stats().steps, prompts + 20);
  std::vector<int32_t> first = run.answers[{1, 0}].ids;
  run.arrive(Nanos{1000000000}, 2, guided_request(prompt, negative, 20));
  run.run();
  EXPECT_EQ((run.answers[{2, 0}].ids), first);
  int64_t whole = 47 / config.groups[0].block_size * config.groups[0].block_size;
  EXPECT_EQ(run.core.stats().tokens_scheduled, 2 * (64 + 48 + 2 * 19) - 63 - whole);
}

TEST(GuidanceCost, WhatItCannotBeCombinedWith) {
  PlanSet plans = fake_plan_set(1000, 0, 512);
  EngineConfig config = default_engine_config(plans, 512, 512);
  auto refused = [&](auto change) {
    RequestSpec spec = guided_request({1, 2, 3}, {4, 5}, 20);
    change(spec);
    EXPECT_THROW(check_request(config, spec), Error);
  };
  check_request(config, guided_request({1, 2, 3}, {4, 5}, 20));
  refused([](RequestSpec& s) { s.beams = 2; });
  refused([](RequestSpec& s) { s.draft_tokens = 4; });
  refused([](RequestSpec& s) { s.negative_prompt = {1000}; });
  refused([](RequestSpec& s) { s.negative_prompt.assign(500, 1); });
  refused([](RequestSpec& s) { s.max_tokens = 300; });  // the two do not fit
  refused([](RequestSpec& s) { s.sample = nullptr; });  // a negative prompt for nothing
  config.max_num_seqs = 1;
  refused([](RequestSpec&) {});
}

}  // namespace
}  // namespace tokamak
