#pragma once
// Runs requests through the engine on a backend that computes, with a small model of random
// weights.
#include <gtest/gtest.h>

#include <map>

#include "backend/cpu/test_model.h"
#include "engine/simulator.h"

// Backends that the tests run on; another program can name others.
#ifndef TK_TEST_BACKENDS
#define TK_TEST_BACKENDS "ref", "cpu"
#endif

namespace tokamak {

struct BackendAnswer {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  bool operator==(const BackendAnswer&) const = default;
};
using Answers = std::map<std::pair<RequestId, int32_t>, BackendAnswer>;

struct RunSetup {
  EngineConfig config;
  int64_t kv_tokens = 4096;
  Drafter* drafter = nullptr;
};

// Runs requests that arrive 2 ms apart, through the whole engine; a step takes 1 ms.
inline Answers run(Backend& backend, const cpu::TestModel& model, RunSetup setup,
                   const std::map<RequestId, RequestSpec>& requests, EngineStats& stats) {
  EngineConfig& c = setup.config;
  c.vocab = model.plans.vocab;
  c.max_model_len = 512;
  c.groups = model.plans.groups;
  c.blocks = kv_blocks_for(model.plans, setup.kv_tokens);
  c.max_num_seqs = 8;
  c.max_batched_tokens = 64;
  LoadOptions load;
  load.blocks = c.blocks;
  load.max_rows = c.max_num_seqs;
  auto executable = backend.load(cpu::plans_for(backend, model.plans), model.weights, load);
  c.max_in_flight = executable->max_in_flight();
  for (const InputEntry& in : model.plans.inputs) c.tree_mask |= in.name == "mask";
  EngineCore core(c, setup.drafter);
  Simulator simulator(core, *executable, [](const StepInputs&) { return 1e-3; });
  Nanos at = 0;
  for (const auto& [id, spec] : requests) {
    simulator.at(at, Event::arrival(id, spec));
    at += 2 * kMillisecond;
  }
  Answers out;
  simulator.observe([&](Nanos, std::span<const Event>, Actions& actions) {
    for (const Delta& d : actions.deltas()) {
      EXPECT_TRUE(d.finish == Finish::kNone || d.finish == Finish::kLength) << d.error;
      BackendAnswer& a = out[{d.request, d.choice}];
      a.ids.insert(a.ids.end(), d.ids.begin(), d.ids.end());
      a.logprobs.insert(a.logprobs.end(), d.logprobs.begin(), d.logprobs.end());
    }
  });
  simulator.run();
  stats = core.stats();
  EXPECT_TRUE(core.kv().all_free());
  return out;
}

inline std::map<RequestId, RequestSpec> requests() {
  std::map<RequestId, RequestSpec> out;
  Rng rng(21);
  auto id = [&] { return static_cast<int32_t>(rng.below(300)); };
  std::vector<int32_t> shared(90);
  for (int32_t& t : shared) t = id();
  for (RequestId r = 1; r <= 6; ++r) {
    RequestSpec& spec = out[r];
    // Prompts share whole blocks, a part of a block, or everything.
    spec.prompt.assign(shared.begin(),
                       shared.begin() + static_cast<std::ptrdiff_t>(90 - 7 * (r % 4)));
    for (uint64_t n = rng.below(3) * 9; n > 0; --n) spec.prompt.push_back(id());
    spec.max_tokens = 60;
    spec.n = r % 3 == 0 ? 3 : 1;
    SampleSpec sample;
    sample.temperature = r % 2 == 0 ? 0.0f : 1.0f;
    sample.seed = r;
    sample.top_logprobs = 0;
    if (r % 4 == 1) sample.repetition_penalty = 1.2f;
    spec.sample = std::make_shared<const SampleSpec>(sample);
  }
  return out;
}

inline cpu::TestModelOptions small_model() {
  cpu::TestModelOptions options;
  options.window = 24;
  options.max_tokens = 64;
  options.hidden = 64;
  options.ffn = 128;
  return options;
}

}  // namespace tokamak
