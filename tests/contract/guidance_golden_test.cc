// Classifier-free guidance on tiny models against transformers (tools/make_guidance_goldens.py):
// greedy tokens, and log-probabilities of the guided distribution at every step.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "base/file.h"
#include "base/json.h"
#include "tests/contract/tiny_model.h"

namespace tokamak {
namespace {

RequestSpec guided_of(const Value& c) {
  RequestSpec spec;
  spec.prompt = ids_of(c.at("prompt"));
  spec.negative_prompt = ids_of(c.at("negative"));
  spec.max_tokens = static_cast<int32_t>(c.at("max_tokens").as_int());
  SampleSpec sample;
  sample.temperature = 0;
  sample.guidance_scale = static_cast<float>(c.at("scale").as_double());
  sample.repetition_penalty = static_cast<float>(c.at("repetition_penalty").as_double());
  sample.top_logprobs = static_cast<int32_t>(c.at("tops").as_array()[0].size());
  spec.sample = std::make_shared<const SampleSpec>(sample);
  return spec;
}

struct GuidedAnswer {
  std::vector<int32_t> ids;
  std::vector<std::vector<TokenLogprob>> top;
};

// The scale of the error is that of the guided logits, which are differences times the scale.
void expect_guided(const Value& c, const GuidedAnswer& got) {
  EXPECT_EQ(got.ids, ids_of(c.at("ids")));
  const Value::Array& steps = c.at("tops").as_array();
  ASSERT_EQ(got.top.size(), steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const Value::Array& want = steps[i].as_array();
    ASSERT_EQ(got.top[i].size(), want.size());
    for (size_t k = 0; k < want.size(); ++k)
      EXPECT_NEAR(static_cast<double>(got.top[i][k].logprob), want[k].as_array()[1].as_double(),
                  2e-4)
          << "step " << i << ", rank " << k;
  }
}

TEST(GuidanceGolden, AsTransformers) {
  std::string root = std::getenv("TOKAMAK_SOURCE_DIR");
  Value cases = parse_json(read_text_file(root + "/tests/golden/guidance.json"), "guidance.json");
  std::map<std::string, std::vector<const Value*>> by_model;
  for (const Value& c : cases.as_array()) by_model[c.at("model").as_string()].push_back(&c);
  for (const auto& [name, list] : by_model) {
    TinyModel model(name);
    std::vector<RequestSpec> specs;
    for (const Value* c : list) specs.push_back(guided_of(*c));
    std::map<RequestId, GuidedAnswer> answers;  // all of them in one batch
    for (const Delta& d : model.run(specs)) {
      EXPECT_EQ(d.error, "");
      GuidedAnswer& a = answers[d.request];
      a.ids.insert(a.ids.end(), d.ids.begin(), d.ids.end());
      a.top.insert(a.top.end(), d.top.begin(), d.top.end());
    }
    for (size_t i = 0; i < list.size(); ++i) {
      SCOPED_TRACE(fmt::format("{} {}", name, dump_json(*list[i]).substr(0, 300)));
      expect_guided(*list[i], answers[i + 1]);
    }
  }
  EXPECT_GT(cases.size(), 30u);
}

// With the same prompt on both sides every scale gives the plain distribution.
TEST(GuidanceGolden, TheSamePromptChangesNothing) {
  TinyModel model("llama");
  RequestSpec plain;
  plain.prompt = {40, 41, 42, 43, 44};
  plain.max_tokens = 12;
  RequestSpec guided = plain;
  guided.negative_prompt = plain.prompt;
  SampleSpec sample;
  sample.temperature = 0;
  sample.guidance_scale = 3;
  guided.sample = std::make_shared<const SampleSpec>(sample);
  auto ids = [&](const RequestSpec& spec) {
    std::vector<int32_t> out;
    for (const Delta& d : model.run(spec)) out.insert(out.end(), d.ids.begin(), d.ids.end());
    return out;
  };
  std::vector<int32_t> want = ids(plain);
  EXPECT_EQ(want.size(), 12u);
  EXPECT_EQ(ids(guided), want);
}

}  // namespace
}  // namespace tokamak
