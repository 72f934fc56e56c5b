// DoLa on tiny models against transformers (tools/make_dola_goldens.py): greedy tokens, and
// log-probabilities of the contrasted distribution at every step.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "base/file.h"
#include "base/json.h"
#include "tests/contract/tiny_model.h"

namespace tokamak {
namespace {

constexpr int32_t kDolaTops = 5;

RequestSpec dola_request(const Value& c) {
  RequestSpec spec;
  spec.prompt = ids_of(c.at("prompt"));
  spec.max_tokens = static_cast<int32_t>(c.at("max_tokens").as_int());
  SampleSpec sample;
  sample.temperature = 0;
  sample.dola_layers = ids_of(c.at("layers"));
  sample.repetition_penalty = static_cast<float>(c.at("repetition_penalty").as_double());
  sample.top_logprobs = kDolaTops;
  spec.sample = std::make_shared<const SampleSpec>(sample);
  return spec;
}

struct DolaAnswer {
  std::vector<int32_t> ids;
  std::vector<std::vector<TokenLogprob>> top;
};

std::map<RequestId, DolaAnswer> dola_answers(const TinyModel& model,
                                             const std::vector<RequestSpec>& specs) {
  std::map<RequestId, DolaAnswer> answers;  // all of them in one batch
  for (const Delta& d : model.run(specs)) {
    EXPECT_EQ(d.error, "");
    DolaAnswer& a = answers[d.request];
    a.ids.insert(a.ids.end(), d.ids.begin(), d.ids.end());
    a.top.insert(a.top.end(), d.top.begin(), d.top.end());
  }
  return answers;
}

// Tokens below a tenth of the likeliest have no probability in transformers; here they follow.
void expect_contrasted(const Value& c, const DolaAnswer& got) {
  EXPECT_EQ(got.ids, ids_of(c.at("ids")));
  const Value::Array& steps = c.at("tops").as_array();
  ASSERT_EQ(got.top.size(), steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const Value::Array& want = steps[i].as_array();
    ASSERT_EQ(got.top[i].size(), static_cast<size_t>(kDolaTops));
    for (size_t k = 0; k < got.top[i].size(); ++k) {
      auto logprob = static_cast<double>(got.top[i][k].logprob);
      if (k < want.size()) {
        EXPECT_NEAR(logprob, want[k].as_array()[1].as_double(), 2e-4)
            << "step " << i << ", rank " << k;
      } else {
        EXPECT_LT(logprob, -5000) << "step " << i << ", rank " << k;
      }
    }
  }
}

CompileOptions with_layers() {
  CompileOptions options;
  options.layer_logits = true;
  return options;
}

TEST(DolaGolden, AsTransformers) {
  std::string root = std::getenv("TOKAMAK_SOURCE_DIR");
  Value cases = parse_json(read_text_file(root + "/tests/golden/dola.json"), "dola.json");
  std::map<std::string, std::vector<const Value*>> by_model;
  for (const Value& c : cases.as_array()) by_model[c.at("model").as_string()].push_back(&c);
  for (const auto& [name, list] : by_model)
    for (const char* backend : {TK_SEARCH_BACKENDS}) {
      TinyModel model(name, with_layers(), backend);
      std::vector<RequestSpec> specs;
      for (const Value* c : list) specs.push_back(dola_request(*c));
      auto answers = dola_answers(model, specs);
      for (size_t i = 0; i < list.size(); ++i) {
        SCOPED_TRACE(fmt::format("{} {} {}", backend, name, dump_json(*list[i]).substr(0, 300)));
        expect_contrasted(*list[i], answers[i + 1]);
      }
    }
  EXPECT_GT(cases.size(), 30u);
}

// Requests with and without DoLa share steps, and a step has room for the layers of a few only.
TEST(DolaGolden, BatchesChangeNothing) {
  TinyModel model("llama", with_layers());
  TinyModel narrow("llama", with_layers());
  narrow.config.layer_rows = 3;  // one or two requests
  std::vector<RequestSpec> specs;
  for (int32_t i = 0; i < 9; ++i) {
    RequestSpec& spec = specs.emplace_back();
    for (int32_t k = 0; k < 3 + 4 * i; ++k) spec.prompt.push_back(20 + (k * (i + 3)) % 90);
    spec.max_tokens = 12;
    SampleSpec sample;
    sample.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    sample.seed = static_cast<uint64_t>(i);
    sample.top_logprobs = kDolaTops;
    if (i % 3 != 2) sample.dola_layers = {0, 1};
    if (i == 4) sample.dola_layers = {1};
    spec.sample = std::make_shared<const SampleSpec>(sample);
  }
  auto together = dola_answers(model, specs), few = dola_answers(narrow, specs);
  bool differs = false;
  for (size_t i = 0; i < specs.size(); ++i) {
    SCOPED_TRACE(i);
    std::vector<int32_t> alone = dola_answers(model, {specs[i]})[1].ids;
    EXPECT_EQ(alone.size(), 12u);
    EXPECT_EQ(together[i + 1].ids, alone);
    EXPECT_EQ(few[i + 1].ids, alone);
    RequestSpec plain = specs[i];
    SampleSpec sample = *plain.sample;
    sample.dola_layers.clear();
    plain.sample = std::make_shared<const SampleSpec>(sample);
    bool same = dola_answers(model, {plain})[1].ids == alone;
    if (i % 3 == 2) {
      EXPECT_TRUE(same);
    }
    differs = differs || !same;
  }
  EXPECT_TRUE(differs);
}

TEST(DolaGolden, WhatItCannotBeCombinedWith) {
  TinyModel model("llama", with_layers());
  auto refused = [&](auto change) {
    RequestSpec spec;
    spec.prompt = {40, 41};
    spec.max_tokens = 4;
    SampleSpec sample;
    sample.dola_layers = {0, 1};
    change(spec, sample);
    return refuses(model.config, spec, sample);
  };
  EXPECT_FALSE(refused([](RequestSpec&, SampleSpec&) {}));
  EXPECT_TRUE(refused([](RequestSpec& r, SampleSpec&) { r.beams = 2; }));
  EXPECT_TRUE(refused([](RequestSpec& r, SampleSpec&) { r.draft_tokens = 2; }));
  EXPECT_TRUE(refused([](RequestSpec&, SampleSpec& s) { s.guidance_scale = 2; }));
  EXPECT_TRUE(refused([](RequestSpec&, SampleSpec& s) { s.dola_layers = {100}; }));
  EXPECT_TRUE(refused([](RequestSpec&, SampleSpec& s) { s.dola_layers = {-1}; }));
  model.config.layer_rows = 0;
  EXPECT_TRUE(refused([](RequestSpec&, SampleSpec&) {}));
}

}  // namespace
}  // namespace tokamak
