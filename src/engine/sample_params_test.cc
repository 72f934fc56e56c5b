#include "engine/sample_params.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/json.h"

namespace tokamak {
namespace {

TEST(SampleParams, RangesHoldAtTheirEnds) {
  for (const SampleSetting& p : sample_params()) {
    SampleSpec spec;
    EXPECT_NO_THROW(set_sample_param(spec, p.name, p.low)) << p.name;
    EXPECT_NO_THROW(set_sample_param(spec, p.name, p.high)) << p.name;
    double stored =
        p.integer ? static_cast<double>(spec.*p.integer) : static_cast<double>(spec.*p.number);
    EXPECT_EQ(stored, p.high) << p.name;
    for (double bad : {p.low - 0.5, p.high + 1, std::nan(""), double{INFINITY}}) {
      try {
        set_sample_param(spec, p.name, bad);
        ADD_FAILURE() << p.name << " took " << bad;
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
        EXPECT_NE(std::string(e.what()).find(p.name), std::string::npos) << e.what();
      }
    }
  }
}

TEST(SampleParams, NormalizeMapsTheSpellingsOfOffAndGreedy) {
  SampleSpec spec;
  spec.top_k = -1;
  spec.top_p = 0;
  normalize_sampling(spec);
  EXPECT_EQ(spec.top_k, 0);
  EXPECT_EQ(spec.temperature, 0);
  EXPECT_EQ(spec.top_p, 1);
}

TEST(SampleParams, DefaultsOfGenerationConfig) {
  auto given = sampling_defaults(parse_json(
      R"({"temperature": 0.5, "top_k": 20, "top_p": 0.75, "min_p": 0.125, "typical_p": 0.5,
          "repetition_penalty": 1.25, "eos_token_id": [1, 2], "do_sample": true})"));
  ASSERT_TRUE(given);
  const SampleSpec& s = *given;
  EXPECT_EQ(s.temperature, 0.5f);
  EXPECT_EQ(s.top_k, 20);
  EXPECT_EQ(s.top_p, 0.75f);
  EXPECT_EQ(s.min_p, 0.125f);
  EXPECT_EQ(s.typical_p, 0.5f);
  EXPECT_EQ(s.repetition_penalty, 1.25f);
  for (const char* odd : {"[]", "null", "{}", R"({"top_p": 0, "typical_p": 0})",
                          R"({"temperature": "hot", "top_k": -5, "top_p": 9, "min_p": null})"})
    EXPECT_FALSE(sampling_defaults(parse_json(odd))) << odd;
  EXPECT_TRUE(sampling_defaults(parse_json(R"({"temperature": 1.0})")));  // also the default
}

TEST(SampleParams, DefaultsOfGgufMetadata) {
  auto given = gguf_sampling_defaults(parse_json(
      R"({"general.sampling.temp": 0.5, "general.sampling.top_k": 20,
          "general.sampling.top_p": 0.75, "general.sampling.min_p": 0.125,
          "general.sampling.penalty_repeat": 1.25, "general.name": "x"})"));
  ASSERT_TRUE(given);
  const SampleSpec& s = *given;
  EXPECT_EQ(s.temperature, 0.5f);
  EXPECT_EQ(s.top_k, 20);
  EXPECT_EQ(s.top_p, 0.75f);
  EXPECT_EQ(s.min_p, 0.125f);
  EXPECT_EQ(s.repetition_penalty, 1.25f);
  EXPECT_FALSE(gguf_sampling_defaults(parse_json("{}")));
}

}  // namespace
}  // namespace tokamak
