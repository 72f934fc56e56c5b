// What the engine computes and what it reuses: shared prefixes, forks, policies, statistics.
#include "engine/replay.h"
#include "engine/sched/token_budget.h"
#include "tests/engine/test_run.h"

namespace tokamak {
namespace {

// A PlanSet with one KV group of blocks of 16, room for long prompts.
PlanSet wide_plan_set() {
  PlanSet p = fake_plan_set(1000, 0, 4096);
  p.symbols = {{"T", 1, 256, 1}, {"B", 1, 16, 1}, {"R", 1, 64, 1}};
  p.groups = {{"full", 0, 16}};
  p.states.resize(1);
  return p;
}

RequestSpec shared_request(int32_t id, int64_t shared, int64_t own, int32_t max_tokens) {
  Rng same(1), mine(static_cast<uint64_t>(id) + 100);
  RequestSpec spec;
  spec.prompt = random_prompt(same, 1000, shared);
  for (int32_t t : random_prompt(mine, 1000, own)) spec.prompt.push_back(t);
  spec.max_tokens = max_tokens;
  return spec;
}

TEST(Cache, FourClientsComputeASharedPromptOnce) {
  PlanSet plans = wide_plan_set();
  for (int in_flight : {1, 2}) {
    EngineConfig config = default_engine_config(plans, 4096, 16384);
    config.max_in_flight = in_flight;
    TestRun run(plans, config, checked(in_flight));
    std::map<RequestId, int32_t> cached;
    run.on_advance = [&](Nanos, std::span<const Event>, Actions& a) {
      for (const Delta& d : a.deltas())
        if (d.position == 0) cached[d.request] = d.cached_tokens;
    };
    std::map<RequestId, RequestSpec> specs;
    for (RequestId id = 1; id <= 4; ++id) {
      specs[id] = shared_request(static_cast<int32_t>(id), 512, 32, 8);
      run.arrive(0, id, specs[id]);
    }
    run.run();
    for (const auto& [id, spec] : specs)
      EXPECT_EQ((run.answers[{id, 0}].ids), run.model.continuation(spec.prompt, 8));
    const EngineStats& s = run.core.stats();
    EXPECT_EQ(s.prefill_tokens, 512 + 4 * 32);
    EXPECT_EQ(s.prefix_hits, 3 * 512);
    EXPECT_EQ(s.prompt_tokens, 4 * 544);
    EXPECT_EQ(cached[1], 0);
    EXPECT_EQ(cached[2], 512);
    EXPECT_EQ(cached[4], 512);
    EXPECT_EQ(s.kv_blocks_used, 0);
    EXPECT_GT(s.kv_blocks_cached, 32);
    EXPECT_EQ(s.kv_blocks_cached + s.kv_blocks_free, s.kv_blocks_total);
  }
}

TEST(Cache, TheNextTurnStartsFromTheAnswer) {
  PlanSet plans = wide_plan_set();
  TestRun run(plans, default_engine_config(plans, 4096, 16384), checked());
  RequestSpec first = shared_request(1, 0, 100, 60);
  run.arrive(0, 1, first);
  RequestSpec second = first;
  for (int32_t id : run.model.continuation(first.prompt, 60)) second.prompt.push_back(id);
  second.prompt.push_back(5);
  run.arrive(kSecond, 2, second);
  run.run();
  // 159 slots were computed: the last token of an answer is not computed. 144 are whole units, and
  // of the next unit nothing was indexed.
  EXPECT_EQ(run.core.stats().prefix_hits, 144);
}

TEST(Cache, ChoicesShareTheirPrompt) {
  PlanSet plans = wide_plan_set();
  for (bool prefix_cache : {false, true}) {
    EngineConfig config = default_engine_config(plans, 4096, 16384);
    config.prefix_cache = prefix_cache;
    TestRun run(plans, config, checked());
    RequestSpec spec = shared_request(1, 0, 200, 20);
    spec.n = 5;
    SampleSpec sample;
    sample.seed = 3;
    spec.sample = std::make_shared<const SampleSpec>(sample);
    run.arrive(0, 1, spec);
    int64_t most = 0;
    run.on_advance = [&](Nanos, std::span<const Event>, Actions&) {
      most = std::max(most, run.core.stats().kv_blocks_used);
    };
    run.run();
    for (int32_t c = 0; c < 5; ++c)
      EXPECT_EQ((run.answers[{1, c}].ids), run.model.continuation(spec.prompt, 20, &sample, c));
    EXPECT_EQ(run.core.stats().prefill_tokens, 200 + 4);
    EXPECT_LE(most, 12 + 5 * 2 + 1);  // 12 whole blocks of the prompt once, the rest by choice
  }
}

TEST(Cache, ContentThatWasNotFiniteIsNotShared) {
  PlanSet plans = wide_plan_set();
  NullOptions options = checked();
  options.nan_token = 13;
  TestRun run(plans, default_engine_config(plans, 4096, 16384), options);
  RequestSpec bad;
  bad.prompt.assign(64, 7);
  bad.prompt[60] = 13;
  run.arrive(0, 1, bad);
  run.arrive(kSecond, 2, bad);
  run.run();
  EXPECT_EQ((run.answers[{2, 0}].finish), Finish::kError);
  EXPECT_EQ(run.core.stats().prefix_hits, 0);
  EXPECT_EQ(run.core.kv().cached_blocks(), 0);
}

TEST(Cache, RefusalsSayWhy) {
  PlanSet plans = fake_plan_set();
  EngineConfig config = default_engine_config(plans, 100, 100);
  config.max_queue = 1;
  TestRun run(plans, config, checked());
  std::map<RequestId, ErrorCode> codes;
  run.on_advance = [&](Nanos, std::span<const Event>, Actions& a) {
    for (const Delta& d : a.deltas())
      if (d.finish == Finish::kError) codes[d.request] = d.error_code;
  };
  run.arrive(0, 1, shared_request(1, 0, 90, 50));
  run.arrive(0, 2, shared_request(2, 0, 5, 5));
  run.arrive(0, 3, shared_request(3, 0, 5, 5));
  run.run();
  EXPECT_EQ(codes.at(1), ErrorCode::kOutOfRange);
  EXPECT_EQ(codes.at(3), ErrorCode::kResourceExhausted);
  EXPECT_EQ(run.core.stats().requests_rejected, 2);
}

TEST(Cache, PromptScoresComeWithAlternatives) {
  PlanSet plans = fake_plan_set();
  TestRun run(plans, default_engine_config(plans), checked());
  RequestSpec spec = shared_request(1, 0, 40, 2);
  spec.score_prompt = true;
  SampleSpec sample;
  sample.top_logprobs = 3;
  spec.sample = std::make_shared<const SampleSpec>(sample);
  size_t scores = 0, tops = 0;
  run.on_advance = [&](Nanos, std::span<const Event>, Actions& a) {
    for (const Delta& d : a.deltas()) {
      scores += d.prompt_logprobs.size();
      for (const auto& top : d.prompt_top) tops += top.size();
    }
  };
  run.arrive(0, 1, spec);
  run.arrive(kSecond, 2, spec);  // its prompt is cached, but scores need rows
  run.run();
  EXPECT_EQ(scores, 2 * 39u);
  EXPECT_EQ(tops, 2 * 39u * 3);
}

TEST(Cache, StatisticsAddUp) {
  PlanSet plans = wide_plan_set();
  EngineConfig config = default_engine_config(plans, 4096, 2000);
  TestRun run(plans, config, checked());
  run.fixed_step_seconds = 0.01;
  for (RequestId id = 1; id <= 30; ++id)
    run.arrive(static_cast<Nanos>(id) * kMillisecond, id,
               shared_request(static_cast<int32_t>(id), 64, 100, 20));
  run.run();
  const EngineStats& s = run.core.stats();
  EXPECT_GT(s.preemptions, 0);
  EXPECT_EQ(s.finished[static_cast<size_t>(Finish::kLength)], 30);
  EXPECT_EQ(s.tokens_emitted, 30 * 20);
  for (const Histogram* h : {&s.queue_seconds, &s.prefill_seconds, &s.decode_seconds,
                             &s.ttft_seconds, &s.tpot_seconds, &s.e2e_seconds, &s.prompt_length})
    EXPECT_EQ(h->count(), 30u);
  EXPECT_EQ(s.itl_seconds.count(), 30u * 19);
  EXPECT_EQ(s.step_seconds.count(), static_cast<uint64_t>(s.steps));
  EXPECT_NEAR(s.step_tokens.sum(), static_cast<double>(s.tokens_scheduled), 1e-6);
  EXPECT_NEAR(s.ttft_seconds.sum(), s.queue_seconds.sum() + s.prefill_seconds.sum(), 1e-6);
  EXPECT_NEAR(s.e2e_seconds.sum(), s.ttft_seconds.sum() + s.decode_seconds.sum(), 1e-6);
  EXPECT_NEAR(s.step_seconds.mean(), 0.01, 1e-9);
  uint64_t counted = 0;
  for (uint64_t n : s.ttft_seconds.counts()) counted += n;
  EXPECT_EQ(counted, 30u);
}

// A machine whose steps take some time for decodes, and for each prompt token 0.1 ms and 10 ns per
// position before it.
struct SimulatedMachine {
  double decodes = 1e-3, token = 1e-4, position = 1e-8;
  bool roofline = false;  // weights are read meanwhile: a few tokens cost nothing

