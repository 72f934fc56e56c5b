// Contrastive search on tiny models against transformers (tools/make_contrastive_goldens.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "base/file.h"
#include "base/json.h"
#include "tests/contract/tiny_model.h"

namespace tokamak {
namespace {

RequestSpec contrastive_request(const Value& c) {
  RequestSpec spec;
  spec.prompt = ids_of(c.at("prompt"));
  spec.max_tokens = static_cast<int32_t>(c.at("max_tokens").as_int());
  spec.beams = static_cast<int32_t>(c.at("top_k").as_int());
  if (!c.at("stop").is_null()) spec.stop_ids = ids_of(c.at("stop"));
  SampleSpec sample;
  sample.penalty_alpha = static_cast<float>(c.at("alpha").as_double());
  sample.top_logprobs = 0;
  spec.sample = std::make_shared<const SampleSpec>(sample);
  return spec;
}

std::map<std::string, std::vector<RequestSpec>> contrastive_cases(
    std::map<std::string, std::vector<std::vector<int32_t>>>& answers) {
  std::string root = std::getenv("TOKAMAK_SOURCE_DIR");
  Value cases =
      parse_json(read_text_file(root + "/tests/golden/contrastive.json"), "contrastive.json");
  std::map<std::string, std::vector<RequestSpec>> specs;
  for (const Value& c : cases.as_array()) {
    specs[c.at("model").as_string()].push_back(contrastive_request(c));
    answers[c.at("model").as_string()].push_back(ids_of(c.at("ids")));
  }
  EXPECT_GT(cases.size(), 50u);
  return specs;
}

// transformers' answers contain the token that ended them.
void expect_as_transformers(const RequestSpec& spec, std::vector<int32_t> want, const Delta& got) {
  EXPECT_EQ(got.error, "");
  bool stops = std::count(spec.stop_ids.begin(), spec.stop_ids.end(), want.back()) > 0;
  EXPECT_EQ(got.finish, stops ? Finish::kStop : Finish::kLength);
  if (stops) {
    EXPECT_EQ(got.stop_id, want.back());
    want.pop_back();
  }
  EXPECT_EQ(got.ids, want);
  EXPECT_EQ(got.logprobs.size(), want.size());
}

TEST(ContrastiveGolden, AsTransformers) {
  std::map<std::string, std::vector<std::vector<int32_t>>> answers;
  size_t stopped = 0;
  for (const auto& [name, specs] : contrastive_cases(answers))
    for (const char* backend : {TK_SEARCH_BACKENDS}) {
      TinyModel model(name, {}, backend);
      size_t count = 0;
      for (const Delta& d : model.run(specs)) {  // all of them in one batch
        SCOPED_TRACE(fmt::format("{} {} request {}", backend, name, d.request));
        expect_as_transformers(specs[d.request - 1], answers[name][d.request - 1], d);
        stopped += d.finish == Finish::kStop ? 1 : 0;
        ++count;
      }
      EXPECT_EQ(count, specs.size());
    }
  EXPECT_GT(stopped, 4u);
}

// With few blocks sequences are preempted, and requests that sample share the steps.
TEST(ContrastiveGolden, PreemptionAndBatchesChangeNothing) {
  constexpr size_t kPlain = 6;
  std::map<std::string, std::vector<std::vector<int32_t>>> answers;
  std::vector<RequestSpec> searches = contrastive_cases(answers)["llama"];
  RequestSpec plain;
  plain.prompt = {40, 41, 42};
  plain.max_tokens = 58;
  TinyModel model("llama");
  std::vector<int32_t> alone;
  for (const Delta& d : model.run(plain)) alone.insert(alone.end(), d.ids.begin(), d.ids.end());
  std::vector<RequestSpec> specs(kPlain, plain);
  specs.insert(specs.end(), searches.begin(), searches.end());
  model.config.blocks = {30};
  model.config.max_batched_tokens = 24;
  std::map<RequestId, std::vector<int32_t>> sampled;
  size_t count = 0;
  for (const Delta& d : model.run(specs)) {
    SCOPED_TRACE(d.request);
    if (d.request <= kPlain) {
      sampled[d.request].insert(sampled[d.request].end(), d.ids.begin(), d.ids.end());
      continue;
    }
    size_t at = d.request - kPlain - 1;
    expect_as_transformers(searches[at], answers["llama"][at], d);
    ++count;
  }
  EXPECT_EQ(count, searches.size());
  EXPECT_GT(model.preemptions, 0);
  EXPECT_EQ(sampled.size(), kPlain);
  for (const auto& [id, ids] : sampled) EXPECT_EQ(ids, alone);
}

TEST(ContrastiveGolden, WhatItCannotBeCombinedWith) {
  TinyModel model("llama");
  auto refused = [&](auto change) {
    RequestSpec spec;
    spec.prompt = {40, 41};
    spec.max_tokens = 4;
    spec.beams = 4;
    SampleSpec sample;
    sample.penalty_alpha = 0.6f;
    change(spec, sample);
    return refuses(model.config, spec, sample);
  };
  EXPECT_FALSE(refused([](RequestSpec&, SampleSpec&) {}));
  EXPECT_TRUE(refused([](RequestSpec& r, SampleSpec&) { r.beams = 1; }));
  EXPECT_TRUE(refused([](RequestSpec& r, SampleSpec&) { r.n = 2; }));
  EXPECT_TRUE(refused([](RequestSpec& r, SampleSpec&) { r.draft_tokens = 2; }));
  EXPECT_TRUE(refused([](RequestSpec&, SampleSpec& s) { s.guidance_scale = 2; }));
  EXPECT_TRUE(refused([](RequestSpec&, SampleSpec& s) { s.penalty_alpha = 2; }));
  EXPECT_TRUE(refused([](RequestSpec&, SampleSpec& s) { s.min_tokens = 2; }));
  EXPECT_TRUE(refused([](RequestSpec& r, SampleSpec&) { r.max_tokens = 62; }));  // and one more
}

}  // namespace
}  // namespace tokamak
