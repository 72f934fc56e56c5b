// Beam search on tiny models against transformers (tools/make_beam_goldens.py): tokens and scores.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "base/file.h"
#include "base/json.h"
#include "tests/contract/tiny_model.h"

namespace tokamak {
namespace {

RequestSpec beams_of(const Value& c) {
  RequestSpec spec;
  spec.prompt = ids_of(c.at("prompt"));
  spec.stop_ids = ids_of(c.at("stop_ids"));
  spec.beams = static_cast<int32_t>(c.at("beams").as_int());
  spec.n = static_cast<int32_t>(c.at("n").as_int());
  spec.max_tokens = static_cast<int32_t>(c.at("max_tokens").as_int());
  spec.length_penalty = static_cast<float>(c.at("length_penalty").as_double());
  const Value& early = c.at("early_stopping");
  spec.early_stopping = early.is_string() ? EarlyStopping::kNever
                        : early.as_bool() ? EarlyStopping::kTrue
                                          : EarlyStopping::kFalse;
  SampleSpec sample;
  sample.min_tokens = static_cast<int32_t>(c.at("min_tokens").as_int());
  spec.sample = std::make_shared<const SampleSpec>(sample);
  return spec;
}

TEST(BeamGolden, AsTransformers) {
  std::string root = std::getenv("TOKAMAK_SOURCE_DIR");
  Value cases = parse_json(read_text_file(root + "/tests/golden/beams.json"), "beams.json");
  std::map<std::string, std::unique_ptr<TinyModel>> models;
  int stopped = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const Value& c = cases.as_array()[i];
    SCOPED_TRACE(fmt::format("case {}: {}", i, dump_json(c).substr(0, 400)));
    auto& model = models[c.at("model").as_string()];
    if (!model) model = std::make_unique<TinyModel>(c.at("model").as_string());
    std::vector<Delta> got = model->run(beams_of(c));
    const Value::Array& want = c.at("answers").as_array();
    ASSERT_EQ(got.size(), want.size());
    for (size_t n = 0; n < want.size(); ++n) {
      EXPECT_EQ(got[n].ids, ids_of(want[n].at("ids"))) << "answer " << n;
      EXPECT_EQ(got[n].stop_id, want[n].at("stop_id").as_int());
      EXPECT_NEAR(got[n].beam_score, want[n].at("score").as_double(),
                  2e-5 * (1 + std::abs(want[n].at("score").as_double())));
      stopped += got[n].stop_id >= 0;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(stopped, 30);
}

}  // namespace
}  // namespace tokamak
