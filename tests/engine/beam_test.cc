// Beam search against a simple oracle, under random schedules on the null backend, which checks
// every read of a forked block.
#include <cstdlib>

#include "tests/engine/beam_oracle.h"
#include "tests/engine/test_run.h"

namespace tokamak {
namespace {

// The continuations of a text on the null backend: the token it chooses, then its neighbours.
std::vector<TokenLogprob> null_best(const NullModel& model, const std::vector<int32_t>& ids,
                                    int32_t count) {
  int32_t first = model.continuation(ids, 1)[0];
  std::vector<int32_t> whole = ids;
  whole.push_back(first);
  float logprob = model.score(whole, static_cast<int32_t>(ids.size()));
  std::vector<TokenLogprob> out;
  for (int32_t k = 0; k < count; ++k)
    out.push_back(
        {static_cast<int32_t>((first + k) % model.vocab()), logprob - static_cast<float>(k)});
  return out;
}

// The sum of the null backend's log-probabilities of an answer.
double null_sum(const NullModel& model, const RequestSpec& spec, const Answer& answer) {
  std::vector<int32_t> ids = spec.prompt;
  double sum = 0;
  for (int32_t id : answer.ids) {
    for (const TokenLogprob& t :
         null_best(model, ids, static_cast<int32_t>(oracle_candidates(spec))))
      if (t.id == id) sum += static_cast<double>(t.logprob);
    ids.push_back(id);
  }
  return sum;
}

void expect_answer(const OracleText& want, const Answer& got, double sum) {
  EXPECT_EQ(got.ids, want.ids) << "sum " << sum << ", the oracle has " << want.sum;
  EXPECT_EQ(got.finish, want.finish) << got.error;
}

RequestSpec random_beams(Rng& rng, const EngineConfig& config) {
  RequestSpec spec =
      request(random_prompt(rng, config.vocab, 1 + static_cast<int64_t>(rng.below(50))),
              1 + static_cast<int32_t>(rng.below(40)));
  spec.beams = 1 + static_cast<int32_t>(rng.below(static_cast<uint64_t>(config.max_num_seqs)));
  spec.n = 1 + static_cast<int32_t>(rng.below(static_cast<uint64_t>(spec.beams)));
  spec.length_penalty = rng.below(2) == 0 ? 1.0f : -0.5f + static_cast<float>(rng.below(4));
  spec.early_stopping = static_cast<EarlyStopping>(rng.below(3));
  if (rng.below(2) == 0)
    for (uint64_t i = rng.below(3) == 0 ? 60 : 2; i > 0; --i)
      spec.stop_ids.push_back(static_cast<int32_t>(rng.below(1000)));
  SampleSpec sample;
  sample.top_logprobs = static_cast<int32_t>(rng.below(2)) - 1;
  sample.min_tokens = static_cast<int32_t>(rng.below(5));
  if (rng.below(3) > 0) spec.sample = std::make_shared<const SampleSpec>(sample);
  return spec;
}

EngineConfig beam_config(const PlanSet& plans, int in_flight, Rng& rng) {
  EngineConfig config = default_engine_config(plans, 200, 1);
  config.max_num_seqs = 2 + static_cast<int64_t>(rng.below(6));
  config.max_batched_tokens = config.max_num_seqs + static_cast<int64_t>(rng.below(40));
  config.max_out_rows = config.max_num_seqs;
  config.max_in_flight = in_flight;
  config.max_step_failures = 1000;
  config.blocks = kv_blocks_for(plans, 250 + static_cast<int64_t>(rng.below(500)));
  config.policy = static_cast<SchedPolicy>(rng.below(4));
  config.kv_policy = static_cast<KvPolicy>(rng.below(2));
  config.batching = static_cast<Batching>(rng.below(3) == 0 ? rng.below(3) : 0);
  config.prefix_cache = rng.below(3) > 0;
  return config;
}

EngineStats beam_totals;

void beam_run(uint64_t seed, int in_flight) {
  SCOPED_TRACE(fmt::format("seed {} in_flight {}", seed, in_flight));
  Rng rng(seed);
  PlanSet plans = fake_plan_set(1000, 1 + static_cast<int64_t>(rng.below(40)), 512);
  EngineConfig config = beam_config(plans, in_flight, rng);
  NullOptions options = checked(in_flight);
  options.seed = seed;
  if (rng.below(3) == 0) options.fail_every = 5 + static_cast<int64_t>(rng.below(20));
  TestRun run(plans, config, options);
  run.keep_actions = true;
  std::map<RequestId, RequestSpec> wanted;
  std::map<RequestId, bool> disturbed;
  for (RequestId id = 1; id <= 12; ++id) {
    RequestSpec spec = random_beams(rng, config);
    try {
      check_request(config, spec);
    } catch (const Error&) {
      spec.beams = 0, spec.n = 1, spec.stop_ids.clear(), spec.sample = nullptr;
    }
    auto at = static_cast<Nanos>(rng.below(20000000));
    disturbed[id] = rng.below(6) == 0;
    if (disturbed[id])
      run.simulator.at(at + static_cast<Nanos>(rng.below(20000000)), Event::cancel(id));
    run.arrive(at, id, spec);
    wanted[id] = spec;
  }
  run.run();
  for (const auto& [id, wanted_spec] : wanted) {
    const RequestSpec& spec = wanted_spec;
    SCOPED_TRACE(fmt::format("request {} beams {} n {}", id, spec.beams, spec.n));
    if (disturbed[id] && run.answers[{id, 0}].finish == Finish::kCancelled) continue;
    if (spec.beams == 0) {
      EXPECT_EQ((run.answers[{id, 0}].ids), run.model.continuation(spec.prompt, spec.max_tokens));
      continue;
    }
    auto best = [&](const std::vector<int32_t>& ids) {
      return null_best(run.model, ids, static_cast<int32_t>(oracle_candidates(spec)));
    };
    auto oracle = beam_oracle(spec, best);
    ASSERT_EQ(oracle.size(), static_cast<size_t>(spec.n));
    for (int32_t c = 0; c < spec.n; ++c) {
      const Answer& got = run.answers[{id, c}];
      expect_answer(oracle[static_cast<size_t>(c)], got, null_sum(run.model, spec, got));
      bool logprobs = spec.sample && spec.sample->top_logprobs >= 0;
      EXPECT_EQ(got.logprobs.size(), logprobs ? got.ids.size() : 0);
    }
  }
  EngineCore core(config);
  EXPECT_TRUE(run.log.replay(core) == run.actions) << "the replay differs";
  beam_totals.preemptions += run.core.stats().preemptions;
  beam_totals.blocks_copied += run.core.stats().blocks_copied;
}

class Beams : public testing::TestWithParam<int> {};

TEST_P(Beams, RandomSchedulesGiveTheOraclesTexts) {
  const char* seeds = std::getenv("TOKAMAK_SEEDS");  // for longer runs
  uint64_t last = seeds == nullptr ? 10 : std::strtoull(seeds, nullptr, 10);
  for (uint64_t seed = 1; seed <= last && !HasFailure(); ++seed) beam_run(seed, GetParam());
  EXPECT_GT(beam_totals.preemptions, 0);
  EXPECT_GT(beam_totals.blocks_copied, 0);
}

INSTANTIATE_TEST_SUITE_P(InFlight, Beams, testing::Values(1, 2));

// Forks share blocks: a partial answer costs only its own tokens, and at most one block per fork.
TEST(BeamSearch, ComputesEachTokenOnce) {
  PlanSet plans = fake_plan_set(1000, 0, 512);
  EngineConfig config = default_engine_config(plans, 512, 4096);
  TestRun run(plans, config, checked());
  RequestSpec spec = request(random_prompt(*std::make_unique<Rng>(1), 1000, 100), 40);
  spec.beams = spec.n = 4;
  run.arrive(0, 1, spec);
  run.run();
  const EngineStats& s = run.core.stats();
  EXPECT_EQ(s.tokens_scheduled, 100 + 4 * 39);  // the last tokens are not computed
  EXPECT_EQ(s.prompt_tokens, 100);
  EXPECT_EQ(s.preemptions, 0);
  EXPECT_EQ(s.tokens_emitted, 160);
}

TEST(BeamSearch, RefusesWhatCannotBe) {
  PlanSet plans = fake_plan_set(1000, 0, 512);
  EngineConfig config = default_engine_config(plans, 512, 512);
  auto refused = [&](auto change) {
    RequestSpec spec = request({1, 2, 3}, 20);
    spec.beams = 4;
    change(spec);
    EXPECT_THROW(check_request(config, spec), Error);
  };
  check_request(config, [] {
    RequestSpec spec = request({1, 2, 3}, 20);
    spec.beams = spec.n = 4;
    return spec;
  }());
  refused([](RequestSpec& s) { s.beams = -1; });
  refused([](RequestSpec& s) { s.beams = 10000; });
  refused([](RequestSpec& s) { s.n = 5; });
  refused([](RequestSpec& s) { s.max_tokens = 0; });
  refused([](RequestSpec& s) { s.score_prompt = true; });
  refused([](RequestSpec& s) { s.length_penalty = NAN; });
  refused([](RequestSpec& s) { s.max_tokens = 300; });  // four of them do not fit
}

}  // namespace
}  // namespace tokamak
