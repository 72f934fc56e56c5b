// Speculation through the public API, and the settings it takes.
#include "api/speculative.h"

#include <gtest/gtest.h>

#include <tokamak/tokamak.h>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace tokamak {
namespace {

using Method = SpeculativeOptions::Method;

std::string tiny_model(const std::string& name) {
  const char* folder = std::getenv("TOKAMAK_TINY_MODELS");
  return std::string(folder ? folder : ".") + "/" + name;
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument) << e.what();
    return e.what();
  }
  return "no error";
}

TEST(Speculative, Settings) {
  EXPECT_EQ(parse_speculative("").method, Method::kOff);
  EXPECT_EQ(parse_speculative("off").method, Method::kOff);
  EXPECT_EQ(parse_speculative("ngram").method, Method::kNgram);
  EXPECT_EQ(parse_speculative("", "small.gguf").method, Method::kDraftModel);
  // Lookups propose more, if only as much is verified as pays.
  EXPECT_EQ(parse_speculative("ngram").tokens, 24);
  EXPECT_EQ(parse_speculative("early_exit").tokens, 8);
  EXPECT_EQ(parse_speculative(R"({"method": "suffix", "adaptive": false})").tokens, 8);
  SpeculativeOptions o = parse_speculative(
      R"({"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4,
          "prompt_lookup_min": 2, "prompt_lookup_match": "earliest", "disable_by_batch_size": 4})");
  EXPECT_EQ(o.tokens, 5);
  EXPECT_EQ(o.ngram.longest, 4);
  EXPECT_EQ(o.ngram.shortest, 2);
  EXPECT_TRUE(o.ngram.earliest && o.adaptive);
  EXPECT_EQ(o.disable_by_batch_size, 4);
  o = parse_speculative(R"({"method": "ngram", "prompt_lookup_max": 3})");
  EXPECT_EQ(o.ngram.shortest, 3);
  o = parse_speculative(R"({"method": "suffix", "suffix_decoding_max_spec_factor": 2.5,
                            "suffix_decoding_max_cached_requests": 0, "adaptive": false})");
  EXPECT_EQ(o.suffix.factor, 2.5);
  EXPECT_EQ(o.suffix.answers, 0);
  EXPECT_FALSE(o.adaptive);
  EXPECT_EQ(parse_speculative(R"({"model": "x.gguf"})").model, "x.gguf");
  EXPECT_FALSE(o.rejection);
  o = parse_speculative(R"({"method": "early_exit", "rejection_sample_method": "probabilistic"})");
  EXPECT_TRUE(o.rejection);
  o = parse_speculative(R"({"method": "suffix", "rejection_sample_method": "standard"})");
  EXPECT_TRUE(o.rejection);
  for (const char* spelling :
       {R"({"model": "[ngram]", "prompt_lookup_max": 4})",
        R"({"model": "ngram", "prompt_lookup_max": 4})",
        R"({"method": "[ngram]", "prompt_lookup_max": 4})",
        R"({"method": "ngram", "model": "ngram", "prompt_lookup_max": 4})"}) {
    o = parse_speculative(spelling);
    EXPECT_EQ(o.method, Method::kNgram) << spelling;
    EXPECT_EQ(o.ngram.shortest, 4) << spelling;
  }
  o = parse_speculative(R"({"method": "lookahead", "max_window_size": 5, "max_ngram_size": 4,
                            "max_verification_set_size": 7})");
  EXPECT_EQ(o.lookahead.window, 5);
  EXPECT_EQ(o.lookahead.ngram, 4);
  EXPECT_EQ(o.lookahead.candidates, 7);
}

TEST(Speculative, WrongSettingsAreNamed) {
  const std::pair<const char*, const char*> wrong[] = {
      {"magic", "off, ngram, suffix"},
      {"{", "speculation"},
      {"{}", "\"method\" is missing"},
      {R"({"method": 3})", "method must be text"},
      {R"({"method": "ngram", "num_speculative_tokens": 33})", "from 1 to 32"},
      {R"({"method": "ngram", "num_speculative_tokens": "5"})", "an integer"},
      {R"({"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 2})", "larger than"},
      {R"({"method": "ngram", "prompt_lookup_match": "first"})", "prompt_lookup_match"},
      {R"({"method": "suffix", "suffix_decoding_min_token_prob": 2})", "from 0 to 1"},
      {R"({"method": "ngram", "adaptive": 1})", "true or false"},
      {R"({"method": "ngram", "ngram": 1})", "\"ngram\" is unknown"},
      {R"({"method": "draft_model"})", "needs \"model\", the path"},
      {R"({"method": "ngram", "model": "x"})", "no other method uses it"},
      {R"({"method": "ngram", "early_exit_layers": 2})", "only the method"},
      {R"({"method": "early_exit", "rejection_sample_method": "typical"})", "\"probabilistic\""},
      {R"({"method": "lookahead", "max_ngram_size": 1})", "from 2 to 16"},
      {R"({"method": "patterns"})", "needs \"patterns\", the path"},
  };
  for (const auto& entry : wrong) {
    std::string message = message_of([&] { parse_speculative(entry.first); });
    EXPECT_NE(message.find(entry.second), std::string::npos) << entry.first << ": " << message;
  }
  EXPECT_NE(message_of([] { parse_speculative("ngram", "x.gguf"); }).find("combined"),
            std::string::npos);
}