  double step(const TokenBudget::Prompts& p) const {
    double compute = token * static_cast<double>(p.tokens) + position * p.positions;
    return roofline ? std::max(decodes, compute) : decodes + compute;
  }
  // Computes a prompt in chunks next to 8 decodes, from position `start` to `end`; returns the
  // longest step in seconds.
  double prefill(TokenBudget& budget, int64_t start, int64_t end, int64_t decoding = 8) const {
    double longest = 0;
    while (start < end) {
      int64_t n = budget.fit({}, budget.limit(decoding, false), start);
      TokenBudget::Prompts chunk;
      chunk.add(std::min(end - start, std::max(n, TokenBudget::kLeastPrefill)), start);
      longest = std::max(longest, step(chunk));
      budget.observe(chunk, decoding, static_cast<Nanos>(step(chunk) * 1e9));
      start += chunk.tokens;
    }
    return longest;
  }
};

// However the number of decodes changes, prompts do not wait for long.
TEST(TokenBudget, NumbersOfDecodesThatAlternateDoNotStarvePrompts) {
  TokenBudget budget(2048, 10 * kMillisecond, 2.6);
  int waited = 0;
  for (int64_t step = 0; step < 100; ++step) {
    waited = budget.measure_pace(1 + step % 2) ? waited + 1 : 0;
    EXPECT_LE(waited, 2) << "step " << step;
  }
}

// No step exceeds the target by more than a tenth: at any depth, after jumps, after steps without
// decodes that may take longer. And the time is used.
TEST(TokenBudget, PredictsTheTimeOfChunks) {
  for (bool roofline : {false, true}) {
    SimulatedMachine machine;
    machine.roofline = roofline;
    TokenBudget budget(2048, 10 * kMillisecond);
    budget.observe({}, 8, kMillisecond);
    EXPECT_LT(machine.prefill(budget, 0, 16000), 0.011);
    EXPECT_GT(machine.prefill(budget, 0, 16000), 0.0085);
    for (auto [start, end] :
         {std::pair<int64_t, int64_t>{0, 500}, {15000, 16000}, {0, 300}, {8000, 12000}}) {
      EXPECT_LT(machine.prefill(budget, start, end), 0.011) << start;
      machine.prefill(budget, 0, 2000, 0);
      budget.observe({}, 8, kMillisecond);
    }
    EXPECT_NEAR(static_cast<double>(budget.fit({}, budget.limit(8, false), 0)), 92, 16);
  }
}

TEST(TokenBudget, Bounds) {
  TokenBudget none(2048, 0);
  EXPECT_EQ(none.fit({}, none.limit(8, false), 5000), 2048);
  TokenBudget budget(2048, 10 * kMillisecond);
  EXPECT_LE(budget.fit({}, budget.limit(8, false), 0), 32);  // the cost of a token is not known yet
  // Steps without decodes may take a second.
  TokenBudget::Prompts chunk;
  chunk.add(100, 0);
  for (int i = 0; i < 20; ++i) budget.observe(chunk, 0, 200 * kMillisecond);
  // 500, if deeper tokens did not cost more.
  EXPECT_NEAR(static_cast<double>(budget.fit({}, budget.limit(0, false), 0)), 430, 30);
  // If decodes alone miss the target, prompts get as much time as decodes.
  SimulatedMachine slow{30e-3, 1e-4, 0};
  TokenBudget half(2048, 10 * kMillisecond);
  half.observe({}, 8, 30 * kMillisecond);
  slow.prefill(half, 0, 5000);
  EXPECT_NEAR(static_cast<double>(half.fit({}, half.limit(8, false), 0)), 300, 30);
  // After a step that took much longer than predicted, the next ones are shorter.
  int64_t before = half.fit({}, half.limit(8, false), 0);
  chunk = {};
  chunk.add(before, 0);
  half.observe(chunk, 8, 180 * kMillisecond);
  EXPECT_LT(half.fit({}, half.limit(8, false), 0), before / 2);
}

// --- traces

std::vector<TraceRequest> conversations(size_t n) {
  std::vector<TraceRequest> trace;
  Rng rng(9);
  std::vector<std::vector<int64_t>> talks(20);
  int64_t next = 1;
  for (size_t i = 0; i < n; ++i) {
    auto& talk = talks[rng.below(talks.size())];
    if (talk.size() > 8) talk.clear();
    if (talk.empty()) talk.push_back(0);  // the system prompt
    for (uint64_t k = 1 + rng.below(2); k > 0; --k) talk.push_back(next++);
    TraceRequest r;
    r.arrival = static_cast<Nanos>(i) * 50 * kMillisecond;
    r.block_ids = talk;
    r.input = std::ssize(talk) * kTraceBlock;
    r.output = 5 + static_cast<int64_t>(rng.below(100));
    trace.push_back(r);
  }
  return trace;
}

ReplayOptions small_machine() {
  ReplayOptions o;
  o.machine.i8_ops = 2e13;
  o.machine.levels.back().bandwidth = 3e11;
  o.model.parameters = 5e8;
  o.model.kv_bytes_per_token = 16384;
  o.engine.max_num_seqs = 16;
  o.engine.max_batched_tokens = 1024;
  return o;
}

TEST(Replay, HitsComeNearTheIdealWithRoom) {
  auto trace = conversations(200);
  ReplayOptions o = small_machine();
  o.kv_tokens = 4000000;
  ReplayReport all = replay_trace(trace, o);
  EXPECT_EQ(all.failed, 0);
  EXPECT_GT(all.ideal_hit_rate, 0.5);
  EXPECT_NEAR(all.hit_rate, all.ideal_hit_rate, 0.01);
  o.kv_tokens = 20000;
  ReplayReport some = replay_trace(trace, o);
  EXPECT_LT(some.hit_rate, all.hit_rate);
  EXPECT_GT(some.stats.blocks_evicted, 0);
  o.engine.prefix_cache = false;
  ReplayReport none = replay_trace(trace, o);
  EXPECT_EQ(none.hit_rate, 0);
  EXPECT_GT(none.device_seconds, all.device_seconds);
  for (const ReplayReport* r : {&all, &some, &none}) EXPECT_EQ(r->output_tokens, all.output_tokens);
}

TEST(Replay, BaselinesAreWorse) {
  std::vector<TraceRequest> trace(150);  // short and long answers, all at time 0
  for (size_t i = 0; i < trace.size(); ++i) {
    trace[i].input = 300;
    trace[i].output = 5 + static_cast<int64_t>(i * 37 % 200);
  }
  ReplayOptions o = small_machine();
  o.engine.prefix_cache = false;
  ReplayReport continuous = replay_trace(trace, o);
  o.engine.batching = Batching::kStatic;
  ReplayReport fixed = replay_trace(trace, o);
  o.engine.batching = Batching::kPrefillFirst;
  ReplayReport prompts = replay_trace(trace, o);
  EXPECT_GT(fixed.seconds, 1.2 * continuous.seconds);
  EXPECT_GT(prompts.itl.max, 2 * continuous.itl.max);
  EXPECT_EQ(fixed.output_tokens, continuous.output_tokens);
  EXPECT_EQ(prompts.output_tokens, continuous.output_tokens);
}

}  // namespace
}  // namespace tokamak
