// Random schedules: whatever the engine does with a request, its tokens are those the null model
// predicts, and all blocks are released. The null backend checks every step against what was really
// written.
#include <algorithm>
#include <cstdlib>

#include "tests/engine/draft_tree.h"
#include "tests/engine/test_run.h"

namespace tokamak {
namespace {

RandomDrafter drafter_for(const NullModel& model, bool trees, uint64_t seed) {
  return RandomDrafter(
      [model](std::span<const int32_t> ids, int32_t n) { return model.continuation(ids, n); },
      model.vocab(), trees, seed);
}

// A hash decides which tokens may follow which.
class HashMask final : public TokenMask {
 public:
  explicit HashMask(int64_t vocab) : vocab_(vocab) {}
  static bool allowed(std::span<const int32_t> answer, int32_t id) {
    uint64_t last = answer.empty() ? 7 : static_cast<uint64_t>(answer.back());
    return null_mix(last + 31 * answer.size(), static_cast<uint64_t>(id)) % 3 == 0;
  }
  void allow(int32_t, std::span<const int32_t> answer, std::span<const int32_t> drafts,
             std::span<uint32_t> bits) override {
    std::vector<int32_t> text(answer.begin(), answer.end());
    text.insert(text.end(), drafts.begin(), drafts.end());
    for (int32_t id = 0; id < vocab_; ++id)
      if (allowed(text, id)) bits[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  }

 private:
  int64_t vocab_;
};

struct Wanted {
  RequestSpec spec;
  int32_t stop_position = -1;  // sent by the front end
  bool cancelled = false, may_time_out = false;
};

struct Setup {
  EngineConfig config;
  NullOptions options;
  bool drafts = false;
};

Setup random_setup(const PlanSet& plans, int in_flight, Rng& rng) {
  Setup s;
  s.config = default_engine_config(plans, 200, 1);
  s.config.max_num_seqs = 1 + static_cast<int64_t>(rng.below(12));
  s.config.max_batched_tokens =
      s.config.max_num_seqs +
      static_cast<int64_t>(rng.below(3) == 0 ? rng.below(4) : rng.below(50));
  s.config.max_out_rows = s.config.max_num_seqs + static_cast<int64_t>(rng.below(8));
  s.config.max_in_flight = in_flight;
  s.config.max_step_failures = 1000;
  // From "one long sequence just fits" to plenty.
  s.config.blocks = kv_blocks_for(plans, 200 + static_cast<int64_t>(rng.below(600)));
  s.options.seed = rng.next_u64();
  s.options.shadow = true;
  s.options.max_in_flight = in_flight;
  if (rng.below(3) == 0) s.options.fail_every = 5 + static_cast<int64_t>(rng.below(20));
  if (rng.below(4) == 0) s.options.fail_submit_every = 7 + static_cast<int64_t>(rng.below(20));
  s.config.policy = static_cast<SchedPolicy>(rng.below(4));
  s.config.kv_policy = static_cast<KvPolicy>(rng.below(2));
  if (rng.below(3) == 0) s.config.batching = static_cast<Batching>(rng.below(3));
  s.config.prefix_cache = rng.below(4) > 0;
  s.config.chunked_prefill = rng.below(4) > 0;
  s.config.starvation_bound = static_cast<int>(rng.below(4));
  if (rng.below(3) == 0) s.config.tpot_target = 1 + static_cast<Nanos>(rng.below(2000000));
  if (s.config.tpot_target % 2 == 1) s.config.stream_pace = 1.5;
  s.drafts = rng.below(2) == 0;
  s.config.draft_tokens = s.drafts ? 1 + static_cast<int32_t>(rng.below(7)) : 0;
  s.config.tree_mask = rng.below(2) == 0;
  return s;
}

// Prompts share prefixes of whole units and of parts of units, and some are equal.
std::vector<int32_t> related_prompt(const PlanSet& plans, Rng& rng) {
  Rng same(rng.below(3));
  auto prompt = random_prompt(same, plans.vocab, 1 + static_cast<int64_t>(rng.below(100)));
  if (rng.below(4) == 0) return prompt;
  auto tail = random_prompt(rng, plans.vocab, static_cast<int64_t>(rng.below(prompt.size() + 1)));
  std::copy(tail.begin(), tail.end(), prompt.end() - std::ssize(tail));
  return prompt;
}

Wanted random_request(const PlanSet& plans, Rng& rng) {
  Wanted w;
  RequestSpec& spec = w.spec;
  spec.prompt = related_prompt(plans, rng);
  spec.priority = static_cast<int32_t>(rng.below(3));
  spec.tenant = std::string(1, static_cast<char>('a' + rng.below(3)));
  if (rng.below(6) == 0) spec.cache_salt = "salt";
  spec.cache_priority = static_cast<int32_t>(rng.below(2));
  if (rng.below(2) == 0) spec.cache_ttl = static_cast<Nanos>(rng.below(20000000));
  spec.max_tokens = static_cast<int32_t>(rng.below(60));
  spec.streamed = spec.max_tokens % 2 == 0;
  spec.n = rng.below(5) == 0 ? 1 + static_cast<int32_t>(rng.below(3)) : 1;
  spec.score_prompt = spec.max_tokens == 0 || rng.below(6) == 0;
  spec.score_from = 1 + static_cast<int32_t>(rng.below(spec.prompt.size() + 1));
  SampleSpec sample;
  sample.temperature = rng.below(3) > 0 ? 0.0f : 1.0f;
  sample.seed = rng.next_u64();
  sample.top_logprobs = static_cast<int32_t>(rng.below(4)) - 1;
  sample.repetition_penalty = rng.below(4) == 0 ? 1.1f : 1.0f;
  if (rng.below(3) > 0) {
    for (int i = 0; i < 20; ++i) spec.stop_ids.push_back(static_cast<int32_t>(rng.below(1000)));
    sample.min_tokens = static_cast<int32_t>(rng.below(20));
    sample.banned_until_min = spec.stop_ids;
  }
  if (rng.below(8) > 0) spec.sample = std::make_shared<const SampleSpec>(sample);
  if (rng.below(5) == 0) spec.mask = std::make_shared<HashMask>(plans.vocab);
  return w;
}

// The null backend takes the first allowed token from the chosen one on.
std::vector<int32_t> masked_answer(const NullModel& model, const RequestSpec& spec,
                                   int32_t choice) {
  std::vector<int32_t> out;
  uint64_t chain = 0;
  int32_t position = 0;
  for (int32_t id : spec.prompt) chain = model.extend(chain, id, position++);
  SampleRow row;
  row.spec = spec.sample;
  row.choice = choice;
  while (std::ssize(out) < spec.max_tokens) {
    row.generated = static_cast<int32_t>(out.size());
    int32_t id = model.choose(chain, row);
    while (!HashMask::allowed(out, id)) id = static_cast<int32_t>((id + 1) % model.vocab());
    out.push_back(id);
    chain = model.extend(chain, id, position++);
  }
  return out;
}

// The answer of a choice that nothing interrupts; `finish` is how it ends.
std::vector<int32_t> predicted(const NullModel& model, const RequestSpec& spec, int32_t choice,
                               Finish& finish) {
  auto ids = spec.mask
                 ? masked_answer(model, spec, choice)
                 : model.continuation(spec.prompt, spec.max_tokens, spec.sample.get(), choice);
  finish = Finish::kLength;
  int32_t min_tokens = spec.sample ? spec.sample->min_tokens : 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    bool stop =
        std::find(spec.stop_ids.begin(), spec.stop_ids.end(), ids[i]) != spec.stop_ids.end();
    if (!stop || static_cast<int32_t>(i) < min_tokens) continue;
    finish = Finish::kStop;
    ids.resize(i);
    break;
  }
  return ids;
}

void check_scores(const NullModel& model, const RequestSpec& spec, const Answer& answer) {
  size_t scored = 0;
  for (auto p = static_cast<size_t>(spec.score_from); p < spec.prompt.size(); ++p, ++scored) {
    ASSERT_LT(scored, answer.prompt_logprobs.size());
    EXPECT_EQ(answer.prompt_logprobs[scored], model.score(spec.prompt, static_cast<int32_t>(p)));
  }
  EXPECT_EQ(answer.prompt_logprobs.size(), scored);
}

void check_answer(const NullModel& model, const Wanted& w, int32_t choice, const Answer& answer) {
  Finish finish = Finish::kNone;
  auto ids = predicted(model, w.spec, choice, finish);
  ASSERT_LE(answer.ids.size(), ids.size());
  EXPECT_TRUE(std::equal(answer.ids.begin(), answer.ids.end(), ids.begin()));
  if (w.spec.sample && w.spec.sample->top_logprobs >= 0) {
    EXPECT_EQ(answer.logprobs.size(), answer.ids.size());
    auto top = static_cast<size_t>(w.spec.sample->top_logprobs);
    for (const auto& alternatives : answer.top) EXPECT_EQ(alternatives.size(), top);
  }
  bool interrupted = answer.finish == Finish::kCancelled || answer.finish == Finish::kTimeout;
  if (interrupted) {
    EXPECT_TRUE(answer.finish == Finish::kCancelled ? w.cancelled : w.may_time_out);
    return;
  }
  if (answer.finish == Finish::kStop && w.stop_position >= 0 && choice == 0 &&
      answer.end == w.stop_position) {
    return;
  }
  EXPECT_EQ(answer.finish, finish) << answer.error;
  EXPECT_EQ(answer.ids.size(), ids.size());
  if (choice == 0 && w.spec.score_prompt) check_scores(model, w.spec, answer);
}

// The front end finds a stop string at a token some time after it was sent.
void send_stops(TestRun& run, const std::map<RequestId, Wanted>& wanted, const Actions& actions,
                Nanos now, Rng& rng) {
  for (const Delta& d : actions.deltas()) {
    const Wanted& w = wanted.at(d.request);
    int32_t end = d.position + static_cast<int32_t>(d.ids.size());
    if (w.stop_position < d.position || w.stop_position >= end || d.choice != 0) continue;
    run.simulator.at(now + static_cast<Nanos>(rng.below(3000000)),
                     Event::stop_at(d.request, 0, w.stop_position));
  }
}

EngineStats totals;       // of all runs: every kind of event has occurred
int64_t moved_slots = 0;  // by trees of drafts

// A state per sequence beside the groups of the fake plan.
void add_recurrent_state(PlanSet& plans) {
  plans.groups.push_back({"recurrent", 0, kSequenceBlock});
  plans.states.push_back({"ssm.0", 2, true, {{"s", DType::kF32, {4}, 16}}});
}

void limit_states(Setup& s, Rng& rng) {
  s.drafts = false;
  s.config.draft_tokens = 0;
  // After a failure a sequence starts from nothing: it must get further than the last time.
  s.config.max_batched_tokens = 64;
  s.options.fail_every *= 12;
  s.options.fail_submit_every *= 12;
  s.config.blocks.back() = 1 + static_cast<int64_t>(rng.below(8));
}

void one_run(uint64_t seed, int in_flight, bool recurrent = false) {
  SCOPED_TRACE(fmt::format("seed {} in_flight {}", seed, in_flight));
  Rng rng(seed);
  PlanSet plans = fake_plan_set(1000, 1 + static_cast<int64_t>(rng.below(40)), 512);
  if (recurrent) add_recurrent_state(plans);
  Setup s = random_setup(plans, in_flight, rng);
  if (recurrent) limit_states(s, rng);
  RandomDrafter drafter = drafter_for(null_model(plans, s.options), rng.below(3) > 0, seed + 1);
  RandomDrafter again = drafter;
  TestRun run(plans, s.config, s.options, s.drafts ? &drafter : nullptr);
  run.keep_actions = true;
  std::map<RequestId, Wanted> wanted;
  Nanos at = 0;
  for (RequestId id = 1; id <= 40; ++id) {
    Wanted w = random_request(plans, rng);
    at += static_cast<Nanos>(rng.below(2) * rng.below(4000000));
    if (rng.below(6) == 0) w.stop_position = static_cast<int32_t>(rng.below(30));
    if (rng.below(8) == 0) {
      w.spec.deadline = at + static_cast<Nanos>(rng.below(30000000));
      w.may_time_out = true;
    }
    if (rng.below(12) == 0) {
      w.spec.queue_deadline = at + static_cast<Nanos>(rng.below(10000000));
      w.may_time_out = true;
    }
    if (rng.below(6) == 0) {
      w.cancelled = true;
      run.simulator.at(at + static_cast<Nanos>(rng.below(20000000)), Event::cancel(id));
    }
    run.arrive(at, id, w.spec);
    wanted[id] = std::move(w);
  }
  run.on_advance = [&](Nanos now, std::span<const Event>, Actions& actions) {
    send_stops(run, wanted, actions, now, rng);
    for (const SubmitAction& submit : actions.submits)
      moved_slots += std::ssize(submit.inputs->moves);
  };
  run.run();
  for (const auto& [id, w] : wanted)
    for (int32_t c = 0; c < w.spec.n; ++c) check_answer(run.model, w, c, run.answers[{id, c}]);

  // The recorded events give the same actions again.
  EngineCore core(s.config, s.drafts ? &again : nullptr);
  EXPECT_TRUE(run.log.replay(core) == run.actions) << "the replay differs";
  const EngineStats& stats = run.core.stats();
  totals.prefix_hits += stats.prefix_hits;
  totals.blocks_copied += stats.blocks_copied;
  totals.blocks_evicted += stats.blocks_evicted;
  totals.preemptions += stats.preemptions;
  totals.failed_steps += stats.failed_steps;
  if (s.config.kv_policy == KvPolicy::kGuaranteedNoEvict &&
      s.config.policy != SchedPolicy::kPriority) {
    EXPECT_EQ(stats.preemptions, 0);
  }
}

class RandomSchedules : public testing::TestWithParam<int> {};

TEST_P(RandomSchedules, TokensAreAsPredicted) {
  // TOKAMAK_SEEDS=500 for longer runs.
  const char* seeds = std::getenv("TOKAMAK_SEEDS");
  uint64_t last = seeds == nullptr ? 20 : std::strtoull(seeds, nullptr, 10);
  for (uint64_t seed = 1; seed <= last; ++seed) {
    one_run(seed, GetParam());
    if (HasFailure()) return;
  }
  for (int64_t n : {totals.prefix_hits, totals.blocks_copied, totals.blocks_evicted,
                    totals.preemptions, totals.failed_steps, moved_slots})
    EXPECT_GT(n, 0);
}

// The null backend's state of a sequence is the hash of its tokens so far.
TEST_P(RandomSchedules, StatesPerSequenceAreThoseOfTheirTokens) {
  totals = {};
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    one_run(seed, GetParam(), true);
    if (HasFailure()) return;
  }
  EXPECT_EQ(totals.prefix_hits + totals.blocks_copied, 0);
  EXPECT_GT(totals.preemptions, 0);
  EXPECT_GT(totals.failed_steps, 0);
}

INSTANTIATE_TEST_SUITE_P(InFlight, RandomSchedules, testing::Values(1, 2, 4));

}  // namespace
}  // namespace tokamak
