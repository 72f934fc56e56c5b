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
  double chunk = 0;    // per chunk ...
  double before = 0;   // ... and per position before it
  double stream = 0;   // per further sequence that decodes ...
  double context = 0;  // ... and per position before its token
  bool busy = false;   // with another program for a while, now and then

  double compute(int64_t start, int64_t count) const {
    auto n = static_cast<double>(count), from = static_cast<double>(start);
    return chunk + before * from + n * (token + position * (from + 0.5 * (n - 1)));
  }
  double step(double prompts) const { return step(decode, prompts); }
  double step(double decodes, double prompts) const {
    return roofline ? std::max(decodes, prompts) : decodes + prompts;
  }
  struct Parts {
    double decodes, prompts;
  };
  Parts parts(const StepInputs& in) const {
    Parts sum{decode - stream, 0};
    for (size_t b = 0; b < static_cast<size_t>(in.sequences()); ++b) {
      auto count = in.q_start[b + 1] - in.q_start[b];
      auto start = in.pos[static_cast<size_t>(in.q_start[b])];
      if (count > 1)
        sum.prompts += compute(start, count);
      else
        sum.decodes += stream + context * start;
    }
    return sum;
  }
  double operator()(const StepInputs& in, Rng& rng) const {
    Parts p = parts(in);
    return step(p.decodes, p.prompts) * (1 + noise * rng.uniform(-1, 1));
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

PlanSet long_plans() {
  PlanSet plans = fake_plan_set(1000, 0, 16384);
  plans.symbols[0].hi = 2048;
  return plans;
}

EngineConfig long_config(const PlanSet& plans, Nanos target, double pace, int in_flight) {
  EngineConfig config = default_engine_config(plans, 16384, 80000);
  config.max_in_flight = in_flight;
  config.tpot_target = target;
  config.stream_pace = pace;
  config.prefix_cache = false;
  return config;
}

// Four streams; then long prompts arrive, the first of them with nothing known about their cost.
Pauses measure(const StepTimes& times, Nanos target, int in_flight) {
  PlanSet plans = long_plans();
  EngineConfig config = long_config(plans, target, 0, in_flight);
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

// Whatever waits, and however long steps took: only the fewest tokens by which a prompt makes
// progress are taken although the step is predicted to exceed its limit.
TEST(TokenBudget, NoStepIsPredictedAboveItsLimit) {
  int64_t mixed = 0, several = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const StepTimes& machine = kMachines[rng.below(std::size(kMachines))];
    TokenBudget budget(1 + static_cast<int64_t>(rng.below(2048)),
                       static_cast<Nanos>(machine.decode * rng.uniform(0.5, 12) * 1e9),
                       rng.below(2) == 0 ? 0 : rng.uniform(1.2, 4));
    for (int step = 0; step < 60; ++step) {
      auto decodes = static_cast<int64_t>(rng.below(9));
      StepPrompts prompts(budget, decodes, rng.below(3) > 0);
      double took = 0;
      for (uint64_t waiting = rng.below(8), chunks = 0; waiting > 0; --waiting) {
        auto start = static_cast<int64_t>(rng.below(rng.below(2) == 0 ? 100 : 8000));
        auto left = 2 + static_cast<int64_t>(rng.below(3000));
        int64_t n = std::min(left, prompts.fit(start));
        if (n == 0) continue;
        prompts.add(n, start);
        took += machine.compute(start, n);
        if (++chunks == 1 && n <= budget.least(start)) continue;
        EXPECT_LE(prompts.predicted(), prompts.limit());
        mixed += decodes > 0 ? 1 : 0;
        several += chunks > 1 ? 1 : 0;
      }
      took = machine.step(decodes > 0 ? machine.decode : 0, took);
      budget.observe(prompts.taken(), decodes,
                     static_cast<Nanos>(1e9 * took * (1 + 0.2 * rng.uniform(-1, 1))));
    }
  }
  EXPECT_GT(mixed, 1000);
  EXPECT_GT(several, 1000);
}

// Streams of other requests, and what their steps cost. The answers of the prompts that arrive are
// streamed too, so that the number of decodes and their pace change.
constexpr StepTimes kStreamMachines[] = {
    {"more streams cost more", 8e-3, 5e-4, 1e-7, false, 0, 0, 0, 2e-3, 0},
    {"long answers cost more", 8e-3, 5e-4, 1e-7, false, 0, 1e-3, 1e-6, 5e-4, 1e-6},
    {"roofline", 8e-3, 5e-4, 1e-7, true, 0, 0, 0, 1e-3, 0},
    {"fast", 1e-3, 6e-5, 1e-8, false, 0, 5e-5, 0, 1e-4, 1e-7},
    {"large model", 200e-3, 20e-3, 1e-6, false, 0, 5e-3, 0, 20e-3, 1e-6},
    {"noise", 8e-3, 5e-4, 1e-7, false, 0.1, 1e-3, 1e-6, 5e-4, 1e-6},
    {"busy", 8e-3, 5e-4, 1e-7, false, 0.03, 0, 0, 1e-3, 0, true},
};

struct PaceResult {
  double worst = 0;   // step with prompts and streams (not while busy), divided by its decodes
  int64_t steps = 0;  // of prompts
  int64_t over_limit = 0;
};

PaceResult measure_pace(const StepTimes& times, RequestId streams, bool streamed, int in_flight) {
  PlanSet plans = long_plans();
  EngineConfig config = long_config(plans, 250'000'000, 2.6, in_flight);
  NullOptions options;
  options.max_in_flight = in_flight;
  TestRun run(plans, config, options);
  Rng rng(7);
  PaceResult result;
  run.cost = [&, step = 0](const StepInputs& in) mutable {
    StepTimes::Parts p = times.parts(in);
    double took = times.step(p.decodes, p.prompts) * (1 + times.noise * rng.uniform(-1, 1));
    bool decodes = std::ssize(in.pos) > 0 && in.q_start[1] - in.q_start[0] == 1;
    result.steps += p.prompts > 0 ? 1 : 0;
    if (decodes && p.prompts > 0) result.worst = std::max(result.worst, took / p.decodes);
    return times.busy && ++step % 60 >= 50 ? 3 * took : took;
  };
  auto add = [&](Nanos at, RequestId id, int64_t prompt, int32_t answer) {
    RequestSpec spec = request(random_prompt(rng, 1000, prompt), answer);
    spec.streamed = streamed;
    run.arrive(at, id, std::move(spec));
  };
  for (RequestId id = 0; id < streams; ++id) add(0, id, 40, 2500);
  const Nanos arrival = static_cast<Nanos>(times.decode * 50e9);
  for (RequestId i = 0; i < 6; ++i) add(arrival, 100 + i, 500 + 500 * static_cast<int64_t>(i), 60);
  run.run();
  result.over_limit = run.core.stats().steps_over_limit;
  return result;
}

// Prompts slow streams down by at most the factor, also when the number of streams changes; answers
// that are not streamed do not hold prompts back.
TEST(TokenBudget, StepsFollowThePaceOfStreams) {
  for (const StepTimes& machine : kStreamMachines)
    for (int in_flight : {1, 2})
      for (RequestId streams : {1, 8}) {
        SCOPED_TRACE(fmt::format("{}, {} in flight, {} streams", machine.name, in_flight, streams));
        PaceResult p = measure_pace(machine, streams, true, in_flight);
        EXPECT_LE(p.worst, 3.0);
        EXPECT_GE(p.worst, 2.0) << "the time is not used";
        if (machine.noise == 0) {
          EXPECT_LE(p.over_limit, 8) << "while a pace or a cost is not known";
        }
        PaceResult unread = measure_pace(machine, streams, false, in_flight);
        EXPECT_LE(unread.steps, p.steps + p.steps / 20);
        if (machine.decode < 50e-3) {
          EXPECT_LT(unread.steps, p.steps / 4);
        }
      }
}

}  // namespace
}  // namespace tokamak
