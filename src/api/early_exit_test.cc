// Early exit on backends that compute: the same answers, one step for drafts and verification, no
// further weights or KV.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <numeric>

#include "api/adapters.h"
#include "api/open.h"
#include "base/error.h"
#include "base/rng.h"

namespace tokamak {
namespace {

std::string tiny_path(const std::string& name) {
  const char* folder = std::getenv("TOKAMAK_TINY_MODELS");
  return std::string(folder ? folder : ".") + "/" + name;
}

OpenOptions options_for_exit(const std::string& model, const char* backend, bool exits) {
  OpenOptions o;
  o.model = tiny_path(model);
  o.backend = backend;
  o.threads = 1;
  o.max_sequences = 8;
  o.max_step_tokens = 64;
  o.context = 256;
  if (exits)
    o.speculative = R"({"method": "early_exit", "num_speculative_tokens": 4, "adaptive": false})";
  return o;
}

// Depends on the token before, drafted or not.
class AfterTokenMask final : public TokenMask {
 public:
  explicit AfterTokenMask(int64_t vocab) : vocab_(vocab) {}
  void allow(int32_t, std::span<const int32_t> answer, std::span<const int32_t> drafts,
             std::span<uint32_t> bits) override {
    int32_t last = !drafts.empty() ? drafts.back() : !answer.empty() ? answer.back() : 0;
    drafted_ids_right = drafted_ids_right && last >= 0 && last < vocab_;
    for (int32_t id = 0; id < vocab_; ++id)
      if ((id + last) % 3 != 0) bits[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  }
  bool drafted_ids_right = true;

 private:
  int64_t vocab_;
};

struct ExitAnswer {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  std::vector<std::vector<TokenLogprob>> top;
  Finish finish = Finish::kNone;
  bool operator==(const ExitAnswer& o) const {
    return ids == o.ids && logprobs == o.logprobs && finish == o.finish;
  }
};
using ExitAnswers = std::map<std::pair<size_t, int32_t>, ExitAnswer>;

// All at once.
ExitAnswers answer_all(LocalEngine& engine, const std::vector<RequestSpec>& specs) {
  ExitAnswers out;
  std::mutex mutex;
  std::condition_variable done;
  size_t open = 0;
  for (const RequestSpec& spec : specs) open += static_cast<size_t>(spec.n);
  for (size_t i = 0; i < specs.size(); ++i)
    engine.submit(specs[i], [&, i](Delta&& d) {
      std::lock_guard lock(mutex);
      ExitAnswer& a = out[{i, d.choice}];
      a.ids.insert(a.ids.end(), d.ids.begin(), d.ids.end());
      a.logprobs.insert(a.logprobs.end(), d.logprobs.begin(), d.logprobs.end());
      a.top.insert(a.top.end(), d.top.begin(), d.top.end());
      a.finish = d.finish;
      EXPECT_TRUE(d.error.empty()) << d.error;
      if (d.finish != Finish::kNone && --open == 0) done.notify_one();
    });
  std::unique_lock lock(mutex);
  done.wait(lock, [&] { return open == 0; });
  return out;
}

std::vector<RequestSpec> mixed_specs(int count, int64_t vocab) {
  Rng rng(31);
  auto id = [&] { return static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab))); };
  std::vector<int32_t> shared(48);
  for (int32_t& t : shared) t = id();
  std::vector<RequestSpec> out;
  for (int i = 0; i < count; ++i) {
    RequestSpec& spec = out.emplace_back();
    spec.prompt.assign(shared.begin(), shared.begin() + 16 + static_cast<int>(rng.below(32)));
    for (uint64_t n = rng.below(10); n > 0; --n) spec.prompt.push_back(id());
    spec.max_tokens = 8 + static_cast<int32_t>(rng.below(24));
    spec.n = i % 5 == 4 ? 2 : 1;
    SampleSpec sample;
    constexpr float kTemperatures[] = {0, 0.8f, 1.2f};
    sample.temperature = kTemperatures[i % 3];
    sample.seed = rng.next_u64();
    sample.top_logprobs = i % 2;
    if (i % 4 == 1) sample.repetition_penalty = 1.3f;
    if (i % 4 == 2) sample.top_k = 40;
    spec.sample = std::make_shared<const SampleSpec>(sample);
    if (i % 4 == 3) spec.mask = std::make_shared<AfterTokenMask>(vocab);
    if (i % 6 == 5) spec.stop_ids = {id(), id(), id(), id(), id(), id(), id(), id()};
    if (i % 7 == 6) spec.draft_tokens = static_cast<int32_t>(rng.below(3));
  }
  return out;
}

