// The public API on tiny random-weight models and, where there is one, on a real model.
#include <gtest/gtest.h>

#include <tokamak/tokamak.h>
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "api/open.h"
#include "base/file.h"
#include "base/json.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

std::string tiny(const std::string& name) {
  const char* folder = std::getenv("TOKAMAK_TINY_MODELS");
  return std::string(folder ? folder : ".") + "/" + name;
}

const Model& llama() {
  static Model model(tiny("llama.gguf"), {.threads = 2});
  return model;
}

GenerateOptions greedy(int32_t max_tokens) {
  GenerateOptions o;
  o.max_tokens = max_tokens;
  o.temperature = 0;
  o.ignore_eos = true;
  return o;
}

template <class F>
ErrorCode code_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_STRNE(e.what(), "");
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
    return e.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::kInternal;
}

// A folder that is removed at the end of the test.
class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "tokamak-api-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~Folder() { fs::remove_all(path_); }
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

// The tiny llama folder with a generation_config.json of its own.
fs::path with_generation_config(const Folder& folder, const std::string& json) {
  fs::path copy = folder / "model";
  fs::create_directory(copy);
  for (const auto& file : fs::directory_iterator(tiny("llama")))
    if (file.path().filename() != "generation_config.json")
      fs::create_symlink(fs::absolute(file.path()), copy / file.path().filename());
  std::ofstream(copy / "generation_config.json") << json;
  return copy;
}

