// Pooling requests: a prompt in, its vector out, next to requests that generate.
#include "engine/core.h"
#include "tests/engine/test_run.h"

namespace tokamak {
namespace {

constexpr int64_t kWidth = 16;

// The plans of a decoder that also gives states of its rows.
PlanSet plans_with_vectors() {
  PlanSet plans = fake_plan_set();
  plans.plans[0].outputs = {{"hidden", {.dims = {SymExpr::symbol("R"), SymExpr(kWidth)}}}};
  return plans;
}

// Those of an encoder: no states, and a step holds the longest text.
PlanSet encoder_plans() {
  PlanSet plans = plans_with_vectors();
  plans.states.clear();
  plans.groups.clear();
  plans.plans.resize(1);
  plans.context = 64;
  return plans;
}

RequestSpec pooling(std::vector<int32_t> prompt) {
  RequestSpec s = request(std::move(prompt), 0);
  s.pool = true;
  return s;
}

std::vector<float> vector_of(const NullModel& model, const std::vector<int32_t>& prompt) {
  std::vector<float> out;
  uint64_t chain = model.chain_of(prompt);
  for (int64_t i = 0; i < kWidth; ++i) out.push_back(NullModel::element(chain, i));
  return out;
}

class PoolRun : public TestRun {
 public:
  PoolRun(const PlanSet& plans, const EngineConfig& config, const NullOptions& options)
      : TestRun(plans, config, options) {
    on_advance = [this](Nanos, std::span<const Event>, Actions& actions) {
      for (const Delta& d : actions.deltas())
        if (!d.vector.empty()) vectors[d.request] = d.vector;
      for (const SubmitAction& s : actions.submits)
        most_tokens = std::max(most_tokens, s.inputs->tokens());
    };
  }
  std::map<RequestId, std::vector<float>> vectors;
  int64_t most_tokens = 0;
};

// Chunked, batched, found in the cache, preempted, or repeated after a failure: the same vector,
// and the answers next to it do not change.
TEST(Pool, VectorsBesideAnswers) {
  PlanSet plans = plans_with_vectors();
  for (int in_flight : {1, 2})
    for (int fail_every : {0, 7})
      for (int64_t kv_tokens : {0, 240}) {
        SCOPED_TRACE(
            fmt::format("{} in flight, fails {}, kv {}", in_flight, fail_every, kv_tokens));
        NullOptions options = checked(in_flight);
        options.fail_every = fail_every;
        EngineConfig config = default_engine_config(plans, 200, kv_tokens);
        config.max_in_flight = in_flight;
        config.max_step_failures = 100;
        EXPECT_EQ(config.vector_width, kWidth);
        EXPECT_FALSE(config.encoder);
        PoolRun run(plans, config, options);
        Rng rng(11);
        std::map<RequestId, RequestSpec> specs;
        for (RequestId id = 1; id <= 24; ++id) {
          std::vector<int32_t> prompt = random_prompt(rng, 1000, 1 + (id * 13) % 150);
          if (id % 4 == 0) prompt = specs[id - 2].prompt;  // once as an answer, once as a vector
          specs[id] = id % 4 < 2 ? pooling(prompt) : request(prompt, 12);
          run.arrive(0, id, specs[id]);
        }
        run.run();
        for (const auto& [id, spec] : specs) {
          const Answer& answer = run.answers[{id, 0}];
          if (spec.pool) {
            EXPECT_EQ(answer.finish, Finish::kStop) << answer.error;
            EXPECT_TRUE(answer.ids.empty());
            EXPECT_EQ(run.vectors[id], vector_of(run.model, spec.prompt)) << id;
          } else {
            EXPECT_EQ(answer.ids, run.model.continuation(spec.prompt, 12)) << id;
            EXPECT_FALSE(run.vectors.contains(id));
          }
        }
      }
}

// Texts of an encoder are never split, and several share a step.
TEST(Pool, EncodersComputeTextsWhole) {
  PlanSet plans = encoder_plans();
  EngineConfig config = default_engine_config(plans);
  EXPECT_TRUE(config.encoder);
  EXPECT_TRUE(config.blocks.empty());
  PoolRun run(plans, config, checked());
  Rng rng(3);
  std::map<RequestId, RequestSpec> specs;
  for (RequestId id = 1; id <= 40; ++id) {
    specs[id] = pooling(random_prompt(rng, 1000, 1 + (id * 29) % 64));
    run.arrive(0, id, specs[id]);
  }
  run.arrive(0, 100, request({1, 2}, 5));
  run.arrive(0, 101, pooling(random_prompt(rng, 1000, 65)));
  run.run();
  for (const auto& [id, spec] : specs)
    EXPECT_EQ(run.vectors[id], vector_of(run.model, spec.prompt)) << id;
  EXPECT_LT(run.core.stats().steps, 40);
  EXPECT_LE(run.most_tokens, 64);
  EXPECT_NE((run.answers[{100, 0}].error.find("encoder")), std::string::npos);
  EXPECT_NE((run.answers[{101, 0}].error.find("limit of 64")), std::string::npos);
}

TEST(Pool, CancelledAndExpiredRequestsEnd) {
  PlanSet plans = encoder_plans();
  PoolRun run(plans, default_engine_config(plans), checked());
  run.fixed_step_seconds = 1;
  Rng rng(5);
  for (RequestId id = 1; id <= 4; ++id) {
    RequestSpec spec = pooling(random_prompt(rng, 1000, 60));
    if (id == 4) spec.deadline = 1500000000;
    run.arrive(0, id, spec);
  }
  run.simulator.at(500000000, Event::cancel(3));
  run.run();
  EXPECT_EQ((run.answers[{1, 0}].finish), Finish::kStop);
  EXPECT_EQ((run.answers[{3, 0}].finish), Finish::kCancelled);
  EXPECT_EQ((run.answers[{4, 0}].finish), Finish::kTimeout);
}

TEST(Pool, RequestsAreChecked) {
  EngineConfig config = default_engine_config(plans_with_vectors());
  RequestSpec good = pooling({1, 2, 3});
  check_request(config, good);
  RequestSpec of_tokens = good;
  of_tokens.score_prompt = true;  // a vector of each token
  check_request(config, of_tokens);
  auto refused = [&](auto change) {
    RequestSpec bad = good;
    change(bad);
    EXPECT_THROW(check_request(config, bad), Error);
  };
  refused([](RequestSpec& s) { s.max_tokens = 1; });
  refused([](RequestSpec& s) { s.n = 2; });
  refused([](RequestSpec& s) { s.second_text = 4; });
  config.vector_width = 0;
  refused([](RequestSpec&) {});
}

}  // namespace
}  // namespace tokamak