// Runs of the plans whose function has this name.
int64_t runs_of(const EngineStats& stats, std::string_view function) {
  int64_t runs = 0;
  for (size_t p = 0; stats.dispatch.names && p < stats.dispatch.names->size(); ++p)
    if ((*stats.dispatch.names)[p].starts_with(std::string(function) + " "))
      runs += stats.dispatch.steps[p];
  return runs;
}

TEST(EarlyExit, MixedRequestsGetTheSameAnswers) {
  for (const char* backend : {"ref", "cpu"})
    for (bool small : {false, true}) {
      SCOPED_TRACE(fmt::format("{} small {}", backend, small));
      OpenOptions plain = options_for_exit("llama.gguf", backend, false),
                  exits = options_for_exit("llama.gguf", backend, true);
      exits.kv_blocks = small ? 12 : 0;
      exits.threads = 2;
      LoadedModel target = load_model(plain), drafting = load_model(exits);
      auto specs =
          mixed_specs(backend == std::string("ref") ? 16 : 48, target.source->plans().vocab);
      ExitAnswers want = answer_all(*target.engine, specs);
      EXPECT_TRUE(answer_all(*drafting.engine, specs) == want);
      EngineStats s = drafting.engine->stats();
      EXPECT_GT(s.draft_tokens, 100);
      EXPECT_GT(s.draft_accepted, 0);
      EXPECT_LT(s.draft_accepted, s.draft_tokens);
      EXPECT_GT(s.prefix_hits, 0);
      EXPECT_EQ(s.preemptions > 0, small);
      for (const RequestSpec& spec : specs) {
        auto* mask = dynamic_cast<AfterTokenMask*>(spec.mask.get());
        EXPECT_TRUE(mask == nullptr || mask->drafted_ids_right);
      }
    }
}

TEST(EarlyExit, OneStepDraftsAndVerifies) {
  LoadedModel model = load_model(options_for_exit("llama.gguf", "cpu", true));
  RequestSpec spec;
  spec.prompt = {1, 5, 9};
  spec.max_tokens = 41;
  answer_all(*model.engine, {spec});
  EngineStats s = model.engine->stats();
  // One sequence: an exit phase per drafted token, and one other phase per step.
  EXPECT_GT(s.draft_tokens, 0);
  EXPECT_EQ(runs_of(s, "exit"), s.draft_tokens);
  int64_t phases = std::accumulate(s.dispatch.steps.begin(), s.dispatch.steps.end(), int64_t{0});
  EXPECT_EQ(phases, s.steps + s.draft_tokens);
  EXPECT_EQ(s.steps, 41 - s.draft_accepted);
}

// A model whose biases differ drafts: it agrees sometimes.
OpenOptions options_for_draft_model() {
  OpenOptions o = options_for_exit("llama.gguf", "cpu", false);
  o.draft_model = tiny_path("llama_bias.gguf");
  o.speculative = R"({"method": "draft_model", "num_speculative_tokens": 4, "adaptive": false})";
  return o;
}

// Classical rejection: the second token is drafted, and has the distribution of the model given the
// first one. With three tokens left there are two degrees of freedom: the bound is exceeded once in
// 10^4 runs. The bias makes both distributions consist of the same three tokens.
TEST(EarlyExit, ProbabilisticRejectionKeepsTheDistribution) {
  constexpr double kBound2 = 18.4;
  const std::vector<int32_t> three = {40, 57, 91};
  SampleSpec sample;
  sample.temperature = 1.0f;
  for (int32_t id : three) sample.logit_bias.emplace_back(id, 100.0f);
  auto spec_of = [&](uint64_t seed, int32_t max_tokens, std::vector<int32_t> prompt,
                     bool rejection) {
    RequestSpec spec;
    spec.prompt = std::move(prompt);
    spec.max_tokens = max_tokens;
    SampleSpec own = sample;
    own.seed = seed;
    own.rejection = rejection;
    if (max_tokens == 1) own.top_logprobs = 128;  // all
    spec.sample = std::make_shared<const SampleSpec>(own);
    return spec;
  };
  for (bool draft_model : {false, true}) {
    SCOPED_TRACE(draft_model ? "draft model" : "early exit");
    LoadedModel model = load_model(draft_model ? options_for_draft_model()
                                               : options_for_exit("llama.gguf", "cpu", true));
    int64_t accepted[2] = {};
    for (bool rejection : {false, true}) {
      int64_t before = model.engine->stats().draft_accepted;
      std::vector<RequestSpec> specs;
      for (uint64_t seed = 0; seed < 1200; ++seed)
        specs.push_back(spec_of(seed, 3, {4, 8, 2}, rejection));
      ExitAnswers answers = answer_all(*model.engine, specs);
      accepted[rejection] = model.engine->stats().draft_accepted - before;
      std::map<int32_t, std::map<int32_t, int>> counts;  // first token, second token
      for (const auto& [key, a] : answers) ++counts[a.ids.at(0)][a.ids.at(1)];
      EXPECT_EQ(counts.size(), 3u);
      for (const auto& [first, seconds] : counts) {
        ExitAnswers exact = answer_all(*model.engine, {spec_of(1, 1, {4, 8, 2, first}, false)});
        std::map<int32_t, double> weights;
        for (const TokenLogprob& t : exact.at({0, 0}).top.at(0))
          if (std::find(three.begin(), three.end(), t.id) != three.end())
            weights[t.id] = std::exp(static_cast<double>(t.logprob));
        ASSERT_EQ(weights.size(), 3u);
        double mass = 0, total = 0, chi_square = 0;
        for (const auto& [id, weight] : weights) mass += weight;
        for (const auto& [id, n] : seconds) total += n;
        for (const auto& [id, weight] : weights) {
          double expected = total * weight / mass;
          auto it = seconds.find(id);
          double off = (it == seconds.end() ? 0 : it->second) - expected;
          chi_square += off * off / expected;
        }
        EXPECT_LE(seconds.size(), 3u);
        EXPECT_LT(chi_square, kBound2) << "after token " << first << ", rejection " << rejection;
      }
    }
    EXPECT_GT(accepted[1], accepted[0]);
  }
}

