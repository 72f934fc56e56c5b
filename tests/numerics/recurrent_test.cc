// The engine with a model whose state is kept per sequence: answers do not depend on batching, on
// prompts that share a prefix, on sequences that wait for a state, or on failed steps.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "compile/compiler.h"
#include "engine/simulator.h"

namespace tokamak {
namespace {

using RecurrentAnswers = std::map<std::pair<RequestId, int32_t>, std::vector<int32_t>>;

// Runs a step and then says that it failed: what it wrote stays, as after a fault of a device.
class FailingExecutable final : public Executable {
 public:
  FailingExecutable(Executable& real, uint64_t period) : real_(real), period_(period) {}
  Ticket submit(const StepInputs& step) override { return real_.submit(step); }
  void collect(Ticket ticket, StepResult& out) override {
    real_.collect(ticket, out);
    if (period_ > 0 && ++steps_ % period_ == 0) fail(ErrorCode::kInternal, "a fault");
  }
  const MemoryLedger& memory() const override { return real_.memory(); }

 private:
  Executable& real_;
  uint64_t period_, steps_ = 0;
};

class RecurrentTest : public testing::TestWithParam<std::pair<const char*, const char*>> {
 protected:
  void SetUp() override {
    const char* dir = std::getenv("TOKAMAK_TINY_FAMILIES");
    if (!dir)
      GTEST_SKIP() << "TOKAMAK_TINY_FAMILIES is not a folder (tools/tiny_models.py --families)";
    BackendOptions options;
    options.threads = 2;
    backend_ = make_backend(GetParam().second, options);
    CompileOptions compile;
    compile.max_sequences = 6;
    compile.max_tokens = 24;
    compile.max_logit_rows = 24;
    compile.context = 128;
    source_ =
        compile_model((std::filesystem::path(dir) / GetParam().first).string(), *backend_, compile);
  }

  struct Setup {
    int64_t states = 6;         // sequences that have one at a time
    uint64_t fault_period = 0;  // every n-th step fails; 0: none
    Nanos interval = kMillisecond;
    bool ends_with_error = false;  // all of them
  };
  RecurrentAnswers run(const Setup& setup, const std::map<RequestId, RequestSpec>& requests) {
    const PlanSet& plans = source_->plans();
    EngineConfig config = default_engine_config(plans, 128);
    EXPECT_TRUE(config.recurrent);
    config.blocks.back() = setup.states;
    // A sequence that starts again takes many steps.
    config.max_step_failures = setup.ends_with_error ? 5 : 50;
    LoadOptions load;
    load.blocks = config.blocks;
    load.max_rows = config.max_num_seqs;
    auto executable = backend_->load(plans, source_->weights(), load);
    FailingExecutable failing(*executable, setup.fault_period);
    EngineCore core(config);
    Simulator simulator(core, failing, [](const StepInputs&) { return 1e-3; });
    Nanos at = 0;
    for (const auto& [id, spec] : requests) {
      simulator.at(at, Event::arrival(id, spec));
      at += setup.interval;
    }
    RecurrentAnswers out;
    simulator.observe([&](Nanos, std::span<const Event>, Actions& actions) {
      for (const Delta& d : actions.deltas()) {
        EXPECT_TRUE(d.finish == Finish::kNone ||
                    d.finish == (setup.ends_with_error ? Finish::kError : Finish::kLength))
            << d.error;
        auto& ids = out[{d.request, d.choice}];
        ids.insert(ids.end(), d.ids.begin(), d.ids.end());
      }
    });
    simulator.run();
    stats_ = core.stats();
    EXPECT_TRUE(core.kv().all_free());
    return out;
  }

  static std::map<RequestId, RequestSpec> requests() {
    std::map<RequestId, RequestSpec> out;
    for (RequestId r = 1; r <= 5; ++r) {
      RequestSpec& spec = out[r];
      // All share a prefix; the last is the first again.
      for (int32_t i = 0; i < 30 + static_cast<int32_t>(r % 5); ++i)
        spec.prompt.push_back(10 + (i * 7 + (i > 20 ? static_cast<int32_t>(r % 4) : 0)) % 100);
      spec.max_tokens = 20;
      spec.n = r == 3 ? 3 : 1;
      SampleSpec sample;
      sample.temperature = r % 2 == 0 ? 0.0f : 1.0f;
      sample.seed = r;
      spec.sample = std::make_shared<const SampleSpec>(sample);
    }
    return out;
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ModelSource> source_;
  EngineStats stats_;
};

TEST_P(RecurrentTest, AnswersDoNotDependOnOtherSequences) {
  RecurrentAnswers alone = run({.interval = kSecond}, requests());
  ASSERT_EQ(alone.size(), 7u);
  for (const auto& [id, ids] : alone) EXPECT_EQ(ids.size(), 20u);
  EXPECT_EQ(run({}, requests()), alone);
  EXPECT_EQ(stats_.prefix_hits, 0);
  EXPECT_EQ(run({.states = 2}, requests()), alone) << "with two states";
}

TEST_P(RecurrentTest, AFailedStepLeavesNoTraceInTheState) {
  RecurrentAnswers whole = run({}, requests());
  EXPECT_EQ(run({.fault_period = 11}, requests()), whole);
  EXPECT_GT(stats_.failed_steps, 3);
}

// Prompts of more tokens than a step takes, and every second step fails: no sequence ever gets
// beyond its first chunk.
TEST_P(RecurrentTest, ASequenceThatNeverGetsFurtherEnds) {
  RecurrentAnswers answers = run({.fault_period = 2, .ends_with_error = true}, requests());
  EXPECT_EQ(answers.size(), 7u);
  for (const auto& [id, ids] : answers) EXPECT_TRUE(ids.empty());
}

TEST_P(RecurrentTest, WhatNeedsARollbackIsRefused) {
  EngineConfig config = default_engine_config(source_->plans(), 128);
  RequestSpec beams = requests()[1];
  beams.beams = 2;
  try {
    check_request(config, beams);
    FAIL() << "beams were accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("without recurrent layers"), std::string::npos)
        << e.what();
  }
  config.draft_tokens = 3;
  EXPECT_THROW(check_engine_config(config), Error);
}

using ModelAndBackend = std::pair<const char*, const char*>;
INSTANTIATE_TEST_SUITE_P(
    Models, RecurrentTest,
    testing::Values(ModelAndBackend("mamba2", "ref"), ModelAndBackend("mamba2", "cpu"),
                    ModelAndBackend("qwen3next", "ref"), ModelAndBackend("qwen3next", "cpu"),
                    ModelAndBackend("granite4", "cpu"), ModelAndBackend("nemotron_h", "cpu"),
                    ModelAndBackend("lfm2", "cpu")),
    [](const auto& info) { return std::string(info.param.first) + "_" + info.param.second; });

}  // namespace
}  // namespace tokamak
