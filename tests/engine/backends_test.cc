// The engine on backends that compute: tokens and log-probabilities have the same bits whether a
// request runs alone or together with others, with shared and copied blocks, forks and preemption.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/engine/backend_run.h"
#include "tests/engine/beam_oracle.h"

namespace tokamak {
namespace {

class Backends : public testing::TestWithParam<const char*> {};

TEST_P(Backends, SharingDoesNotChangeABit) {
  cpu::TestModel model(small_model());
  BackendOptions threads;
  threads.threads = 2;
  auto backend = make_backend(GetParam(), threads);
  auto all = requests();
  RunSetup plain;
  plain.config.prefix_cache = false;
  EngineStats stats;
  Answers alone;
  for (const auto& [id, spec] : all)
    for (const auto& [key, answer] : run(*backend, model, plain, {{id, spec}}, stats))
      alone[key] = answer;
  for (auto [kv_tokens, policy] :
       {std::pair(4096, SchedPolicy::kFcfs), std::pair(300, SchedPolicy::kFcfs),
        std::pair(300, SchedPolicy::kCache)}) {
    RunSetup setup;
    setup.kv_tokens = kv_tokens;
    setup.config.policy = policy;
    Answers together = run(*backend, model, setup, all, stats);
    EXPECT_TRUE(together == alone) << "KV of " << kv_tokens << " tokens";
    EXPECT_GT(stats.prefix_hits, 0);
    EXPECT_GT(stats.blocks_copied, 0);
    if (kv_tokens < 4096) {
      EXPECT_GT(stats.preemptions, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Each, Backends, testing::Values(TK_TEST_BACKENDS));

// Runs one request alone.
std::vector<Delta> run_alone(Executable& executable, EngineConfig config, const RequestSpec& spec) {
  EngineCore core(std::move(config));
  Simulator simulator(core, executable, [](const StepInputs&) { return 1e-3; });
  simulator.at(0, Event::arrival(1, spec));
  std::vector<Delta> out;
  simulator.observe([&](Nanos, std::span<const Event>, Actions& actions) {
    for (const Delta& d : actions.deltas()) out.push_back(d);
  });
  simulator.run();
  return out;
}

// The oracle asks for one token at a time, so nothing is shared, forked or copied.
TEST(BeamSearchOnCpu, AsOneByOne) {
  cpu::TestModel model(small_model());
  BackendOptions threads;
  threads.threads = 2;
  auto backend = make_backend("cpu", threads);
  EngineConfig config;
  config.vocab = model.plans.vocab;
  config.max_model_len = 256;
  config.groups = model.plans.groups;
  config.max_num_seqs = 8;
  config.max_batched_tokens = 64;
  config.blocks = kv_blocks_for(model.plans, 2048);
  LoadOptions load;
  load.blocks = config.blocks;
  load.max_rows = config.max_num_seqs;
  auto executable = backend->load(model.plans, model.weights, load);
  Rng rng(3);
  for (int round = 0; round < 3; ++round) {
    RequestSpec spec;
    for (int i = 0; i < 20 + 13 * round; ++i)
      spec.prompt.push_back(static_cast<int32_t>(rng.below(300)));
    spec.max_tokens = 24, spec.beams = 4, spec.n = 3;
    spec.length_penalty = round == 1 ? 0.0f : 1.0f;
    for (int i = 0; i < 20 * round; ++i)
      spec.stop_ids.push_back(static_cast<int32_t>(rng.below(300)));
    config.prefix_cache = false;
    auto oracle = beam_oracle(spec, [&](const std::vector<int32_t>& ids) {
      SampleSpec sample;
      sample.temperature = 0;
      sample.top_logprobs = static_cast<int32_t>(oracle_candidates(spec));
      RequestSpec one;
      one.prompt = ids;
      one.max_tokens = 1;
      one.sample = std::make_shared<const SampleSpec>(sample);
      return run_alone(*executable, config, one).at(0).top.at(0);
    });
    config.prefix_cache = true;
    std::vector<Delta> got = run_alone(*executable, config, spec);
    ASSERT_EQ(got.size(), 3u);
    for (size_t c = 0; c < 3; ++c) {
      EXPECT_EQ(got[c].choice, static_cast<int32_t>(c));
      EXPECT_EQ(got[c].ids, oracle[c].ids) << "round " << round << " choice " << c;
      EXPECT_EQ(got[c].finish, oracle[c].finish);
    }
  }
}

}  // namespace
}  // namespace tokamak
