// Drafts and token masks through the whole engine on backends that compute: the same tokens with
// and without.
#include "engine/draft/lookahead_drafter.h"
#include "engine/draft/ngram_drafter.h"
#include "engine/draft/suffix_drafter.h"
#include "tests/engine/backend_run.h"
#include "tests/engine/draft_tree.h"

namespace tokamak {
namespace {

BackendOptions two_threads() {
  BackendOptions options;
  options.threads = 2;
  return options;
}

class Drafts : public testing::TestWithParam<const char*> {
 protected:
  // Knows the answers of an earlier run: the texts that begin with the ids it is given go on as
  // those did.
  RandomDrafter drafter(const std::map<RequestId, RequestSpec>& all, const Answers& answers,
                        bool trees) {
    auto texts = std::make_shared<std::vector<std::vector<int32_t>>>();
    for (const auto& [key, answer] : answers) {
      std::vector<int32_t>& text = texts->emplace_back(all.at(key.first).prompt);
      text.insert(text.end(), answer.ids.begin(), answer.ids.end());
    }
    auto next = [texts](std::span<const int32_t> ids, int32_t n) {
      for (const std::vector<int32_t>& text : *texts)
        if (text.size() > ids.size() && std::equal(ids.begin(), ids.end(), text.begin())) {
          auto begin = text.begin() + std::ssize(ids);
          return std::vector<int32_t>(begin,
                                      begin + std::min<std::ptrdiff_t>(n, text.end() - begin));
        }
      return std::vector<int32_t>();
    };
    return RandomDrafter(next, 300, trees, 5);
  }
};

TEST_P(Drafts, ChainsDoNotChangeABit) {
  cpu::TestModel model(small_model());
  auto backend = make_backend(GetParam(), two_threads());
  auto all = requests();
  EngineStats stats, drafted;
  Answers want = run(*backend, model, {}, all, stats);
  RandomDrafter chains = drafter(all, want, false);
  for (int64_t kv_tokens : {4096, 300}) {
    RunSetup setup;
    setup.drafter = &chains;
    setup.kv_tokens = kv_tokens;
    setup.config.draft_tokens = 5;
    EXPECT_TRUE(run(*backend, model, setup, all, drafted) == want) << kv_tokens;
    if (kv_tokens == 4096) {
      EXPECT_LT(drafted.steps, stats.steps * 3 / 4) << "drafts were accepted";
    }
  }
}

TEST_P(Drafts, LookupsDoNotChangeABit) {
  cpu::TestModel model(small_model());
  auto backend = make_backend(GetParam(), two_threads());
  auto all = requests();
  EngineStats stats, drafted;
  Answers want = run(*backend, model, {}, all, stats);
  for (int64_t kv_tokens : {4096, 300}) {
    NgramDrafter ngram({3, 1, false});
    SuffixDrafter suffix({});
    for (Drafter* drafter : {static_cast<Drafter*>(&ngram), static_cast<Drafter*>(&suffix)}) {
      RunSetup setup;
      setup.drafter = drafter;
      setup.kv_tokens = kv_tokens;
      setup.config.draft_tokens = 5;
      EXPECT_TRUE(run(*backend, model, setup, all, drafted) == want) << kv_tokens;
      EXPECT_GT(drafted.draft_accepted, 20);
      EXPECT_LT(drafted.draft_accepted, drafted.draft_tokens);
    }
  }
}

// A row of a tree is at another slot than the same token would be without drafts.
TEST_P(Drafts, TreesDoNotChangeABit) {
  cpu::TestModelOptions options = small_model();
  options.tree_mask = true;
  cpu::TestModel model(options), plain(small_model());
  auto backend = make_backend(GetParam(), two_threads());
  auto all = requests();
  EngineStats stats, drafted;
  Answers want = run(*backend, plain, {}, all, stats);
  RandomDrafter trees = drafter(all, want, true);
  for (int64_t kv_tokens : {4096, 300}) {
    RunSetup setup;
    setup.drafter = &trees;
    setup.kv_tokens = kv_tokens;
    setup.config.draft_tokens = 7;
    Answers have = run(*backend, model, setup, all, drafted);
    if (kv_tokens == 4096) {
      EXPECT_LT(drafted.steps, stats.steps * 3 / 4);
    }
    EXPECT_TRUE(have == want) << kv_tokens;
  }
  EXPECT_GT(trees.branches, 100);
}

// The trees of the product's drafters, also with fewer branches for a request.
TEST_P(Drafts, BranchesOfLookupsDoNotChangeABit) {
  cpu::TestModelOptions options = small_model();
  options.tree_mask = true;
  cpu::TestModel model(options), plain(small_model());
  auto backend = make_backend(GetParam(), two_threads());
  auto all = requests();
  all[2].draft_branches = 1;
  EngineStats stats, chains, trees;
  Answers want = run(*backend, plain, {}, all, stats);
  for (bool adaptive : {false, true})
    for (int kind : {0, 1, 2}) {
      auto answers = [&](int32_t branches, EngineStats& out) {
        NgramDrafter ngram({3, 1, false});
        SuffixDrafter suffix({.factor = 4});
        LookaheadDrafter lookahead({});
        Drafter* drafters[] = {&ngram, &suffix, &lookahead};
        RunSetup setup;
        setup.drafter = drafters[kind];
        setup.config.draft_tokens = 8;
        setup.config.draft_branches = branches;
        setup.config.adaptive_drafts = adaptive;
        return run(*backend, model, setup, all, out);
      };
      Answers have = answers(3, trees);
      EXPECT_TRUE(have == want) << "drafter " << kind;
      EXPECT_GT(trees.draft_accepted, 10);
      if (!adaptive && kind != 2) {
        answers(1, chains);
        EXPECT_LE(trees.steps, chains.steps + chains.steps / 20) << "drafter " << kind;
      }
    }
}

// Allows a fixed set of tokens, as a bias that forbids all others would.
class SetMask final : public TokenMask {
 public:
  static bool allowed(int32_t id) { return id % 7 < 3; }
  void allow(int32_t, std::span<const int32_t>, std::span<const int32_t>,
             std::span<uint32_t> bits) override {
    for (int32_t id = 0; id < 300; ++id)
      if (allowed(id)) bits[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  }
};

TEST_P(Drafts, MasksAreAsABias) {
  cpu::TestModel model(small_model());
  auto backend = make_backend(GetParam(), two_threads());
  auto masked = requests(), biased = requests();
  for (RequestId id : {1, 2, 3, 4}) {
    masked[id].mask = std::make_shared<SetMask>();
    SampleSpec spec = *biased[id].sample;
    for (int32_t token = 0; token < 300; ++token)
      if (!SetMask::allowed(token)) spec.logit_bias.emplace_back(token, -INFINITY);
    biased[id].sample = std::make_shared<const SampleSpec>(spec);
  }
  EngineStats stats;
  Answers want = run(*backend, model, {}, biased, stats);
  EXPECT_TRUE(run(*backend, model, {}, masked, stats) == want);
  RandomDrafter chains = drafter(masked, want, false);
  RunSetup setup;
  setup.drafter = &chains;
  setup.config.draft_tokens = 4;
  EXPECT_TRUE(run(*backend, model, setup, masked, stats) == want) << "with drafts";
  for (const auto& [key, answer] : want)
    for (int32_t id : answer.ids) EXPECT_TRUE(key.first > 4 || SetMask::allowed(id));
}

INSTANTIATE_TEST_SUITE_P(Each, Drafts, testing::Values(TK_TEST_BACKENDS));

}  // namespace
}  // namespace tokamak