TEST(Api, OpenSaysWhatIsWrong) {
  EXPECT_EQ(code_of([] { Model model("/nowhere/model.gguf"); }), ErrorCode::kNotFound);
  auto open_with = [](ModelOptions options) {
    return code_of([&] { Model model(tiny("llama.gguf"), options); });
  };
  EXPECT_EQ(open_with({.backend = "gpu"}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(open_with({.threads = -1}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(open_with({.context = -5}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(open_with({.kv_dtype = "f8"}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(open_with({.kv_cache_bytes = 1}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(open_with({.chat_template = "nonesuch"}), ErrorCode::kNotFound);
}

// The words of the command line (tests/cli/cli_test.py): there is one check.
TEST(Api, OptionsAreNamedWithTheirRange) {
  auto message = [](ModelOptions options) -> std::string {
    try {
      Model model(tiny("llama.gguf"), options);
    } catch (const Error& e) {
      return e.what();
    }
    return "opened";
  };
  EXPECT_EQ(message({.threads = -1}), "threads is -1, but must be from 0 to 1024");
  EXPECT_EQ(message({.context = -5}), "context is -5, but must be from 0 to 16777216");
  EXPECT_EQ(message({.kv_dtype = "f12"}), "kv_dtype \"f12\" is unknown; use f16, f32, int8");
  EXPECT_EQ(message({.shapes = "round"}),
            "shapes \"round\" is unknown; use auto, dynamic, buckets, fixed");
  EXPECT_EQ(message({.buckets = {0, 8}}), "a bucket is 0, but must be from 1 to 1048576");
  EXPECT_EQ(message({.shapes = "dynamic", .buckets = {8}}),
            "buckets have no effect without shapes buckets or fixed");
  EXPECT_NE(message({.speculative = "magic"}).find("the method \"magic\" is unknown"),
            std::string::npos);
}

TEST(Api, EverySequenceOfAStepMayChooseAToken) {
  OpenOptions o;
  o.max_sequences = 128;
  EXPECT_EQ(compile_options(o).max_logit_rows, 128);
  o.max_sequences = 8;
  EXPECT_EQ(compile_options(o).max_logit_rows, 64);
  o.max_logit_rows = 16;
  EXPECT_EQ(compile_options(o).max_logit_rows, 16);
}

// Answers of transformers, as in tests/contract.
TEST(Api, DolaAndContrastiveSearch) {
  const char* root = std::getenv("TOKAMAK_SOURCE_DIR");
  if (!root || !*root) GTEST_SKIP() << "TOKAMAK_SOURCE_DIR is not set";
  auto ids_of = [](const Value& list) {
    std::vector<int32_t> ids;
    for (const Value& id : list.as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
    return ids;
  };
  auto cases_of = [&](const char* name) {
    return parse_json(read_text_file(std::string(root) + "/tests/golden/" + name), name);
  };
  Model model(tiny("llama"), {.threads = 2, .kv_dtype = "f32", .activations = "f32", .dola = true});
  size_t compared = 0;
  Value layers = cases_of("dola.json"), searches = cases_of("contrastive.json");
  for (const Value& c : layers.as_array()) {
    if (c.at("model").as_string() != "llama") continue;
    GenerateOptions o = greedy(static_cast<int32_t>(c.at("max_tokens").as_int()));
    for (int32_t layer : ids_of(c.at("layers")))
      o.dola += (o.dola.empty() ? "" : ",") + std::to_string(layer);
    o.repetition_penalty = static_cast<float>(c.at("repetition_penalty").as_double());
    EXPECT_EQ(model.generate(ids_of(c.at("prompt")), o).ids, ids_of(c.at("ids")));
    ++compared;
  }
  for (const Value& c : searches.as_array()) {
    if (c.at("model").as_string() != "llama" || !c.at("stop").is_null()) continue;
    GenerateOptions o;
    o.max_tokens = static_cast<int32_t>(c.at("max_tokens").as_int());
    o.ignore_eos = true;
    o.top_k = static_cast<int32_t>(c.at("top_k").as_int());
    o.penalty_alpha = static_cast<float>(c.at("alpha").as_double());
    EXPECT_EQ(model.generate(ids_of(c.at("prompt")), o).ids, ids_of(c.at("ids")));
    ++compared;
  }
  EXPECT_GT(compared, 10u);
  auto refused = [&](GenerateOptions o) { return code_of([&] { model.generate("hello", o); }); };
  EXPECT_EQ(refused({.dola = "middle"}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused({.dola = "0,99"}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused({.penalty_alpha = 0.5f}), ErrorCode::kInvalidArgument);  // without top_k
  EXPECT_EQ(refused({.top_k = 4, .penalty_alpha = 2.0f}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused({.top_k = 4, .penalty_alpha = 0.5f, .stop = {"x"}}),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused({.top_k = 4, .penalty_alpha = 0.5f, .regex = "a*"}),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([] { llama().generate("hello", {.dola = "low"}); }),
            ErrorCode::kInvalidArgument);
}

TEST(Api, EveryWayToGenerateGivesTheSameAnswer) {
  const Model& model = llama();
  Result whole = model.generate("hello world", greedy(12));
  EXPECT_EQ(whole.ids.size(), 12u);
  EXPECT_EQ(whole.finish, FinishReason::kLength);
  EXPECT_EQ(whole.prompt_ids, model.tokenize("hello world"));
  EXPECT_EQ(whole.text, model.detokenize(whole.ids));

  std::string streamed;
  Stream stream = model.stream("hello world", greedy(12));
  for (const std::string& piece : stream) streamed += piece;
  EXPECT_EQ(streamed, whole.text);
  EXPECT_EQ(stream.result().ids, whole.ids);
  EXPECT_EQ(stream.next(), std::nullopt);

  std::string called;
  auto on_text = [&](std::string_view piece) {
    called += piece;
    return true;
  };
  EXPECT_EQ(model.generate("hello world", greedy(12), on_text).ids, whole.ids);
  EXPECT_EQ(called, whole.text);
  EXPECT_EQ(model.generate(model.tokenize("hello world"), greedy(12)).ids, whole.ids);
}

TEST(Api, BatchAnswersAreThoseOfSingleRequests) {
  const Model& model = llama();
  std::vector<Prompt> prompts = {"hello", "the quick brown fox", std::vector<int32_t>{5, 6, 7},
                                 Chat{{"user", "hi"}}, "x"};
  GenerateOptions options;
  options.max_tokens = 10;
  options.seed = 3;
  std::vector<Result> batch = model.generate_batch(prompts, options);
  ASSERT_EQ(batch.size(), prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    Result alone = model.generate(prompts[i], options);
    EXPECT_EQ(batch[i].ids, alone.ids) << i;
    EXPECT_EQ(batch[i].text, alone.text) << i;
  }
  EXPECT_TRUE(model.generate_batch({}).empty());
  EXPECT_EQ(code_of([&] { model.generate_batch({"fine", ""}); }), ErrorCode::kInvalidArgument);
}

TEST(Api, SeedsRepeatAndDiffer) {
  const Model& model = llama();
  auto ids = [&](uint64_t seed) {
    GenerateOptions o;
    o.max_tokens = 24;
    o.ignore_eos = true;
    o.seed = seed;
    return model.generate("abc", o).ids;
  };
  EXPECT_EQ(ids(1), ids(1));
  EXPECT_NE(ids(1), ids(2));
}

TEST(Api, CancelEndsAStream) {
  Model model(tiny("llama.gguf"), {.context = 16384});  // far more than is generated meanwhile
  Stream stream = model.stream("hello", greedy(-1));
  EXPECT_TRUE(stream.next());
  std::thread([&] { stream.cancel(); }).join();
  stream.cancel();
  EXPECT_EQ(stream.result().finish, FinishReason::kCancelled);
  EXPECT_EQ(stream.result().text, model.detokenize(stream.result().ids));
  { Stream dropped = model.stream("hello", greedy(-1)); }
  EXPECT_EQ(model.generate("hello", greedy(4)).ids.size(), 4u);
}

TEST(Api, ACallbackCanEndTheAnswer) {
  const Model& model = llama();
  int pieces = 0;
  Result r = model.generate("hello", greedy(40), [&](std::string_view) { return ++pieces < 3; });
  EXPECT_EQ(pieces, 3);
  EXPECT_EQ(r.finish, FinishReason::kCancelled);
  EXPECT_LT(r.ids.size(), 40u);
  EXPECT_THROW(model.generate("hello", greedy(40),
                              [](std::string_view) -> bool { throw std::logic_error("mine"); }),
               std::logic_error);
  EXPECT_EQ(model.generate("hello", greedy(4)).ids.size(), 4u);
}

TEST(Api, StopsAtTextsAndIds) {
  const Model& model = llama();
  Result whole = model.generate("hello", greedy(16));
  ASSERT_GT(whole.text.size(), 4u);
  GenerateOptions options = greedy(16);
  options.stop = {whole.text.substr(2, 3)};
  Result stopped = model.generate("hello", options);
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  EXPECT_EQ(stopped.text, whole.text.substr(0, whole.text.find(options.stop[0])));
  options = greedy(16);
  options.stop_ids = {whole.ids[3]};
  Result ended = model.generate("hello", options);
  EXPECT_EQ(ended.finish, FinishReason::kStop);
  EXPECT_LE(ended.ids.size(), 3u);
  EXPECT_TRUE(std::equal(ended.ids.begin(), ended.ids.end(), whole.ids.begin()));
}

TEST(Api, RefusesWhatCannotRun) {
  const Model& model = llama();
  auto with = [&](auto set) {
    GenerateOptions o = greedy(4);
    set(o);
    return code_of([&] { model.generate("x", o); });
  };
  using O = GenerateOptions;
  EXPECT_EQ(with([](O& o) { o.temperature = 3; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(with([](O& o) { o.top_p = -0.5f; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(with([](O& o) { o.max_tokens = -2; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(with([](O& o) { o.min_tokens = -1; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(with([](O& o) { o.logit_bias = {{1 << 30, 1.0f}}; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(with([](O& o) { o.logit_bias = {{1, 101.0f}}; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { model.generate(""); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { model.generate(std::vector<int32_t>{-7}); }),
            ErrorCode::kInvalidArgument);
  std::vector<int32_t> longest(static_cast<size_t>(model.info().context) + 1, 5);
  EXPECT_EQ(code_of([&] { model.generate(longest); }), ErrorCode::kOutOfRange);
  EXPECT_EQ(code_of([&] { model.score("hello", 0); }), ErrorCode::kInvalidArgument);
}

TEST(Api, ChatUsesTheTemplate) {
  const Model& model = llama();
  ASSERT_TRUE(model.info().has_chat_template);
  Chat chat = {{"system", "Be brief."}, {"user", "Hello?"}};
  std::string text = model.render_chat(chat);
  EXPECT_NE(text.find("Be brief."), std::string::npos);
  EXPECT_NE(text.find("Hello?"), std::string::npos);
  EXPECT_NE(text, model.render_chat(chat, false));
  EXPECT_EQ(model.prompt_ids(chat), model.tokenize(text, false));
  EXPECT_EQ(model.generate(chat, greedy(6)).ids,
            model.generate(model.prompt_ids(chat), greedy(6)).ids);
}

TEST(Api, ScoresAreTheLogprobsOfGeneration) {
  const Model& model = llama();
  GenerateOptions options = greedy(8);
  options.logprobs = true;
  Result r = model.generate("hello world", options);
  ASSERT_EQ(r.logprobs.size(), r.ids.size());
  std::vector<int32_t> all = r.prompt_ids;
  all.insert(all.end(), r.ids.begin(), r.ids.end());
  std::vector<float> scores = model.score(all);
  ASSERT_EQ(scores.size(), all.size() - 1);
  for (size_t i = 0; i < r.ids.size(); ++i)
    EXPECT_FLOAT_EQ(r.logprobs[i], scores[r.prompt_ids.size() - 1 + i]) << i;
  std::vector<float> tail = model.score(all, static_cast<int32_t>(r.prompt_ids.size()));
  EXPECT_EQ(tail, std::vector<float>(scores.end() - std::ssize(r.ids), scores.end()));
  EXPECT_TRUE(model.score(std::vector<int32_t>{5}).empty());
}

TEST(Api, TwoModelsAndManyThreads) {
  const Model& first = llama();
  Model second(tiny("gpt2.gguf"), {.threads = 1});
  EXPECT_NE(first.info().name, second.info().name);
  auto one = first.generate("hello", greedy(8)).ids, two = second.generate("hello", greedy(8)).ids;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 3; ++i)
        wrong += (t % 2 ? second : first).generate("hello", greedy(8)).ids != (t % 2 ? two : one);
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Api, AStreamKeepsItsModel) {
  auto model = std::make_unique<Model>(tiny("llama.gguf"), ModelOptions{.context = 64});
  EXPECT_EQ(model->info().context, 64);
  Stream stream = model->stream("hello", greedy(8));
  model.reset();
  EXPECT_EQ(stream.result().ids, llama().generate("hello", greedy(8)).ids);
}

TEST(Api, TheModelsOwnSamplingDefaults) {
  EXPECT_FALSE(sets_sampling({.max_tokens = 3, .seed = 7}));
  EXPECT_TRUE(sets_sampling({.top_k = 0}) && sets_sampling({.guidance_scale = 1.0f}));
  EXPECT_EQ(llama().defaults().temperature, 1.0f);
  EXPECT_EQ(llama().defaults().mirostat_tau, 5.0f);
  Folder folder;
  fs::path path = with_generation_config(folder, R"({"temperature": 0.0, "top_k": 7})");
  Model model(path.string());
  EXPECT_EQ(model.defaults().temperature, 0.0f);
  EXPECT_EQ(model.defaults().top_k, 7);
  GenerateOptions unset;
  unset.max_tokens = 8;
  unset.ignore_eos = true;
  GenerateOptions other = unset;
  other.seed = 99;
  EXPECT_EQ(model.generate("hello", unset).ids, model.generate("hello", other).ids);
  other.temperature = 1.0f;
  other.top_k = 0;
  EXPECT_NE(model.generate("hello", unset).ids, model.generate("hello", other).ids);
}

TEST(Api, Bundles) {
  Folder folder;
  std::string bundle = (folder / "llama.tkm").string();
  compile_bundle(tiny("llama.gguf"), bundle, {.context = 96});
  Model model(bundle);
  EXPECT_EQ(model.info().context, 96);
  EXPECT_EQ(model.generate("hello", greedy(8)).ids, llama().generate("hello", greedy(8)).ids);
  EXPECT_EQ(code_of([&] { Model m(bundle, {.context = 97}); }), ErrorCode::kOutOfRange);
  EXPECT_EQ(code_of([&] { Model m(bundle, {.kv_dtype = "f32"}); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { compile_bundle(bundle, bundle); }), ErrorCode::kInvalidArgument);
}

TEST(Api, EmbeddingsRerankingAndLabels) {
  Model bert(tiny("bert")), cross(tiny("bert_cross")), labels(tiny("bert_cls"));
  EXPECT_EQ(bert.info().embedding_size, 48);
  EXPECT_FALSE(bert.info().generates);
  EXPECT_EQ(labels.info().labels, (std::vector<std::string>{"sad", "neutral", "happy"}));
  std::vector<std::string> texts = {"the cat is in the sun", "a dog", "the moon"};
  auto vectors = bert.embed(texts);
  ASSERT_EQ(vectors.size(), 3u);
  for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(bert.embed_one(texts[i]), vectors[i]);
  EXPECT_EQ(bert.embed_one("a", {.dimensions = 7}).size(), 7u);
  EXPECT_TRUE(bert.embed({}).empty());
  for (const Model* model : {&bert, &cross}) {
    std::vector<double> scores = model->rerank(texts[0], {texts[1], texts[2], texts[0]});
    ASSERT_EQ(scores.size(), 3u);
    EXPECT_NE(scores[0], scores[1]);
    EXPECT_EQ(scores[1], model->rerank(texts[0], {texts[2]})[0]);
    EXPECT_LE(*std::max_element(scores.begin(), scores.end()), 1 + 1e-6);
  }
  Model prompted(tiny("distilbert"));  // its files have a prompt for queries
  EXPECT_EQ(prompted.embed_one("a dog", {.prompt = "query"}), prompted.embed_one("query: a dog"));
  EXPECT_NEAR(prompted.rerank("a dog", {"query: a dog"})[0], 1, 1e-6);
  for (const std::vector<double>& p : labels.classify(texts))
    EXPECT_NEAR(p[0] + p[1] + p[2], 1, 1e-9);
  std::string longer;
  for (int i = 0; i < 40; ++i) longer += "the cat ";
  EXPECT_EQ(code_of([&] { bert.embed({longer}); }), ErrorCode::kOutOfRange);
  bert.embed({longer}, {.truncate = true});
  EXPECT_EQ(code_of([&] { bert.generate("a"); }), ErrorCode::kUnsupported);
  EXPECT_EQ(code_of([&] { llama().embed(texts); }), ErrorCode::kUnsupported);
  EXPECT_EQ(code_of([&] { labels.rerank("a", {"b"}); }), ErrorCode::kUnsupported);
  EXPECT_EQ(code_of([&] { bert.classify(texts); }), ErrorCode::kUnsupported);
}

TEST(Api, RealModel) {
  const char* path = std::getenv("TOKAMAK_TEST_MODEL");
  if (!path || !*path) GTEST_SKIP() << "TOKAMAK_TEST_MODEL is not set";
  Model model(path, {.context = 256});
  EXPECT_EQ(model.generate("The capital of France is", {.max_tokens = 1, .temperature = 0}).text,
            " Paris");
  std::vector<Result> batch =
      model.generate_batch({"The capital of France is", Chat{{"user", "Say the word yes."}}},
                           {.max_tokens = 4, .temperature = 0});
  EXPECT_TRUE(batch[0].text.starts_with(" Paris"));
  EXPECT_FALSE(batch[1].text.empty());
  auto sum = [&](const char* text) {
    double total = 0;
    for (float lp : model.score(text)) total += lp;
    return total;
  };
  EXPECT_GT(sum("The capital of France is Paris"), sum("The capital of France is Tuesday"));
  EXPECT_EQ(model.detokenize(model.tokenize("Grüße, 世界 🙂")), "Grüße, 世界 🙂");
}

TEST(Api, Programs) {
  const Model& model = llama();
  // A select prefers what score() finds likelier per token.
  auto mean = [&](const std::string& choice) {
    std::vector<int32_t> ids = model.tokenize("Hello"), more = model.tokenize(choice, false);
    auto first = static_cast<int32_t>(ids.size());
    ids.insert(ids.end(), more.begin(), more.end());
    std::vector<float> scores = model.score(ids, first);
    double sum = 0;
    for (float s : scores) sum += static_cast<double>(s);
    return sum / static_cast<double>(scores.size());
  };
  std::string better = mean(" a") > mean(" the") ? " a" : " the";
  std::string out = model.run_program(
      R"({"program": [{"text": "Hello"}, {"select": "s", "choices": [" a", " the"]}, {"return": "s"}]})");
  EXPECT_EQ(out.find("{\"output\":\"" + better + "\""), 0u) << out;
  // A gen continues as generate does.
  Result plain = model.generate("Hello", greedy(6));
  int events = 0;
  out = model.run_program(R"({"program": [{"text": "Hello"},
      {"gen": "g", "max_tokens": 6, "temperature": 0, "ignore_eos": true}]})",
                          [&](const std::string&) { return ++events > 0; });
  EXPECT_GE(events, 2);
  EXPECT_NE(out.find("\"completion_tokens\":" + std::to_string(plain.ids.size())),
            std::string::npos)
      << out;
  EXPECT_EQ(code_of([&] { model.run_program("[]"); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { model.run_program("{"); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] {
              model.run_program(R"({"program": [{"text": "Hello"}, {"gen": "g"}]})",
                                [](const std::string&) { return false; });
            }),
            ErrorCode::kCancelled);
}

TEST(Api, Adapters) {
  const std::string qv = tiny("adapters/llama_qv"), all = tiny("adapters/llama_all");
  Model model(tiny("llama.gguf"), {.threads = 2, .adapters = {{"qv", qv}}});
  Model merged(tiny("llama.gguf"), {.threads = 2, .merge_adapters = {qv}});
  auto with = [](const std::string& name) {
    GenerateOptions o = greedy(12);
    o.adapter = name;
    return o;
  };
  const std::string prompt = "the house and the";
  std::string plain = model.generate(prompt, greedy(12)).text,
              changed = model.generate(prompt, with("qv")).text;
  EXPECT_EQ(plain, llama().generate(prompt, greedy(12)).text);
  EXPECT_EQ(changed, merged.generate(prompt, greedy(12)).text);
  EXPECT_NE(changed, plain);
  model.load_adapter("all", all);
  EXPECT_EQ(model.adapters(), (std::vector<std::string>{"all", "qv"}));
  EXPECT_NE(model.generate(prompt, with("all")).text, changed);
  // A running answer keeps its adapter.
  Stream stream = model.stream(prompt, with("qv"));
  model.unload_adapter("qv");
  EXPECT_EQ(stream.result().text, changed);
  EXPECT_EQ(code_of([&] { model.generate(prompt, with("qv")); }), ErrorCode::kNotFound);
  EXPECT_EQ(code_of([&] { model.unload_adapter("qv"); }), ErrorCode::kNotFound);
  EXPECT_EQ(code_of([&] { model.load_adapter("all", all); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { model.load_adapter("x", tiny("nothing")); }), ErrorCode::kNotFound);
  EXPECT_EQ(code_of([&] { model.load_adapter("x", tiny("adapters/llama_dora")); }),
            ErrorCode::kUnsupported);
  EXPECT_EQ(code_of([&] { llama().load_adapter("x", qv); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { llama().generate(prompt, with("x")); }), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace tokamak