TEST(Speculative, BranchesAreASetting) {
  EXPECT_EQ(parse_speculative("suffix").branches, 1);
  EXPECT_EQ(parse_speculative(R"({"method": "suffix", "max_branches": 3})").branches, 3);
  for (const char* wrong : {R"({"method": "ngram", "max_branches": 9})",
                            R"({"method": "early_exit", "max_branches": 2})"})
    EXPECT_NE(message_of([&] { parse_speculative(wrong); }).find("max_branches"),
              std::string::npos);
}

TEST(Speculative, SameAnswersFromEveryDrafter) {
  const std::string path = tiny_model("llama.gguf");
  std::vector<GenerateOptions> all;
  for (float temperature : {0.0f, 0.8f}) {
    GenerateOptions o;
    o.max_tokens = 40;
    o.temperature = temperature;
    o.seed = 9;
    o.ignore_eos = true;
    o.logprobs = true;
    all.push_back(o);
    o.repetition_penalty = 1.1f;
    o.stop = {"e"};
    all.push_back(o);
  }
  auto answers = [&](const Model& model) {
    std::vector<Result> out;
    for (const GenerateOptions& o : all) out.push_back(model.generate("a b a b a b a", o));
    return out;
  };
  std::vector<Result> want = answers(Model(path, {.threads = 2}));
  for (ModelOptions options : {ModelOptions{.threads = 2, .speculative = "ngram"},
                               ModelOptions{.threads = 2, .speculative = "suffix"},
                               ModelOptions{.threads = 2, .speculative = "early_exit"},
                               ModelOptions{.threads = 2, .speculative = "lookahead"},
                               ModelOptions{.threads = 2, .draft_model = path}}) {
    Model model(path, options);
    std::vector<Result> have = answers(model);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(have[i].ids, want[i].ids);
      EXPECT_EQ(have[i].logprobs, want[i].logprobs);
      EXPECT_EQ(have[i].text, want[i].text);
      EXPECT_EQ(have[i].finish, want[i].finish);
      EXPECT_LE(have[i].accepted_tokens, have[i].drafted_tokens);
      EXPECT_EQ(want[i].drafted_tokens, 0);
    }
    EXPECT_GT(have[0].drafted_tokens, 0);
    if (!options.draft_model.empty()) {
      EXPECT_GT(have[0].accepted_tokens, have[0].drafted_tokens * 9 / 10) << "the same model";
    }
    GenerateOptions off = all[0];
    off.draft_tokens = 0;
    EXPECT_EQ(model.generate("a b a b a b a", off).drafted_tokens, 0);
    off.draft_tokens = -1;
    EXPECT_NE(message_of([&] { model.generate("a", off); }), "no error");
  }
}

TEST(Speculative, ErrorsSayWhatIsWrong) {
  const std::string path = tiny_model("llama.gguf");
  Model plain(path, {.threads = 2});
  EXPECT_NE(message_of([&] { plain.generate("a", {.draft_tokens = 2}); }).find("speculative"),
            std::string::npos);
  EXPECT_NE(message_of([&] { Model(path, {.speculative = "magic"}); }).find("magic"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              Model(path, {.speculative = R"({"method": "early_exit", "early_exit_layers": 2})"});
            }).find("less than the model's 2"),
            std::string::npos);
}

// The same model with one more token, as other checkpoints of a family have.
TEST(Speculative, ADraftModelMayHaveOtherTokens) {
  const std::string path = tiny_model("llama.gguf");
  namespace fs = std::filesystem;
  std::string pattern = (fs::temp_directory_path() / "tokamak-draft-XXXXXX").string();
  fs::path folder = ::mkdtemp(pattern.data());
  for (const auto& file : fs::directory_iterator(tiny_model("llama")))
    if (file.path().filename() != "tokenizer.json")
      fs::create_symlink(fs::absolute(file.path()), folder / file.path().filename());
  Value tokenizer = parse_json(read_text_file(tiny_model("llama") + "/tokenizer.json"));
  Value token = Value::Object{{"content", "<extra>"},  {"single_word", false}, {"lstrip", false},
                              {"rstrip", false},       {"normalized", false},  {"special", true},
                              {"id", int64_t{1} << 10}};
  tokenizer.find("added_tokens")->push(std::move(token));
  write_text_file(folder / "tokenizer.json", dump_json(tokenizer));
  Model plain(path, {.threads = 2}), drafted(path, {.threads = 2, .draft_model = folder.string()});
  for (float temperature : {0.0f, 0.9f}) {
    GenerateOptions o{.max_tokens = 40, .seed = 3, .temperature = temperature, .ignore_eos = true};
    Result want = plain.generate("a b a b c", o), have = drafted.generate("a b a b c", o);
    EXPECT_EQ(have.ids, want.ids);
    if (temperature == 0) {
      EXPECT_GT(have.accepted_tokens, have.drafted_tokens * 9 / 10);
    }
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace tokamak
