// Samplers as text: logits and a request in, the tokens that it chooses and how often out
// (tests/golden/sample; TK_GOLDEN_WRITE=1 rewrites the answers). A line of a file is
//   logits 2 1 0.5       logits of the tokens 0, 1, 2, for the cases that follow
//   history 0 1 | 2      tokens of the prompt and of the answer so far, for the cases that follow
//   {"top_k": 2}         a case; also "logit_bias", "allowed", "order"
//   -> 0 73.1 %, ...     its answer: share of each token in 4096 draws, and the first eight draws
// and everything else is kept as it is.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>

#include "backend/common/sampler.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/sample_params.h"

namespace tokamak {
namespace {

constexpr int32_t kDraws = 4096, kShown = 8;
constexpr std::array kStageNames = {"penalties", "dry",   "temperature", "top_k",      "typical",
                                    "top_p",     "min_p", "xtc",         "top_n_sigma"};

struct Setting {
  std::vector<float> logits;
  std::vector<int32_t> history;
  int32_t prompt_tokens = 0;
};

struct Request {
  SampleSpec spec;
  std::vector<uint32_t> mask;  // empty: all tokens are allowed
};

Request parse_request(const Value& fields, int64_t vocab) {
  Request out;
  out.spec.seed = 1;
  for (const auto& [name, value] : fields.as_object()) {
    if (name == "logit_bias") {
      for (const auto& [id, bias] : value.as_object())
        out.spec.logit_bias.emplace_back(std::stoi(id), static_cast<float>(bias.as_double()));
    } else if (name == "allowed") {
      out.mask.assign(mask_words(vocab), 0);
      for (const Value& id : value.as_array())
        out.mask[static_cast<size_t>(id.as_int() / 32)] |= 1u << id.as_int() % 32;
    } else if (name == "order") {
      for (const Value& stage : value.as_array()) {
        const auto* at = std::find(kStageNames.begin(), kStageNames.end(), stage.as_string());
        TK_CHECK(at != kStageNames.end(), "no stage {}", stage.as_string());
        out.spec.order.push_back(static_cast<SampleStage>(at - kStageNames.begin()));
      }
    } else {
      set_sample_param(out.spec, name, value.as_double());
    }
  }
  check_logit_bias(out.spec, vocab);
  normalize_sampling(out.spec);
  return out;
}

// The choice of one answer at each of kDraws positions: noise depends on the position alone.
std::string answer(const Setting& setting, const Request& request) {
  auto vocab = static_cast<int64_t>(setting.logits.size());
  auto spec = std::make_shared<const SampleSpec>(request.spec);
  Sampler sampler(vocab, 1);
  StepInputs step;
  step.ids = {0};
  step.seq = {0};
  step.row = {0};
  step.kv_len = {1};
  step.out_rows = {0};
  step.samples = {{SampleRow::Mode::kSample, -1, 0, 0, 0, spec}};
  step.samples[0].masked = !request.mask.empty();
  std::map<int32_t, int> counts;
  std::string shown;
  for (int32_t position = 0; position < kDraws; ++position) {
    if (spec->needs_history()) step.resets = {{0, setting.prompt_tokens, setting.history}};
    step.samples[0].position = position;
    StepResult result;
    sampler.begin(step);
    sampler.finish(step, setting.logits.data(), result);
    if (!request.mask.empty()) {
      sampler.set_mask(0, request.mask);
      sampler.complete(result);
    }
    ++counts[result.ids.at(0)];
    if (position < kShown) shown += fmt::format(" {}", result.ids[0]);
  }
  std::vector<std::pair<int32_t, int>> order(counts.begin(), counts.end());
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string out = "->";
  for (const auto& [id, count] : order)
    out += fmt::format("{} {} {:.1f} %", out.size() > 2 ? "," : "", id, 100.0 * count / kDraws);
  return out + "; draws" + shown;
}

std::vector<std::string> words(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> out;
  for (std::string word; in >> word;) out.push_back(word);
  return out;
}

std::string run_file(const std::string& text) {
  Setting setting;
  std::string out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("->")) continue;
    out += line + '\n';
    std::vector<std::string> fields = words(line);
    if (line.starts_with("logits")) {
      setting.logits.clear();
      for (size_t i = 1; i < fields.size(); ++i) setting.logits.push_back(std::stof(fields[i]));
    } else if (line.starts_with("history")) {
      setting.history.clear();
      for (size_t i = 1; i < fields.size(); ++i)
        if (fields[i] == "|")
          setting.prompt_tokens = static_cast<int32_t>(setting.history.size());
        else
          setting.history.push_back(std::stoi(fields[i]));
    } else if (line.starts_with("{")) {
      auto vocab = static_cast<int64_t>(setting.logits.size());
      out += answer(setting, parse_request(parse_json(line), vocab)) + '\n';
    }
  }
  return out;
}

TEST(SamplingGolden, TextInTextOut) {
  std::filesystem::path folder =
      std::filesystem::path(std::getenv("TOKAMAK_SOURCE_DIR")) / "tests/golden/sample";
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    SCOPED_TRACE(entry.path().filename().string());
    std::string text = read_text_file(entry.path()), got = run_file(text);
    if (std::getenv("TK_GOLDEN_WRITE"))
      write_text_file(entry.path(), got);
    else
      EXPECT_EQ(got, text);
    ++files;
  }
  EXPECT_GE(files, 3);
}

}  // namespace
}  // namespace tokamak
