#include "engine/core.h"

#include <chrono>

#include "base/error.h"
#include "tests/engine/test_run.h"

namespace tokamak {
namespace {

TEST(Core, WhatCannotFitEndsAtOnce) {
  PlanSet plans = fake_plan_set();
  EngineConfig config = default_engine_config(plans, 100, 100);
  config.max_queue = 2;
  TestRun run(plans, config, checked());
  run.arrive(0, 1, request({1}, 100));
  run.arrive(0, 2, request({}, 1));
  run.arrive(0, 3, request({1, 2}, 5));
  run.arrive(0, 4, request({1, 2}, 5));
  run.arrive(0, 5, request({1, 2}, 5));  // three would wait
  run.run();
  EXPECT_NE((run.answers[{1, 0}].error.find("limit of 100")), std::string::npos);
  EXPECT_EQ((run.answers[{2, 0}].finish), Finish::kError);
  EXPECT_EQ((run.answers[{4, 0}].finish), Finish::kLength);
  EXPECT_NE((run.answers[{5, 0}].error.find("queue is full")), std::string::npos);
}

TEST(Core, ARowThatIsNotFiniteFailsAlone) {
  PlanSet plans = fake_plan_set();
  NullOptions options = checked(2);
  options.nan_token = 13;
  EngineConfig config = default_engine_config(plans);
  config.max_in_flight = 2;
  TestRun run(plans, config, options);
  run.arrive(0, 1, request({1, 2, 3}, 20));
  run.arrive(0, 2, request({1, 13, 3}, 20));
  run.run();
  EXPECT_EQ((run.answers[{1, 0}].ids), run.model.continuation(std::vector<int32_t>{1, 2, 3}, 20));
  EXPECT_EQ((run.answers[{2, 0}].finish), Finish::kError);
}

TEST(Core, ARequestThatKillsStepsFailsAlone) {
  PlanSet plans = fake_plan_set();
  for (int in_flight : {1, 2, 4}) {
    NullOptions options = checked(in_flight);
    options.fatal_token = 13;
    EngineConfig config = default_engine_config(plans);
    config.max_in_flight = in_flight;
    TestRun run(plans, config, options);
    for (RequestId id = 1; id <= 6; ++id)
      run.arrive(0, id, request({static_cast<int32_t>(id), id == 3 ? 13 : 14, 3}, 20));
    run.run();
    for (RequestId id = 1; id <= 6; ++id) {
      const Answer& a = run.answers[{id, 0}];
      EXPECT_EQ(a.finish, id == 3 ? Finish::kError : Finish::kLength) << id << " " << a.error;
      if (id == 3) {
        EXPECT_NE(a.error.find("injected"), std::string::npos);
      }
    }
  }
}

TEST(Core, PreemptedSequencesComeBack) {
  PlanSet plans = fake_plan_set(1000, 24, 512);
  for (int in_flight : {1, 2, 4}) {
    EngineConfig config = default_engine_config(plans, 200, 200);
    config.max_in_flight = in_flight;
    TestRun run(plans, config, checked(in_flight));
    Rng rng(5);
    std::map<RequestId, RequestSpec> specs;
    for (RequestId id = 1; id <= 12; ++id) {
      specs[id] = request(random_prompt(rng, 1000, 20), 60);
      run.arrive(0, id, specs[id]);
    }
    run.run();
    EXPECT_GT(run.core.stats().preemptions, 0);
    for (const auto& [id, spec] : specs)
      EXPECT_EQ((run.answers[{id, 0}].ids), run.model.continuation(spec.prompt, 60));
  }
}

TEST(Core, DeadlinesEndWhatWaitsAndWhatRuns) {
  PlanSet plans = fake_plan_set();
  EngineConfig config = default_engine_config(plans);
  config.max_num_seqs = 1;
  TestRun run(plans, config, checked());
  run.fixed_step_seconds = 1e-3;
  RequestSpec slow = request({1, 2}, 100), queued = request({3}, 1);
  slow.deadline = 20 * kMillisecond + 1;
  queued.deadline = 5 * kMillisecond;
  run.arrive(0, 1, slow);
  run.arrive(0, 2, queued);
  run.run();
  EXPECT_EQ((run.answers[{1, 0}].finish), Finish::kTimeout);
  EXPECT_EQ((run.answers[{1, 0}].ids.size()), 20u);
  EXPECT_EQ((run.answers[{2, 0}].finish), Finish::kTimeout);
  EXPECT_EQ(run.simulator.now(), 21 * kMillisecond);  // the step that was running
}

TEST(Core, FunctionsAreNamedAfterTheBatch) {
  struct Right final : Drafter {
    explicit Right(NullModel m) : model(m) {}
    void propose(std::span<DraftRequest> requests) override {
      for (DraftRequest& r : requests)
        for (int32_t id : model.continuation(r.ids, r.most))
          r.tokens.push_back({id, static_cast<int32_t>(r.tokens.size()) - 1});
    }
    NullModel model;
  };
  PlanSet plans = fake_plan_set();
  NullOptions options = checked();
  for (int32_t k : {0, 2, 3}) {
    EngineConfig config = default_engine_config(plans);
    config.draft_tokens = k;
    Right drafter(null_model(plans, options));
    TestRun run(plans, config, options, &drafter);
    std::vector<std::string> functions;
    run.on_advance = [&](Nanos, std::span<const Event>, Actions& a) {
      for (const SubmitAction& s : a.submits) functions.push_back(s.inputs->function);
    };
    run.arrive(0, 1, request({1, 2, 3}, 9));
    run.run();
    EXPECT_EQ((run.answers[{1, 0}].ids), run.model.continuation(std::vector<int32_t>{1, 2, 3}, 9));
    // The prompt's step, then 8 tokens: one at a time, three at a time (no such function), four.
    std::vector<std::string> expected;
    if (k == 0) expected.assign(9, "decode"), expected[0] = "step";
    if (k == 2) expected.assign(4, "step");
    if (k == 3) expected = {"step", "verify3", "verify3"};
    EXPECT_EQ(functions, expected);
  }
}

TEST(Core, ALongPromptDoesNotStallStreams) {
  PlanSet plans = fake_plan_set();
  EngineConfig config = default_engine_config(plans);
  config.max_batched_tokens = 16;
  TestRun run(plans, config, checked());
  run.fixed_step_seconds = 1e-3;
  Rng rng(3);
  run.arrive(0, 1, request({1, 2}, 50));
  run.arrive(10 * kMillisecond, 2, request(random_prompt(rng, 1000, 300), 5));
  std::vector<Nanos> times;
  run.on_advance = [&](Nanos now, std::span<const Event>, Actions& a) {
    for (const Delta& d : a.deltas())
      if (d.request == 1) times.push_back(now);
  };
  run.run();
  ASSERT_EQ(times.size(), 50u);
  for (size_t i = 1; i < times.size(); ++i) EXPECT_EQ(times[i] - times[i - 1], kMillisecond);
}

TEST(Core, HistoryIsSentWhenARowIsTakenOrRewound) {
  PlanSet plans = fake_plan_set();
  NullOptions options = checked();
  options.fail_every = 4;
  TestRun run(plans, default_engine_config(plans), options);
  RequestSpec spec = request({1, 2, 3}, 6);
  SampleSpec sample;
  sample.temperature = 0;
  sample.presence_penalty = 0.5f;
  spec.sample = std::make_shared<const SampleSpec>(sample);
  std::vector<size_t> sent;
  run.on_advance = [&](Nanos, std::span<const Event>, Actions& a) {
    for (const SubmitAction& s : a.submits)
      for (const RowReset& r : s.inputs->resets) {
        EXPECT_EQ(r.prompt_tokens, 3);
        sent.push_back(r.ids.size());
      }
  };
  run.arrive(0, 1, spec);
  run.run();
  // Step 4 fails with three tokens committed, step 8 would be the fourth retry's successor.
  ASSERT_GE(sent.size(), 2u);
  EXPECT_EQ(sent[0], 3u);
  EXPECT_EQ(sent[1], 6u);
}

TEST(Core, NonsenseFromABackendCostsAStep) {
  PlanSet plans = fake_plan_set();
  EngineCore core(default_engine_config(plans));
  Actions actions;
  std::vector<Event> events = {Event::arrival(1, request({1, 2}, 4))};
  core.advance(0, events, actions);
  ASSERT_EQ(actions.submits.size(), 1u);
  StepResult empty;
  events = {Event::step_done(actions.submits[0].ticket, &empty)};
  core.advance(1, events, actions);
  EXPECT_EQ(core.stats().failed_steps, 1);
  ASSERT_EQ(actions.submits.size(), 1u);  // tried again
  events = {Event::step_done(7, &empty)};
  EXPECT_THROW(core.advance(2, events, actions), Error);
}

TEST(Core, SleepsUntilTheNextDeadline) {
  PlanSet plans = fake_plan_set();
  EngineCore core(default_engine_config(plans));
  Actions actions;
  core.advance(0, {}, actions);
  EXPECT_EQ(actions.next_wakeup, kNever);
  RequestSpec spec = request({1}, 4);
  spec.deadline = 500;
  std::vector<Event> events = {Event::arrival(1, spec)};
  core.advance(0, events, actions);
  EXPECT_EQ(actions.next_wakeup, 500);
  events = {Event::cancel(1)};
  core.advance(1, events, actions);
  EXPECT_EQ(actions.deltas()[0].finish, Finish::kCancelled);
  EXPECT_EQ(core.kv().free_blocks(), core.kv().total_blocks() - 2);  // a step still refers to them
  events = {Event::step_failed(0, "gone")};
  core.advance(2, events, actions);
  EXPECT_TRUE(core.kv().all_free());
  EXPECT_EQ(actions.next_wakeup, kNever);
}

// Checks no time limit; prints the cost of the engine itself.
TEST(Core, TwelveThousandRequests) {
  PlanSet plans = fake_plan_set(32000, 0, 4096);
  plans.symbols = {{"T", 1, 2048, 1}, {"B", 1, 256, 1}, {"R", 1, 256, 1}};
  EngineConfig config = default_engine_config(plans, 4096, 200000);
  config.max_queue = 100000;
  config.max_in_flight = 2;
  Rng rng(11);
  EngineCore core(config);
  NullOptions options;
  auto executable = null_for(plans, config, options);
  Roofline machine(plans, options.machine);
  Simulator simulator(core, *executable, [&](const StepInputs& in) { return machine.seconds(in); });
  Nanos at = 0;
  for (RequestId id = 1; id <= 12000; ++id) {
    at += static_cast<Nanos>(rng.below(1000000));
    simulator.at(
        at, Event::arrival(
                id, request(random_prompt(rng, 32000, 1 + static_cast<int64_t>(rng.below(200))),
                            1 + static_cast<int32_t>(rng.below(60)))));
  }
  size_t finished = 0;
  simulator.observe(
      [&](Nanos, std::span<const Event>, Actions& a) { finished += a.finished.size(); });
  auto start = std::chrono::steady_clock::now();
  simulator.run();
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_EQ(finished, 12000u);
  EngineStats stats = core.stats();
  fmt::print(
      "12000 requests, {} steps, {} tokens in {:.2f} s: {:.0f} requests/s, virtual {:.1f} s\n",
      stats.steps, stats.tokens_scheduled, seconds, 12000 / seconds,
      tokamak::seconds(simulator.now()));
}

}  // namespace
}  // namespace tokamak
