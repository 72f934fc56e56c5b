// Token masks through the engine, on the null backend.
#include "engine/local_engine.h"
#include "tests/engine/test_run.h"

namespace tokamak {
namespace {

// Allows the ids of [first, first + count) at every position but `gap`, where nothing is allowed.
class RangeMask final : public TokenMask {
 public:
  RangeMask(int32_t first, int32_t count, int32_t gap = -1)
      : first_(first), count_(count), gap_(gap) {}
  void allow(int32_t choice, std::span<const int32_t> answer, std::span<const int32_t> drafts,
             std::span<uint32_t> bits) override {
    EXPECT_TRUE(drafts.empty());
    calls.push_back({choice, {answer.begin(), answer.end()}});
    if (std::ssize(answer) == gap_) return;
    for (auto id = static_cast<size_t>(first_); id < static_cast<size_t>(first_ + count_); ++id)
      bits[id / 32] |= 1u << (id % 32);
  }
  std::vector<std::pair<int32_t, std::vector<int32_t>>> calls;

 private:
  int32_t first_, count_, gap_;
};

EngineConfig config_for(const PlanSet& plans, int in_flight) {
  EngineConfig config = default_engine_config(plans, 200, 1000);
  config.max_in_flight = in_flight;
  return config;
}

TEST(TokenMask, EveryTokenIsAllowed) {
  PlanSet plans = fake_plan_set();
  for (int in_flight : {1, 2, 4}) {
    TestRun run(plans, config_for(plans, in_flight), checked(in_flight));
    auto mask = std::make_shared<RangeMask>(40, 3);
    RequestSpec spec = request({1, 2, 3}, 20);
    spec.n = 2;
    spec.mask = mask;
    run.arrive(0, 1, spec);
    run.arrive(0, 2, request({5, 6}, 20));  // is not masked
    run.run();
    for (int32_t choice : {0, 1}) {
      const Answer& a = run.answers[{1, choice}];
      EXPECT_EQ(a.finish, Finish::kLength) << a.error;
      ASSERT_EQ(a.ids.size(), 20u);
      for (int32_t id : a.ids) EXPECT_TRUE(id >= 40 && id < 43) << id;
      // It was asked once for each token, with the tokens before it.
      size_t next = 0;
      for (const auto& [c, answer] : mask->calls) {
        if (c != choice) continue;
        ASSERT_LE(answer.size(), a.ids.size());
        EXPECT_EQ(answer.size(), next++);
        EXPECT_TRUE(std::equal(answer.begin(), answer.end(), a.ids.begin()));
      }
      EXPECT_EQ(next, 20u);
    }
    EXPECT_EQ((run.answers[{2, 0}].ids), run.model.continuation(std::vector<int32_t>{5, 6}, 20));
  }
}

TEST(TokenMask, AnEmptyMaskEndsItsChoiceOnly) {
  PlanSet plans = fake_plan_set();
  for (int in_flight : {1, 3}) {
    TestRun run(plans, config_for(plans, in_flight), checked(in_flight));
    RequestSpec spec = request({1, 2, 3}, 20);
    spec.mask = std::make_shared<RangeMask>(0, 50, 7);
    run.arrive(0, 1, spec);
    run.arrive(0, 2, request({5, 6}, 20));
    run.run();
    const Answer& a = run.answers[{1, 0}];
    EXPECT_EQ(a.finish, Finish::kError);
    EXPECT_EQ(a.ids.size(), 7u);
    EXPECT_EQ(a.error, "the token mask of the request allows no token at this position");
    EXPECT_EQ((run.answers[{2, 0}].ids), run.model.continuation(std::vector<int32_t>{5, 6}, 20));
  }
}

TEST(TokenMask, AThrowingMaskEndsItsChoiceOnly) {
  class Throws final : public TokenMask {
    void allow(int32_t, std::span<const int32_t>, std::span<const int32_t>,
               std::span<uint32_t>) override {
      throw std::runtime_error("grammar");
    }
  };
  PlanSet plans = fake_plan_set();
  TestRun run(plans, config_for(plans, 2), checked(2));
  RequestSpec spec = request({1, 2, 3}, 20);
  spec.mask = std::make_shared<Throws>();
  run.arrive(0, 1, spec);
  run.arrive(0, 2, request({5, 6}, 20));
  run.run();
  EXPECT_EQ((run.answers[{1, 0}].finish), Finish::kError);
  EXPECT_EQ((run.answers[{2, 0}].finish), Finish::kLength);
}

TEST(TokenMask, NotWithBeams) {
  PlanSet plans = fake_plan_set();
  RequestSpec spec = request({1}, 5);
  spec.beams = 2;
  check_request(config_for(plans, 1), spec);
  spec.mask = std::make_shared<RangeMask>(0, 5);
  EXPECT_THROW(check_request(config_for(plans, 1), spec), Error);
}

}  // namespace
}  // namespace tokamak
