// Drafts only where they pay, in virtual time.
#include <algorithm>

#include "engine/draft/lookahead_drafter.h"
#include "engine/draft/ngram_drafter.h"
#include "engine/draft/suffix_drafter.h"
#include "tests/engine/draft_tree.h"
#include "tests/engine/test_run.h"

namespace tokamak {
namespace {

struct Paced {
  double seconds;
  EngineStats stats;
};

NullOptions paced_options() {
  NullOptions options = checked();
  options.shadow = false;  // is slow, and other tests check the KV
  return options;
}

// `sequences` answers of 200 tokens; a step of n rows takes 1 + row_cost * (n - 1) milliseconds.
Paced run_paced(Drafter* drafter, bool adaptive, int sequences, double row_cost) {
  PlanSet plans = fake_plan_set();
  EngineConfig config = default_engine_config(plans, 0, 8000);
  config.draft_tokens = 6;
  config.max_out_rows = 64;
  config.adaptive_drafts = adaptive;
  TestRun run(plans, config, paced_options(), drafter);
  run.cost = [row_cost](const StepInputs& in) {
    return 1e-3 * (1 + row_cost * static_cast<double>(in.tokens() - 1));
  };
  for (RequestId id = 1; id <= static_cast<RequestId>(sequences); ++id)
    run.arrive(0, id, request({static_cast<int32_t>(id)}, 200));
  run.run();
  return {seconds(run.simulator.now()), run.core.stats()};
}

std::unique_ptr<Drafter> oracle(int64_t wrong_every) {
  NullModel model = null_model(fake_plan_set(), paced_options());
  return std::make_unique<OracleDrafter>(
      [model](const DraftRequest& r, int32_t n) { return model.continuation(r.ids, n); }, 1000,
      wrong_every);
}

TEST(AdaptiveDrafts, NeverMuchSlowerThanWithout) {
  for (double row_cost : {0.02, 0.3, 1.0})
    for (int sequences : {1, 4, 12})
      for (int64_t wrong_every : {1, 2, 5, 1 << 20}) {
        SCOPED_TRACE(fmt::format("row {} sequences {} wrong {}", row_cost, sequences, wrong_every));
        double plain = run_paced(nullptr, false, sequences, row_cost).seconds;
        auto drafter = oracle(wrong_every);
        Paced paced = run_paced(drafter.get(), true, sequences, row_cost);
        EXPECT_LE(0.97 * paced.seconds, plain);
      }
}

// Texts that do not repeat, with the drafters that users choose: a first answer of a server, which
// still has to learn that drafts do not pay.
TEST(AdaptiveDrafts, LookupsOnTextThatDoesNotRepeat) {
  for (const char* name : {"ngram", "suffix", "lookahead"})
    for (double row_cost : {0.02, 0.1, 0.3, 1.0})
      for (int sequences : {1, 4, 12}) {
        SCOPED_TRACE(fmt::format("{} row {} sequences {}", name, row_cost, sequences));
        std::string_view kind = name;
        std::unique_ptr<Drafter> drafter = std::make_unique<NgramDrafter>(NgramOptions());
        if (kind == "suffix") drafter = std::make_unique<SuffixDrafter>(SuffixOptions());
        if (kind == "lookahead") drafter = std::make_unique<LookaheadDrafter>(LookaheadOptions());
        double plain = run_paced(nullptr, false, sequences, row_cost).seconds;
        Paced paced = run_paced(drafter.get(), true, sequences, row_cost);
        EXPECT_LE(0.97 * paced.seconds, plain);
        if (kind == "lookahead") {  // the others have nothing to propose
          EXPECT_GT(paced.stats.draft_tokens, 0);
          EXPECT_GT(paced.stats.draft_fallbacks, 0);
          EXPECT_LT(paced.stats.draft_tokens, 20 + 8 * sequences);
        }
      }
}

TEST(AdaptiveDrafts, UsesWhatPays) {
  auto right = oracle(1 << 20), wrong = oracle(1);
  double plain = run_paced(nullptr, false, 1, 0.05).seconds;
  EXPECT_LT(run_paced(right.get(), true, 1, 0.05).seconds, 0.3 * plain);
  // A batch in which every row costs as much as the first one.
  Paced linear = run_paced(right.get(), true, 12, 1.0);
  EXPECT_LT(linear.stats.draft_tokens, 200);
  EXPECT_GT(linear.stats.draft_fallbacks, 0);
  // Texts that cannot be guessed.
  Paced useless = run_paced(wrong.get(), true, 1, 0.3),
        forced = run_paced(wrong.get(), false, 1, 0.3);
  EXPECT_LT(useless.stats.draft_tokens, 30);
  EXPECT_GT(forced.stats.draft_tokens, 1000);
  EXPECT_EQ(useless.stats.draft_accepted, 0);
  EXPECT_GT(useless.stats.draft_fallbacks, 0);
}

// Proposals become stronger and are always right: each strength that is new need not be learnt.
TEST(AdaptiveDrafts, StrongerProposalsAreTrustedAsWeakerOnes) {
  class Stronger final : public Drafter {
   public:
    Stronger(std::unique_ptr<Drafter> drafter, int64_t each)
        : drafter_(std::move(drafter)), each_(each) {}
    void propose(std::span<DraftRequest> requests) override {
      drafter_->propose(requests);
      for (DraftRequest& r : requests)
        r.strength = static_cast<int32_t>(std::min<int64_t>(count_++ / each_, strengths() - 1));
    }
    int32_t strengths() const override { return kMostDraftStrengths; }

   private:
    std::unique_ptr<Drafter> drafter_;
    int64_t each_, count_ = 0;
  };
  Stronger changing(oracle(1 << 20), 8), same(oracle(1 << 20), 1 << 20);
  double learnt_once = run_paced(&same, true, 1, 0.6).seconds;
  EXPECT_LT(run_paced(&changing, true, 1, 0.6).seconds, 1.05 * learnt_once);
}

// The token that follows is the first candidate half of the time, else the second.
class TwoCandidates final : public Drafter {
 public:
  TwoCandidates() : model_(null_model(fake_plan_set(), paced_options())) {}
  void propose(std::span<DraftRequest> requests) override {
    for (DraftRequest& r : requests) {
      int32_t parent = -1, other = -1;
      for (int32_t id : model_.continuation(r.ids, r.most)) {
        bool first = (std::ssize(r.ids) + ++other) % 2 == 0;
        int32_t wrong = (id + 1) % 1000;
        auto at = static_cast<int32_t>(r.tokens.size());
        r.tokens.push_back({first ? id : wrong, parent});
        if (r.branches > 1) r.tokens.push_back({first ? wrong : id, parent});
        if (r.branches == 1 && !first) break;
        parent = first ? at : at + 1;
      }
    }
  }