// Both rules accept the same drafts of greedy requests.
TEST(EarlyExit, GreedyAnswersAreTheSameWithRejection) {
  LoadedModel plain = load_model(options_for_exit("llama.gguf", "cpu", false)),
              drafting = load_model(options_for_draft_model());
  std::vector<RequestSpec> specs = mixed_specs(24, plain.source->plans().vocab);
  for (RequestSpec& spec : specs) {
    SampleSpec sample = *spec.sample;
    sample.temperature = 0;
    sample.rejection = true;
    spec.sample = std::make_shared<const SampleSpec>(sample);
  }
  EXPECT_TRUE(answer_all(*drafting.engine, specs) == answer_all(*plain.engine, specs));
  EXPECT_GT(drafting.engine->stats().draft_tokens, 100);
}

// The exit takes the adapter of each row, as the model does.
TEST(EarlyExit, AdaptersKeepTheirAnswers) {
  OpenOptions plain = options_for_exit("llama.gguf", "cpu", false),
              exits = options_for_exit("llama.gguf", "cpu", true);
  plain.adapters = {{"all", tiny_path("adapters/llama_all")},
                    {"qv", tiny_path("adapters/llama_qv")}};
  exits.adapters = plain.adapters;
  LoadedModel target = load_model(plain), drafting = load_model(exits);
  auto answers = [](LoadedModel& model, bool adapters) {
    std::vector<RequestSpec> specs = mixed_specs(24, model.source->plans().vocab);
    auto all = model.adapters->list();
    for (size_t i = 0; adapters && i < specs.size(); ++i)
      if (i % 3 < 2) specs[i].adapter = all.at(i % 3);
    return answer_all(*model.engine, specs);
  };
  ExitAnswers want = answers(target, true);
  EXPECT_TRUE(answers(drafting, true) == want);
  EXPECT_FALSE(answers(target, false) == want);
  EngineStats s = drafting.engine->stats();
  EXPECT_GT(s.draft_tokens, 100);
  EXPECT_GT(s.draft_accepted, 0);
}

// Weights and KV are those of the model alone, and so are the numerics.
TEST(EarlyExit, SharesWeightsAndKv) {
  for (const char* name : {"llama.gguf", "gemma3.gguf", "gpt2.gguf", "qwen2.gguf", "llama"})
    for (const char* backend : {"cpu", "ref"}) {
      SCOPED_TRACE(fmt::format("{} {}", name, backend));
      OpenOptions a_plain = options_for_exit(name, backend, false),
                  an_exit = options_for_exit(name, backend, true);
      a_plain.context = an_exit.context = 64;
      LoadedModel plain = load_model(a_plain), exits = load_model(an_exit);
      const PlanSet &a = plain.source->plans(), &b = exits.source->plans();
      EXPECT_EQ(exits.engine->memory().weights, plain.engine->memory().weights);
      EXPECT_EQ(exits.engine->memory().kv, plain.engine->memory().kv);
      EXPECT_EQ(b.weights.size(), a.weights.size());
      EXPECT_EQ(b.states.size(), a.states.size());
      EXPECT_EQ(b.numerics_id, a.numerics_id);
      EXPECT_EQ(exits.drafter->memory_bytes(), 0u);
      RequestSpec spec;
      spec.prompt = {3, 1, 4, 1, 5};
      spec.max_tokens = 16;
      EXPECT_TRUE(answer_all(*exits.engine, {spec}) == answer_all(*plain.engine, {spec}));
      EXPECT_GT(exits.engine->stats().draft_tokens, 0);
    }
}

}  // namespace
}  // namespace tokamak
