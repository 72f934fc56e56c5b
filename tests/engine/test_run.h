#pragma once
// Runs requests through EngineCore on the null backend under virtual time and collects the answers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/simulator.h"
#include "tests/engine/event_log.h"
#include "tests/engine/fake_plan.h"

namespace tokamak {

inline RequestSpec request(std::vector<int32_t> prompt, int32_t max_tokens) {
  RequestSpec s;
  s.prompt = std::move(prompt);
  s.max_tokens = max_tokens;
  return s;
}

// The null backend, checking every write and read of state.
inline NullOptions checked(int in_flight = 1) {
  NullOptions o;
  o.shadow = true;
  o.max_in_flight = in_flight;
  return o;
}

struct Answer {
  std::vector<int32_t> ids;
  std::vector<float> logprobs, prompt_logprobs;
  std::vector<std::vector<TokenLogprob>> top;
  int64_t drafted = 0, accepted = 0;
  int32_t stop_id = -1;
  int32_t end = -1;  // position of the last delta's end
  Finish finish = Finish::kNone;
  std::string error;
};

// One run. Checks the rules for streams while it collects the answers.
class TestRun {
 public:
  TestRun(const PlanSet& plans, EngineConfig config, NullOptions options,
          Drafter* drafter = nullptr)
      : model(null_model(plans, options)),
        executable(null_for(plans, config, options)),
        core(config, drafter),
        simulator(core, *executable, [this](const StepInputs& in) { return step_seconds(in); }),
        machine_(plans, options.machine) {
    simulator.observe([this](Nanos now, std::span<const Event> events, Actions& actions) {
      collect(actions);
      if (on_advance) on_advance(now, events, actions);
    });
    simulator.record([this](Nanos now, std::span<const Event> events) { log.record(now, events); });
  }

  void arrive(Nanos at, RequestId id, RequestSpec spec) {
    open_[id] = spec.n;
    simulator.at(at, Event::arrival(id, std::move(spec)));
  }

  // Runs to the end and checks that all rows and blocks have been released.
  void run() {
    simulator.run();
    EXPECT_TRUE(core.idle());
    EXPECT_TRUE(core.kv().all_free())
        << core.kv().free_blocks() << " of " << core.kv().total_blocks();
    EXPECT_EQ(core.running(), 0);
    EXPECT_EQ(core.waiting(), 0);
    for (auto [id, n] : open_) EXPECT_EQ(n, 0) << "request " << id << " has no end";
  }

  NullModel model;
  std::unique_ptr<Executable> executable;
  EngineCore core;
  Simulator simulator;
  EventLog log;
  std::string actions;  // as text, all of them
  bool keep_actions = false;
  double fixed_step_seconds = 0;                  // 0: the roofline's
  std::function<double(const StepInputs&)> cost;  // of a step, instead of both; may be empty
  std::map<std::pair<RequestId, int32_t>, Answer> answers;
  std::function<void(Nanos, std::span<const Event>, Actions&)> on_advance;

 private:
  double step_seconds(const StepInputs& in) const {
    if (cost) return cost(in);
    return fixed_step_seconds > 0 ? fixed_step_seconds : machine_.seconds(in);
  }

  void collect(const Actions& a) {
    if (keep_actions) actions += actions_text(a);
    for (const Delta& d : a.deltas()) {
      Answer& answer = answers[{d.request, d.choice}];
      EXPECT_EQ(answer.finish, Finish::kNone) << "a delta after the last one";
      if (d.finish != Finish::kStop || !d.ids.empty()) {
        EXPECT_EQ(d.position, static_cast<int32_t>(answer.ids.size()));
      }
      answer.ids.insert(answer.ids.end(), d.ids.begin(), d.ids.end());
      answer.logprobs.insert(answer.logprobs.end(), d.logprobs.begin(), d.logprobs.end());
      answer.top.insert(answer.top.end(), d.top.begin(), d.top.end());
      answer.prompt_logprobs.insert(answer.prompt_logprobs.end(), d.prompt_logprobs.begin(),
                                    d.prompt_logprobs.end());
      answer.end = d.position + static_cast<int32_t>(d.ids.size());
      answer.drafted += d.drafted;
      answer.accepted += d.accepted;
      answer.finish = d.finish;
      answer.stop_id = d.stop_id;
      answer.error = d.error;
      if (d.finish != Finish::kNone) --open_[d.request];
    }
    for (RequestId id : a.finished) EXPECT_EQ(open_[id], 0);
  }

  Roofline machine_;
  std::map<RequestId, int32_t> open_;  // choices without an end
};

inline std::vector<int32_t> random_prompt(Rng& rng, int64_t vocab, int64_t length) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i)
    ids.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab))));
  return ids;
}

}  // namespace tokamak