 private:
  NullModel model_;
};

TEST(AdaptiveDrafts, BranchesWhereTheyPay) {
  auto run_trees = [](int32_t branches, double row_cost) {
    PlanSet plans = fake_plan_set();
    EngineConfig config = default_engine_config(plans, 0, 8000);
    config.draft_tokens = 8;
    config.draft_branches = branches;
    config.tree_mask = true;
    config.max_out_rows = 64;
    config.adaptive_drafts = true;
    TwoCandidates drafter;
    TestRun run(plans, config, paced_options(), &drafter);
    run.cost = [row_cost](const StepInputs& in) {
      return 1e-3 * (1 + row_cost * static_cast<double>(in.tokens() - 1));
    };
    run.arrive(0, 1, request({1}, 200));
    run.run();
    return Paced{seconds(run.simulator.now()), run.core.stats()};
  };
  Paced chain = run_trees(1, 0.02), branches = run_trees(2, 0.02);
  EXPECT_LT(branches.seconds, 0.75 * chain.seconds) << "rows are nearly free";
  for (double row_cost : {0.3, 1.0}) {
    double plain = run_paced(nullptr, false, 1, row_cost).seconds;
    EXPECT_LE(0.97 * run_trees(2, row_cost).seconds, plain) << row_cost;
  }
}

TEST(AdaptiveDrafts, NotInLargeBatches) {
  PlanSet plans = fake_plan_set();
  EngineConfig config = default_engine_config(plans, 0, 8000);
  config.draft_tokens = 4;
  config.draft_max_sequences = 3;
  for (int sequences : {3, 4}) {
    auto drafter = oracle(1 << 20);
    TestRun run(plans, config, paced_options(), drafter.get());
    for (RequestId id = 1; id <= static_cast<RequestId>(sequences); ++id)
      run.arrive(0, id, request({static_cast<int32_t>(id)}, 30));
    run.run();
    EXPECT_EQ(run.core.stats().drafts > 0, sequences == 3);
  }
}

}  // namespace
}  // namespace tokamak
