// The pauses of streams while prompts are computed: whole engine, virtual clock.
#include <algorithm>
#include <cmath>

#include "tests/engine/test_run.h"

namespace tokamak {
namespace {

// How long a step takes: decodes, chunks of prompts, and their tokens by position.
struct StepTimes {
  const char* name;
  double decode;    // seconds of a step without prompts
  double token;     // per prompt token ...
  double position;  // ... and per position before it
  bool roofline;    // weights are read meanwhile: a few tokens cost nothing
  double noise = 0;
  double chunk = 0;   // per chunk ...
  double before = 0;  // ... and per position before it

  double compute(int64_t start, int64_t count) const {
    auto n = static_cast<double>(count), from = static_cast<double>(start);
    return chunk + before * from + n * (token + position * (from + 0.5 * (n - 1)));
  }
  double step(double prompts) const {
    return roofline ? std::max(decode, prompts) : decode + prompts;
  }
  double operator()(const StepInputs& in, Rng& rng) const {
    double sum = 0;
    for (size_t b = 0; b < static_cast<size_t>(in.sequences()); ++b)
      if (auto count = in.q_start[b + 1] - in.q_start[b]; count > 1)
        sum += compute(in.pos[static_cast<size_t>(in.q_start[b])], count);
    return step(sum) * (1 + noise * rng.uniform(-1, 1));
  }
  // Steps for a prompt, if each is as large as the target allows.
  int64_t steps(int64_t tokens, double target) const {
    int64_t steps = 0;
    for (int64_t start = 0; start < tokens; ++steps) {
      int64_t n = 2;
      while (n < 2048 && step(compute(start, n + 1)) <= target) ++n;
      start += n;
    }
    return steps;
  }
};

struct Pauses {
  double before = 0;  // median without prompts
  double worst = 0;   // while prompts are computed
  int64_t steps = 0;  // of the prompts
};

constexpr int64_t kPrompts[] = {6000, 300, 2000};

// Four streams; then long prompts arrive, the first of them with nothing known about their cost.
Pauses measure(const StepTimes& times, Nanos target, int in_flight) {
  PlanSet plans = fake_plan_set(1000, 0, 16384);
  plans.symbols[0].hi = 2048;
  EngineConfig config = default_engine_config(plans, 16384, 80000);
  config.max_in_flight = in_flight;
  config.tpot_target = target;
  config.prefix_cache = false;
  NullOptions options;
  options.max_in_flight = in_flight;
  TestRun run(plans, config, options);
  Rng rng(3);
  run.cost = [&](const StepInputs& in) { return times(in, rng); };
  auto at = [&](double steps) { return static_cast<Nanos>(steps * times.decode * 1e9); };
  constexpr RequestId kStreams = 4;
  for (RequestId id = 0; id < kStreams; ++id)
    run.arrive(0, id, request(random_prompt(rng, 1000, 40), 3000));
  const Nanos arrival = at(100);
  for (RequestId i = 0; i < std::size(kPrompts); ++i)
    run.arrive(arrival, 10 + i, request(random_prompt(rng, 1000, kPrompts[i]), 1));
  std::vector<double> gaps;
  Pauses result;
  Nanos last = 0;
  bool computing = true;
  run.on_advance = [&](Nanos now, std::span<const Event>, Actions& actions) {
    bool stream = false;
    for (const Delta& d : actions.deltas()) {
      stream = stream || d.request == 0;
      if (d.request == 12 && d.finish != Finish::kNone) computing = false;
    }
    if (!stream) return;
    double gap = seconds(now - last);
    if (last > at(20) && now < arrival) gaps.push_back(gap);
    if (last > arrival && computing) {
      result.worst = std::max(result.worst, gap);
      ++result.steps;
    }
    last = now;
  };
  run.run();
  std::sort(gaps.begin(), gaps.end());
  result.before = gaps.at(gaps.size() / 2);
  EXPECT_FALSE(computing) << "the prompts were not computed while the streams ran";
  return result;
}

constexpr StepTimes kMachines[] = {
    {"additive", 20e-3, 1e-3, 1e-7, false},
    {"roofline", 20e-3, 1e-3, 1e-7, true},
    {"long attention", 20e-3, 2e-4, 2e-7, false},
    {"slow prompts", 20e-3, 6e-3, 0, false},
    {"small model", 2e-3, 1e-4, 1e-8, true},
    {"noise", 20e-3, 1e-3, 1e-7, false, 0.15},
    {"noise, roofline", 20e-3, 1e-3, 1e-7, true, 0.15},
    {"cost of a chunk", 20e-3, 3e-4, 1e-7, false, 0, 8e-3},
    {"cost of a chunk by depth", 20e-3, 3e-4, 1e-7, false, 0, 3e-3, 2e-6},
    {"cost of a chunk, noise", 20e-3, 3e-4, 1e-7, false, 0.1, 3e-3, 2e-6},
};

// With a target of twice the pause between tokens no pause becomes longer than three times that, at
// any depth of the prompts; no step takes much longer than a larger target; and the time is used.
TEST(TokenBudget, StreamsKeepTheTargetWhilePromptsAreComputed) {
  for (const StepTimes& machine : kMachines)
    for (int in_flight : {1, 2})
      for (double ratio : {2.0, 8.0}) {
        SCOPED_TRACE(fmt::format("{}, {} in flight, target {}", machine.name, in_flight, ratio));
        double target = ratio * machine.decode;
        int64_t fewest = 0;
        for (int64_t tokens : kPrompts) fewest += machine.steps(tokens, target);
        Pauses p = measure(machine, static_cast<Nanos>(target * 1e9), in_flight);
        EXPECT_NEAR(p.before, machine.decode, 0.2 * machine.decode);
        if (ratio <= 2) {
          EXPECT_LE(p.worst, 3.0 * p.before);
        } else {
          EXPECT_LE(p.worst, (machine.noise > 0 ? 1.5 : 1.35) * target);
        }
        EXPECT_LE(p.steps, (machine.noise > 0 ? 1.5 : 1.2) * static_cast<double>(fewest) + 10);
      }
}

}  // namespace
}  // namespace tokamak
