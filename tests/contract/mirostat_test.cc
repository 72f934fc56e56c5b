// Mirostat against the answers of an implementation of its own (tools/make_mirostat_golden.py).
#include <gtest/gtest.h>

#include <cstdlib>

#include "backend/common/sampler.h"
#include "base/file.h"
#include "base/json.h"

namespace tokamak {
namespace {

Value mirostat_cases() {
  std::string root = std::getenv("TOKAMAK_SOURCE_DIR");
  return parse_json(read_text_file(root + "/tests/golden/mirostat.json"), "mirostat.json");
}

SampleSpec mirostat_of(const Value& c) {
  SampleSpec spec;
  spec.mirostat = static_cast<int32_t>(c.at("mirostat").as_int());
  spec.mirostat_tau = static_cast<float>(c.at("tau").as_double());
  spec.mirostat_eta = static_cast<float>(c.at("eta").as_double());
  spec.temperature = static_cast<float>(c.at("temperature").as_double());
  spec.seed = static_cast<uint64_t>(c.at("seed").as_int());
  for (const auto& [id, bias] : c.at("bias").as_object())
    spec.logit_bias.emplace_back(std::stoi(id), static_cast<float>(bias.as_double()));
  // Neither filters nor penalties run.
  spec.top_k = 1;
  spec.repetition_penalty = 5;
  return spec;
}

std::vector<uint32_t> every(int64_t vocab, int64_t stride) {
  std::vector<uint32_t> mask(mask_words(vocab), 0);
  for (int64_t i = 0; i < vocab; i += stride) mask[static_cast<size_t>(i) / 32] |= 1u << (i % 32);
  return mask;
}

TEST(Mirostat, GivesTheGoldenTokens) {
  Value file = mirostat_cases();
  std::vector<std::vector<float>> logits;
  for (const Value& row : file.at("logits").as_array()) {
    logits.emplace_back();
    for (const Value& v : row.as_array())
      logits.back().push_back(static_cast<float>(v.as_double()));
  }
  auto vocab = static_cast<int64_t>(logits[0].size());
  for (const Value& c : file.at("cases").as_array()) {
    SCOPED_TRACE(dump_json(c).substr(0, 90));
    auto spec = std::make_shared<const SampleSpec>(mirostat_of(c));
    int64_t stride = c.at("stride").as_int();
    std::vector<uint32_t> mask = every(vocab, stride);
    StepInputs step;
    step.ids = {0};
    step.seq = {0};
    step.row = {1};
    step.kv_len = {1};
    step.out_rows = {0};
    step.samples = {{SampleRow::Mode::kSample, -1, 0, 0, 0, spec}};
    step.samples[0].masked = stride > 1;
    auto sampler = std::make_unique<Sampler>(vocab, 2);
    StepResult result;
    const Value::Array& ids = c.at("ids").as_array();
    for (size_t i = 0; i < ids.size(); ++i) {
      step.resets.clear();
      if (i == 25) {  // the sequence goes on elsewhere: its state is all that is needed
        sampler = std::make_unique<Sampler>(vocab, 2);
        step.resets.push_back({1, 0, {0}, result.mirostat_mu.at(0)});
      }
      step.samples[0].position = static_cast<int32_t>(i);
      sampler->begin(step);
      sampler->finish(step, logits[i % logits.size()].data(), result);
      if (stride > 1) sampler->set_mask(0, mask);
      sampler->complete(result);
      ASSERT_EQ(result.ids.at(0), ids[i].as_int()) << "step " << i;
      ASSERT_NEAR(static_cast<double>(result.mirostat_mu.at(0)),
                  c.at("mu").as_array()[i].as_double(), 2e-3)
          << "step " << i;
    }
  }
}

// A reset without a state begins a new answer.
TEST(Mirostat, EverySequenceBeginsAnew) {
  SampleSpec spec;
  spec.mirostat = 2;
  spec.mirostat_tau = 3;
  StepInputs step;
  step.ids = {0};
  step.seq = {0};
  step.row = {0};
  step.kv_len = {1};
  step.out_rows = {0};
  step.samples = {
      {SampleRow::Mode::kSample, -1, 0, 0, 0, std::make_shared<const SampleSpec>(spec)}};
  std::vector<float> logits = {3, 2, 1, 0, 2, 1};
  Sampler sampler(6, 1);
  std::vector<float> first;
  for (int round = 0; round < 2; ++round)
    for (size_t i = 0; i < 5; ++i) {
      step.resets.clear();
      if (i == 0) step.resets.push_back({0, 0, {0}});
      step.samples[0].position = static_cast<int32_t>(i);
      StepResult result;
      sampler.begin(step);
      sampler.finish(step, logits.data(), result);
      if (round == 0)
        first.push_back(result.mirostat_mu.at(0));
      else
        EXPECT_EQ(result.mirostat_mu.at(0), first[i]);
    }
}

}  // namespace
}  // namespace tokamak
