// Speculation on the null backend: the same answers with every drafter, and exact counts.
#include <algorithm>

#include "engine/draft/exit_drafter.h"
#include "engine/draft/lookahead_drafter.h"
#include "engine/draft/model_drafter.h"
#include "engine/draft/ngram_drafter.h"
#include "engine/draft/suffix_drafter.h"
#include "tests/engine/draft_tree.h"
#include "tests/engine/test_run.h"

namespace tokamak {
namespace {

// Tokens repeat by chance, so that lookups find something.
constexpr int64_t kSmallVocab = 7;

class EvenMask final : public TokenMask {
 public:
  void allow(int32_t, std::span<const int32_t> answer, std::span<const int32_t> drafts,
             std::span<uint32_t> bits) override {
    auto skip = static_cast<uint32_t>(answer.size() + drafts.size()) % kSmallVocab;
    bits[0] |= 0x7fu & ~(1u << skip);
  }
};

struct Mixed {
  RequestSpec spec;
  int32_t stop_position = -1;  // where the front end finds a stop string
};

std::map<RequestId, Mixed> mixed_requests(int count) {
  Rng rng(77);
  std::map<RequestId, Mixed> out;
  auto shared = random_prompt(rng, kSmallVocab, 60);
  for (RequestId id = 1; id <= static_cast<RequestId>(count); ++id) {
    Mixed& m = out[id];
    RequestSpec& spec = m.spec;
    spec.prompt.assign(shared.begin(), shared.begin() + static_cast<std::ptrdiff_t>(rng.below(60)));
    auto tail = random_prompt(rng, kSmallVocab, 1 + static_cast<int64_t>(rng.below(30)));
    spec.prompt.insert(spec.prompt.end(), tail.begin(), tail.end());
    spec.max_tokens = 1 + static_cast<int32_t>(rng.below(50));
    spec.n = rng.below(6) == 0 ? 3 : 1;
    SampleSpec sample;
    constexpr float kTemperatures[] = {0, 0, 0.7f, 1.0f, 1.5f};
    sample.temperature = kTemperatures[rng.below(5)];
    sample.seed = rng.next_u64();
    sample.top_logprobs = static_cast<int32_t>(rng.below(4)) - 1;
    if (rng.below(4) == 0) sample.repetition_penalty = 1.2f;
    if (rng.below(3) == 0) {
      spec.stop_ids = {3};
      sample.min_tokens = static_cast<int32_t>(rng.below(12));
      sample.banned_until_min = spec.stop_ids;
    }
    spec.sample = std::make_shared<const SampleSpec>(sample);
    if (rng.below(5) == 0) spec.mask = std::make_shared<EvenMask>();
    if (rng.below(5) == 0) m.stop_position = static_cast<int32_t>(rng.below(20));
    if (rng.below(8) == 0) spec.cache_salt = "salt";
    if (rng.below(8) == 0) spec.draft_tokens = static_cast<int32_t>(rng.below(3));
    spec.score_prompt = rng.below(10) == 0;
  }
  return out;
}

struct Outcome {
  std::map<std::pair<RequestId, int32_t>, Answer> answers;
  EngineStats stats;
};

Outcome run_mixed(const PlanSet& plans, EngineConfig config, int in_flight, Drafter* drafter,
                  const std::map<RequestId, Mixed>& requests) {
  config.max_in_flight = in_flight;
  TestRun run(plans, config, checked(in_flight), drafter);
  Nanos at = 0;
  for (const auto& [id, m] : requests) run.arrive(at += kMillisecond / 2, id, m.spec);
  run.on_advance = [&](Nanos now, std::span<const Event>, Actions& actions) {
    for (const Delta& d : actions.deltas()) {
      int32_t stop = requests.at(d.request).stop_position;
      int32_t end = d.position + static_cast<int32_t>(d.ids.size());
      if (stop >= d.position && stop < end)
        run.simulator.at(now, Event::stop_at(d.request, d.choice, stop));
    }
  };
  run.run();
  Outcome out{std::move(run.answers), run.core.stats()};
  for (auto& [key, a] : out.answers) {  // as the front end does: the answer ends at a stop string
    int32_t stop = requests.at(key.first).stop_position;
    if (stop < 0 || stop >= std::ssize(a.ids)) continue;
    a.ids.resize(static_cast<size_t>(stop));
    a.logprobs.resize(std::min(a.logprobs.size(), a.ids.size()));
    a.top.resize(std::min(a.top.size(), a.ids.size()));
    a.finish = Finish::kStop;
    a.stop_id = -1;
  }
  return out;
}

void expect_same(const Outcome& have, const Outcome& want) {
  ASSERT_EQ(have.answers.size(), want.answers.size());
  for (const auto& [key, a] : want.answers) {
    SCOPED_TRACE(fmt::format("request {} choice {}", key.first, key.second));
    const Answer& b = have.answers.at(key);
    ASSERT_EQ(b.ids, a.ids);
    ASSERT_EQ(b.finish, a.finish) << b.error;
    ASSERT_EQ(b.logprobs, a.logprobs);
    ASSERT_EQ(b.prompt_logprobs, a.prompt_logprobs);
    ASSERT_EQ(b.stop_id, a.stop_id);
    ASSERT_EQ(b.top.size(), a.top.size());
    for (size_t i = 0; i < a.top.size(); ++i)
      ASSERT_TRUE(std::equal(a.top[i].begin(), a.top[i].end(), b.top[i].begin(), b.top[i].end(),
                             [](const TokenLogprob& x, const TokenLogprob& y) {
                               return x.id == y.id && x.logprob == y.logprob;
                             }));
  }
}

struct Garbage final : Drafter {
  void propose(std::span<DraftRequest> requests) override {
    for (DraftRequest& r : requests)
      for (int32_t i = 0; i < r.most; ++i) r.tokens.push_back({(i * 5 + r.choice) % 7, i - 1});
  }
};

// The null model with this seed as a draft model; 0 is that of the target.
std::unique_ptr<Drafter> draft_model(const PlanSet& plans, uint64_t seed, int64_t kv_tokens) {
  EngineConfig config = default_engine_config(plans);
  config.blocks = kv_blocks_for(plans, kv_tokens);
  NullOptions options = checked();
  options.seed = seed;
  return std::make_unique<ModelDrafter>(plans, null_for(plans, config, options), config.blocks,
                                        config.max_num_seqs);
}

// 520 requests with and without each drafter, with room for all and with preemption.
TEST(Speculation, MixedRequestsGetTheSameAnswers) {
  PlanSet plans = fake_plan_set(kSmallVocab, 24, 512);
  auto requests = mixed_requests(520);
  EngineConfig config = default_engine_config(plans, 200, 4000);
  Outcome want = run_mixed(plans, config, 1, nullptr, requests);
  EXPECT_EQ(want.stats.drafts, 0);
  NullModel model = null_model(plans, checked());
  auto next = [model](const DraftRequest& r, int32_t n) {
    return model.continuation(r.ids, n, r.sample->get(), r.choice);
  };
  int64_t preemptions = 0, hits = 0;
  for (const char* name :
       {"garbage", "right", "tree", "ngram", "suffix", "model", "exit", "lookahead"})
    for (bool small : {false, true}) {
      bool adaptive = small;
      SCOPED_TRACE(fmt::format("{} adaptive and small {}", name, small));
      std::string_view kind = name;
      std::unique_ptr<Drafter> drafter = std::make_unique<Garbage>();
      if (kind == "right") drafter = std::make_unique<OracleDrafter>(next, kSmallVocab, 1 << 20);
      if (kind == "tree")
        drafter = std::make_unique<RandomDrafter>(
            [model](std::span<const int32_t> ids, int32_t n) { return model.continuation(ids, n); },
            kSmallVocab, true, 3);
      if (kind == "ngram") drafter = std::make_unique<NgramDrafter>(NgramOptions());
      if (kind == "suffix") drafter = std::make_unique<SuffixDrafter>(SuffixOptions());
      if (kind == "model") drafter = draft_model(plans, 0, small ? 160 : 4000);
      if (kind == "lookahead") drafter = std::make_unique<LookaheadDrafter>(LookaheadOptions());
      if (kind == "exit") drafter = std::make_unique<ExitDrafter>();
      EngineConfig c = config;
      c.exits = kind == "exit";
      c.draft_tokens = 5;
      c.adaptive_drafts = adaptive;
      c.tree_mask = kind == "tree";
      if (small) c.blocks = kv_blocks_for(plans, 240);
      Outcome have = run_mixed(plans, c, small ? 2 : 1, drafter.get(), requests);
      expect_same(have, want);
      if (auto* draft = dynamic_cast<ModelDrafter*>(drafter.get())) {
        EXPECT_TRUE(draft->all_free());
      }
      EXPECT_GT(have.stats.draft_accepted, adaptive ? 0 : 100);
      EXPECT_LE(have.stats.draft_accepted, have.stats.draft_tokens);
      int64_t drafted = 0, accepted = 0, at = 0;
      for (const auto& [key, a] : have.answers) {
        drafted += a.drafted;
        accepted += a.accepted;
        EXPECT_TRUE(requests.at(key.first).spec.draft_tokens != 0 || a.drafted == 0);
      }
      for (int64_t n : have.stats.draft_accepted_at) at += n;
      EXPECT_EQ(at, have.stats.draft_accepted);
      EXPECT_LE(drafted, have.stats.draft_tokens);
      EXPECT_LE(accepted, have.stats.draft_accepted);
      preemptions += have.stats.preemptions;
      hits += have.stats.prefix_hits;
    }
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(hits, 0);
}

TEST(Speculation, CountsAreExact) {
  PlanSet plans = fake_plan_set();
  EngineConfig config = default_engine_config(plans);
  config.draft_tokens = 3;
  NullModel model = null_model(plans, checked());
  auto next = [model](const DraftRequest& r, int32_t n) { return model.continuation(r.ids, n); };
  struct Case {
    int64_t wrong_every;
    int32_t max_tokens;
    int64_t steps, drafts, tokens, accepted;
    std::vector<int64_t> at;
  };
  // The prompt has four tokens, 0 to 3, and its step chooses token 4.
  const Case cases[] = {
      {1000, 9, 3, 2, 6, 6, {2, 2, 2}},  // tokens 5 6 7 + 8, 9 10 11 + 12
      {1000, 8, 3, 2, 5, 5, {2, 2, 1}},  // the last proposal is cut off at the end
      {1, 5, 5, 3, 6, 0, {0, 0, 0}},     // 3 + 2 + 1 drafts, all wrong; none for the last token
      // Drafts 5 6 7: 6 is wrong. 7 8 9: 9 is wrong. 10: right, and 11 is the last token.
      {3, 8, 4, 3, 7, 4, {3, 1, 0}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(fmt::format("wrong {} of {}", c.wrong_every, c.max_tokens));
    OracleDrafter drafter(next, plans.vocab, c.wrong_every);
    TestRun run(plans, config, checked(), &drafter);
    run.arrive(0, 1, request({1, 2, 3, 4}, c.max_tokens));
    run.run();
    const EngineStats& s = run.core.stats();
    const Answer& a = run.answers[{1, 0}];
    EXPECT_EQ(a.ids, run.model.continuation(std::vector<int32_t>{1, 2, 3, 4}, c.max_tokens));
    EXPECT_EQ(s.steps, c.steps);
    EXPECT_EQ(s.drafts, c.drafts);
    EXPECT_EQ(s.draft_tokens, c.tokens);
    EXPECT_EQ(s.draft_accepted, c.accepted);
    EXPECT_EQ(a.drafted, c.tokens);
    EXPECT_EQ(a.accepted, c.accepted);
    for (size_t i = 0; i < c.at.size(); ++i) EXPECT_EQ(s.draft_accepted_at[i], c.at[i]) << i;
  }
}

// A draft model is right wherever it agrees, also when tokens are sampled.
TEST(Speculation, ADraftModelSharesTheNoise) {
  PlanSet plans = fake_plan_set();
  EngineConfig config = default_engine_config(plans);
  config.draft_tokens = 4;
  for (uint64_t seed : {0, 1}) {
    auto drafter = draft_model(plans, seed, 2000);
    TestRun run(plans, config, checked(), drafter.get());
    Rng rng(5);
    for (RequestId id = 1; id <= 6; ++id) {
      RequestSpec spec =
          request(random_prompt(rng, plans.vocab, 20 * static_cast<int64_t>(id)), 41);
      SampleSpec sample;
      sample.temperature = id % 2 == 0 ? 0.0f : 1.0f;
      sample.seed = id;
      spec.sample = std::make_shared<const SampleSpec>(sample);
      spec.n = id == 3 ? 2 : 1;
      run.arrive(static_cast<Nanos>(id) * kMillisecond, id, spec);
    }
    run.run();
    const EngineStats& s = run.core.stats();
    EXPECT_GT(s.draft_tokens, 100);
    if (seed == 0) {
      EXPECT_EQ(s.draft_accepted, s.draft_tokens);
    } else {
      EXPECT_LT(s.draft_accepted, s.draft_tokens / 10);
    }
    EXPECT_TRUE(dynamic_cast<ModelDrafter&>(*drafter).all_free());
  }
}

// Counts the phases of steps.
class PhaseCounter final : public Executable {
 public:
  PhaseCounter(std::unique_ptr<Executable> of, std::vector<size_t>& counts)
      : of_(std::move(of)), counts_(counts) {}
  Ticket submit(const StepInputs& step) override {
    counts_.push_back(step.phases.size());
    return of_->submit(step);
  }
  void collect(Ticket ticket, StepResult& out) override { of_->collect(ticket, out); }
  const MemoryLedger& memory() const override { return of_->memory(); }

 private:
  std::unique_ptr<Executable> of_;
  std::vector<size_t>& counts_;
};

// All tokens of a proposal are drafted in one step: each phase reads what the phase before it
// chose.
TEST(Speculation, AProposalIsOneStepOfSeveralPhases) {
  PlanSet plans = fake_plan_set();
  EngineConfig config = default_engine_config(plans);
  config.draft_tokens = 4;
  config.blocks = kv_blocks_for(plans, 1000);
  std::vector<size_t> phases;
  ModelDrafter drafter(plans,
                       std::make_unique<PhaseCounter>(null_for(plans, config, checked()), phases),
                       config.blocks, config.max_num_seqs);
  TestRun run(plans, config, checked(), &drafter);
  run.arrive(0, 1, request({1, 2, 3}, 1 + 2 * 5));
  run.run();
  EXPECT_EQ((run.answers[{1, 0}].ids), run.model.continuation(std::vector<int32_t>{1, 2, 3}, 11));
  EXPECT_EQ(run.core.stats().draft_accepted, 8);
  EXPECT_EQ(phases, (std::vector<size_t>{4, 4}));
}

// A sequence whose drafts have no finite logits is not drafted for; the others are.
TEST(Speculation, ADraftThatIsNotFiniteEndsItsProposalOnly) {
  PlanSet plans = fake_plan_set();
  EngineConfig config = default_engine_config(plans);
  config.draft_tokens = 4;
  config.blocks = kv_blocks_for(plans, 1000);
  NullOptions options = checked();
  options.nan_token = 7;
  ModelDrafter drafter(plans, null_for(plans, config, options), config.blocks, config.max_num_seqs);
  TestRun run(plans, config, checked(), &drafter);
  std::vector<int32_t> good = {1, 2, 3}, bad = {1, 2, 7};
  run.arrive(0, 1, request(good, 21));
  run.arrive(0, 2, request(bad, 21));
  run.run();
  EXPECT_EQ((run.answers[{1, 0}].ids), run.model.continuation(good, 21));
  EXPECT_EQ((run.answers[{2, 0}].ids), run.model.continuation(bad, 21));
  EXPECT_GE((run.answers[{1, 0}].accepted), 12);
}

TEST(Speculation, AFailingDraftModelIsNotUsed) {
  PlanSet plans = fake_plan_set();
  EngineConfig config = default_engine_config(plans);
  config.draft_tokens = 4;
  config.blocks = kv_blocks_for(plans, 1000);
  NullOptions broken = checked();
  broken.fail_every = 1;
  ModelDrafter drafter(plans, null_for(plans, config, broken), config.blocks, config.max_num_seqs);
  TestRun run(plans, config, checked(), &drafter);
  run.arrive(0, 1, request({1, 2, 3}, 20));
  run.run();
  EXPECT_EQ((run.answers[{1, 0}].ids), run.model.continuation(std::vector<int32_t>{1, 2, 3}, 20));
  EXPECT_EQ(run.core.stats().drafts, 0);
  EXPECT_EQ(drafter.steps(), 3);
}

TEST(Speculation, ARequestMayLimitItsDrafts) {
  PlanSet plans = fake_plan_set();
  EngineConfig config = default_engine_config(plans);
  config.draft_tokens = 6;
  NullModel model = null_model(plans, checked());
  OracleDrafter drafter(
      [model](const DraftRequest& r, int32_t n) { return model.continuation(r.ids, n); },
      plans.vocab, 1 << 20);
  for (int32_t limit : {-1, 0, 2, 100}) {
    TestRun run(plans, config, checked(), &drafter);
    RequestSpec spec = request({1, 2}, 40);
    spec.draft_tokens = limit;
    size_t most = 0;
    run.on_advance = [&](Nanos, std::span<const Event>, Actions& actions) {
      for (const SubmitAction& s : actions.submits) most = std::max(most, s.inputs->ids.size());
    };
    run.arrive(0, 1, spec);
    run.run();
    EXPECT_EQ(most, limit == 0 ? 2u : limit == 2 ? 3u : 7u) << limit;
  }
  RequestSpec wrong = request({1}, 4);
  wrong.draft_tokens = -2;
  EXPECT_THROW(check_request(config, wrong), Error);
  wrong.draft_tokens = 2;
  wrong.beams = 2;
  EXPECT_THROW(check_request(config, wrong), Error);
  wrong.draft_tokens = -1;
  check_request(config, wrong);  // beams are not drafted for
}

// Drafts never preempt a sequence and never take the row of another one.
TEST(Speculation, EverySequenceDecodesInEveryStep) {
  PlanSet plans = fake_plan_set();
  EngineConfig config = default_engine_config(plans);
  config.max_num_seqs = 8;
  config.max_out_rows = 12;
  config.draft_tokens = 6;
  NullModel model = null_model(plans, checked());
  OracleDrafter drafter(
      [model](const DraftRequest& r, int32_t n) { return model.continuation(r.ids, n); },
      plans.vocab, 1);
  TestRun run(plans, config, checked(), &drafter);
  for (RequestId id = 1; id <= 8; ++id) run.arrive(0, id, request({static_cast<int32_t>(id)}, 20));
  int64_t rows = 0, full = 0;
  run.on_advance = [&](Nanos, std::span<const Event>, Actions& actions) {
    for (const SubmitAction& s : actions.submits) {
      rows += std::ssize(s.inputs->out_rows);
      full += s.inputs->sequences() == 8;
      EXPECT_LE(s.inputs->out_rows.size(), 12u);
    }
  };
  run.run();
  EXPECT_GE(full, 19);
  EXPECT_GT(rows, 8 * 20);
}

}  // namespace
}  // namespace tokamak
