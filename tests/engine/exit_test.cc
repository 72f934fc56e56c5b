// Early exit on the null backend.
#include "engine/draft/exit_drafter.h"
#include "tests/engine/test_run.h"

namespace tokamak {
namespace {

// Early exit: drafts and their verification are phases of one step, which reads what they chose.
TEST(Speculation, AnExitDraftsInTheStepThatVerifies) {
  PlanSet plans = fake_plan_set();
  EngineConfig config = default_engine_config(plans);
  config.draft_tokens = 3;
  config.exits = true;
  ExitDrafter drafter;
  TestRun run(plans, config, checked(), &drafter);
  std::vector<std::string> steps;
  run.on_advance = [&](Nanos, std::span<const Event>, Actions& actions) {
    for (const SubmitAction& s : actions.submits) {
      std::string& text = steps.emplace_back();
      for (const StepPhase& p : s.inputs->phases)
        text += fmt::format("{}:{}:{}:{} ", p.function, p.tokens, p.sequences, p.outputs);
    }
  };
  std::vector<int32_t> prompt = {1, 2, 3, 4};
  run.arrive(0, 1, request(prompt, 8));
  run.run();
  // Tokens 1, then 3 drafts + 1, then 2 drafts + 1: the answer ends.
  EXPECT_EQ(steps, (std::vector<std::string>{"", "exit:1:1:1 exit:1:1:1 exit:1:1:1 verify3:4:1:4 ",
                                             "exit:1:1:1 exit:1:1:1 step:3:1:3 "}));
  EXPECT_EQ((run.answers[{1, 0}].ids), run.model.continuation(prompt, 8));
  const EngineStats& s = run.core.stats();
  EXPECT_EQ(s.draft_tokens, 5);
  EXPECT_EQ(s.draft_accepted, 5);
  EXPECT_EQ(s.tokens_scheduled, 4 + 4 + 3);  // rows of drafts are not counted
}

// Without the function in the plans there are no such drafts.
TEST(Speculation, DraftsByTheStepNeedTheFunction) {
  PlanSet plans = fake_plan_set();
  EngineConfig config = default_engine_config(plans);
  config.draft_tokens = 3;
  EXPECT_FALSE(config.exits);
  ExitDrafter drafter;
  TestRun run(plans, config, checked(), &drafter);
  run.arrive(0, 1, request({1, 2, 3}, 8));
  run.run();
  EXPECT_EQ(run.core.stats().drafts, 0);
  EXPECT_EQ((run.answers[{1, 0}].ids), run.model.continuation(std::vector<int32_t>{1, 2, 3}, 8));
}

}  // namespace
}  // namespace tokamak
