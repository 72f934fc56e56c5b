#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <utility>

#include "base/json.h"
#include "serve/compat/ollama.h"
#include "serve/fake_client.h"
#include "serve/http/turn.h"
#include "serve/openai/api.h"
#include "serve/openai/api_error.h"
#include "serve/openai/choice.h"
#include "serve/openai/generation.h"
#include "serve/openai/prometheus.h"

namespace tokamak::openai {
namespace {

using testing::fake_model;
using testing::FakeClient;

std::shared_ptr<const ServedModel> model_without_engine() {
  static auto model = std::make_shared<const ServedModel>(fake_model(nullptr));
  return model;
}

Prepared completion(const std::string& json) {
  return prepare_completion(parse_json(json), model_without_engine());
}

TEST(Prometheus, LabelsAreEscapedAndBucketsAddUp) {
  std::string labels;
  add_label(labels, "a", "x\"y\\z\n");
  add_label(labels, "b", "");
  EXPECT_EQ(labels, R"(a="x\"y\\z\n",b="")");
  Histogram h(Histogram::Unit::kTokens);
  h.add(1);
  h.add(3, 2);
  h.add(1e9);
  PrometheusText text;
  text.family("t", PrometheusText::Type::kHistogram, "Help.");
  text.histogram("m=\"1\"", h);
  std::string out = text.take();
  EXPECT_NE(out.find("# HELP t Help.\n# TYPE t histogram\nt_bucket{m=\"1\",le=\"1\"} 1\n"),
            std::string::npos)
      << out;
  EXPECT_NE(out.find("le=\"2\"} 1\n"), std::string::npos);
  EXPECT_NE(out.find("le=\"4\"} 3\n"), std::string::npos);
  EXPECT_NE(out.find("le=\"+Inf\"} 4\nt_sum{m=\"1\"} 1000000007\nt_count{m=\"1\"} 4\n"),
            std::string::npos)
      << out;
}

TEST(Prepare, ReadsEveryParameter) {
  Prepared p =
      completion(R"({"prompt": "ab", "max_tokens": 5, "temperature": 0.25, "top_p": 0.5, "top_k": 7,
    "min_p": 0.125, "n": 2, "stop": ["x", "", "y"], "seed": -3, "presence_penalty": 1, "frequency_penalty": -1,
    "repetition_penalty": 1.5, "logit_bias": {"3": -100}, "logprobs": 4, "echo": true, "stream": true,
    "stream_options": {"include_usage": true}, "min_tokens": 2, "stop_token_ids": [9], "priority": 4,
    "cache_salt": "s", "return_token_ids": true, "user": "u"})");
  const SampleSpec& s = p.params.sample;
  EXPECT_EQ(p.prompts.at(0).ids, (std::vector<int32_t>{'a', 'b'}));
  EXPECT_EQ(p.prompts.at(0).text, "ab");
  EXPECT_EQ(p.params.max_tokens, 5);
  EXPECT_EQ(s.temperature, 0.25f);
  EXPECT_EQ(s.top_p, 0.5f);
  EXPECT_EQ(s.top_k, 7);
  EXPECT_EQ(s.min_p, 0.125f);
  EXPECT_EQ(s.presence_penalty, 1);
  EXPECT_EQ(s.frequency_penalty, -1);
  EXPECT_EQ(s.repetition_penalty, 1.5f);
  EXPECT_EQ(s.seed, static_cast<uint64_t>(-3));
  EXPECT_EQ(s.logit_bias, (std::vector<std::pair<int32_t, float>>{{3, -100.0f}}));
  EXPECT_EQ(s.top_logprobs, 4);
  EXPECT_EQ(s.min_tokens, 2);
  EXPECT_EQ(s.banned_until_min, (std::vector<int32_t>{9, 257}));
  EXPECT_EQ(p.params.stop_ids, (std::vector<int32_t>{9, 257}));
  EXPECT_EQ(p.params.stops, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(p.params.n, 2);
  EXPECT_EQ(p.params.priority, 4);
  EXPECT_EQ(p.params.cache_salt, "s");
  EXPECT_TRUE(p.params.echo && p.params.stream && p.params.include_usage &&
              p.params.return_token_ids);
}

TEST(Prepare, DefaultsComeFromTheModel) {
  ServedModel model = fake_model(nullptr);
  model.defaults.temperature = 0.6f;
  model.defaults.top_k = 20;
  auto shared = std::make_shared<const ServedModel>(std::move(model));
  Prepared p =
      prepare_chat(parse_json(R"({"messages": [{"role": "user", "content": "x"}]})"), shared);
  EXPECT_EQ(p.params.sample.temperature, 0.6f);
  EXPECT_EQ(p.params.sample.top_k, 20);
  EXPECT_EQ(p.params.max_tokens, 4096 - static_cast<int64_t>(p.prompts[0].ids.size()));
  EXPECT_EQ(p.params.stop_ids, (std::vector<int32_t>{257}));
  EXPECT_EQ(p.prompts[0].ids.front(), 256);  // <|im_start|> is one token
}

// "Tom" and the tokens of " and": a tokenizer may drop a space at the start of a text.
TEST(Prepare, CompletionsContinueTheirPrompt) {
  auto continues = [](const char* body) { return completion(body).prompts.at(0).continues; };
  EXPECT_TRUE(continues(R"({"prompt": "ab"})"));
  EXPECT_TRUE(continues(R"({"prompt": [97]})"));
  EXPECT_FALSE(continues(R"({"prompt": [256]})"));
  auto model = std::make_shared<const ServedModel>(fake_model(nullptr));
  auto chat_continues = [&](const char* body) {
    return prepare_chat(parse_json(body), model).prompts.at(0).continues;
  };
  EXPECT_FALSE(chat_continues(R"({"messages": [{"role": "user", "content": "x"}]})"));
  EXPECT_TRUE(chat_continues(R"({"messages": [{"role": "user", "content": "x"},
    {"role": "assistant", "content": "y"}], "continue_final_message": true})"));
}

TEST(Prepare, BothNamesOfTheTokenLimitCount) {
  auto limit = [](const char* extra) {
    std::string json = R"({"messages": [{"role": "user", "content": "x"}])";
    return *prepare_chat(parse_json(json + extra + "}"), model_without_engine()).params.max_tokens;
  };
  EXPECT_EQ(limit(R"(,"max_tokens": 5)"), 5);
  EXPECT_EQ(limit(R"(,"max_completion_tokens": 6)"), 6);
  EXPECT_EQ(limit(R"(,"max_completion_tokens": 6, "max_tokens": 5)"), 5);
}

TEST(Prepare, AModelWithoutATemplateHasNoChat) {
  ServedModel model = fake_model(nullptr);
  model.chat_template = nullptr;
  auto shared = std::make_shared<const ServedModel>(std::move(model));
  try {
    prepare_chat(parse_json(R"({"messages": [{"role": "user", "content": "x"}]})"), shared);
    FAIL();
  } catch (const ApiError& e) {
    EXPECT_EQ(e.status(), 400);
    EXPECT_EQ(e.error_code(), "no_chat_template");
  }
}

TEST(Prepare, ToolsTakeTheTemplateMadeForThem) {
  ServedModel model = fake_model(nullptr);
  model.chat_template = std::make_shared<const ChatTemplate>(ChatTemplate::parse("default"));
  model.tool_template =
      std::make_shared<const ChatTemplate>(ChatTemplate::parse("tools{% if tools %}!{% endif %}"));
  auto prompt = [&](const char* extra) {
    std::string json = R"({"messages": [{"role": "user", "content": "x"}])";
    Value body = parse_json(json + extra + "}");
    Fields fields(body);
    return render_chat(fields, model).plain();
  };
  const char* tools = R"(,"tools": [{"type": "function", "function": {"name": "f"}}])";
  EXPECT_EQ(prompt(""), "default");
  EXPECT_EQ(prompt(R"(,"tools": [])"), "default");
  EXPECT_EQ(prompt(tools), "tools!");
  EXPECT_EQ(prompt((std::string(tools) + R"(,"tool_choice": "none")").c_str()), "default");
  model.tool_template = nullptr;  // the model would not see them
  EXPECT_THROW(prompt(tools), ApiError);
}

TEST(Choice, SplitsTokensAnyWayWithTheSameResult) {
  Prepared p =
      completion(R"({"prompt": "x", "stop": ["ow", "zzz"], "logprobs": 0, "max_tokens": 40})");
  std::string text = "h\xc3\xa9llo \xe2\x98\x83 how are";
  for (size_t step = 1; step <= text.size(); ++step) {
    Choice choice(0, p, p.prompts[0]);
    Piece whole;
    size_t at = 0;
    while (!choice.done() && at < text.size()) {
      Delta delta;
      delta.position = static_cast<int32_t>(at);
      for (size_t i = 0; i < step && at < text.size(); ++i, ++at) {
        delta.ids.push_back(static_cast<unsigned char>(text[at]));
        delta.logprobs.push_back(-static_cast<float>(at));
      }
      Piece piece = choice.push(delta, {});
      whole.text += piece.text;
      for (ScoredToken& token : piece.scored) whole.scored.push_back(token);
    }
    EXPECT_TRUE(choice.done());
    EXPECT_EQ(whole.text, "h\xc3\xa9llo \xe2\x98\x83 h");
    EXPECT_EQ(choice.stopped_at(), 14);
    EXPECT_EQ(choice.tokens(), 14);
    EXPECT_EQ(whole.scored.size(), 12u);  // without the two of the stop string
    EXPECT_EQ(whole.scored.back().logprob, -11.0f);
    Delta late;
    late.ids = {'x'};
    EXPECT_EQ(choice.push(late, {}).text, "");
  }
}

TEST(Choice, HeldTextComesOutAtTheEnd) {
  Prepared p = completion(R"({"prompt": "x", "stop": ["abcdef"]})");
  Choice choice(0, p, p.prompts[0]);
  Delta delta;
  delta.ids = {'a', 'b', 'c', 0xe2, 0x98};
  EXPECT_EQ(choice.push(delta, {}).text, "");
  Delta end;
  end.finish = Finish::kLength;
  Piece piece = choice.push(end, {});
  EXPECT_EQ(piece.text, "abc\xef\xbf\xbd");
  EXPECT_STREQ(piece.finish, "length");
}

// Generations without sockets: a turn whose bytes the test reads.
struct Line {
  std::shared_ptr<http::Turn> turn = std::make_shared<http::Turn>(
      http::Request{}, http::Turn::Traits{.extra_headers = "", .max_unsent = size_t{1} << 30},
      [] {});
  std::string bytes;
  bool poll() {
    std::string more;
    http::Turn::Taken taken = turn->take(more);
    bytes += more;
    return taken.done;
  }
  bool wait() {
    for (int i = 0; i < 10000; ++i, std::this_thread::sleep_for(std::chrono::milliseconds(1)))
      if (poll()) return true;
    return false;
  }
};

struct GenerationTest : ::testing::Test {
  std::shared_ptr<FakeClient> client = std::make_shared<FakeClient>();
  std::shared_ptr<const ServedModel> model =
      std::make_shared<const ServedModel>(fake_model(client));
  std::shared_ptr<GenerationStats> stats = std::make_shared<GenerationStats>();
  std::unique_ptr<WorkerPool> pool = std::make_unique<WorkerPool>(3);

  void start(Line& line, const std::string& json) {
    Prepared request = prepare_completion(parse_json(json), model);
    auto shape = make_completion_shape({.model = "fake", .fingerprint = "", .created = 1},
                                       *model->tokenizer);
    std::make_shared<Generation>(std::make_shared<http::Exchange>(line.turn), std::move(request),
                                 std::move(shape), *pool, stats)
        ->start();
  }
  bool settles() {
    for (int i = 0; i < 10000; ++i, std::this_thread::sleep_for(std::chrono::milliseconds(1)))
      if (stats->running == 0 && client->running() == 0) return true;
    return false;
  }
};

TEST_F(GenerationTest, ManyAtOnceWithClientsLeavingAtAnyMoment) {
  constexpr int kCount = 60;
  std::vector<Line> lines(kCount);
  std::vector<std::thread> leavers;
  for (int i = 0; i < kCount; ++i) {
    std::string extra = i % 2 == 0 ? ", \"stream\": true" : "";
    extra += i % 5 == 0 ? ", \"stop\": \"a\"" : "";
    start(lines[i], R"({"prompt": "go", "n": 2, "max_tokens": 200)" + extra + "}");
    if (i % 3 == 0)
      leavers.emplace_back([turn = lines[i].turn, i] {
        std::this_thread::sleep_for(std::chrono::microseconds(i * 50));
        turn->set_gone();
      });
  }
  for (std::thread& leaver : leavers) leaver.join();
  for (int i = 0; i < kCount; ++i) {
    if (i % 3 == 0) continue;
    ASSERT_TRUE(lines[i].wait()) << i;
    EXPECT_EQ(lines[i].bytes.find("\"error\""), std::string::npos) << lines[i].bytes;
  }
  EXPECT_TRUE(settles());
}

// A client that sends no more is probed with a space before a line: never after the last one.
TEST_F(GenerationTest, NothingFollowsTheLastLineOfAHalfClosedClient) {
  std::string bytes;
  bool probing = false;
  std::shared_ptr<http::Turn> turn;
  turn = std::make_shared<http::Turn>(
      http::Request{}, http::Turn::Traits{.extra_headers = "", .max_unsent = size_t{1} << 20},
      [&] {  // sends at once, and probes after everything that was sent
        if (std::exchange(probing, true)) return;
        std::string more;
        turn->take(more);
        bytes += more;
        turn->probe();
        turn->take(more);
        bytes += more;
        probing = false;
      });
  Prepared request =
      prepare_completion(parse_json(R"({"prompt": "[say a b]", "stream": true})"), model);
  auto shape = make_ollama_shape({.model = "fake", .fingerprint = "", .created = 1},
                                 {false, "fake"}, *model->tokenizer);
  std::make_shared<Generation>(std::make_shared<http::Exchange>(turn), std::move(request),
                               std::move(shape), *pool, stats)
      ->start();
  ASSERT_TRUE(settles());
  EXPECT_NE(bytes.find("1\r\n \r\n"), std::string::npos) << bytes;
  EXPECT_TRUE(bytes.ends_with("}\n\r\n0\r\n\r\n")) << bytes;
}

TEST_F(GenerationTest, AStopStringEndsTheEnginesWork) {
  Line line;
  start(line, R"({"prompt": "[say hello world]", "stop": "wor", "max_tokens": 50})");
  ASSERT_TRUE(line.wait());
  EXPECT_NE(line.bytes.find("\"hello \""), std::string::npos);
  EXPECT_TRUE(settles());
  EXPECT_EQ(client->stopped, 1);
  EXPECT_EQ(client->last_stop_position(), 9);
}

TEST_F(GenerationTest, TheEngineIsAskedForWhatTheRequestSays) {
  Line line;
  start(
      line,
      R"({"prompt": "abc", "echo": true, "logprobs": 2, "max_tokens": 3, "priority": -2, "cache_salt": "t"})");
  ASSERT_TRUE(line.wait());
  RequestSpec spec = client->last_spec();
  EXPECT_EQ(spec.max_tokens, 3);
  EXPECT_EQ(spec.priority, -2);
  EXPECT_EQ(spec.cache_salt, "t");
  EXPECT_TRUE(spec.score_prompt);
  EXPECT_EQ(spec.sample->top_logprobs, 2);
  EXPECT_EQ(spec.deadline, kNever);
  EXPECT_TRUE(settles());
}

TEST_F(GenerationTest, AFullQueueThrowsAndLeavesNothing) {
  Line line;
  try {
    start(line, R"({"prompt": ["[hold]", "[hold]", "[full]"]})");
    FAIL();
  } catch (const Error& e) {
    http::Response answer = error_answer(e);
    EXPECT_EQ(answer.status, 429);
    ASSERT_EQ(answer.headers.size(), 1u);
    EXPECT_EQ(answer.headers[0].first, "Retry-After");
  }
  EXPECT_TRUE(settles());
  EXPECT_EQ(client->cancelled, 2);
}

TEST(Errors, StatusFollowsTheCode) {
  auto status = [](ErrorCode code) { return error_answer(Error(code, "x")).status; };
  EXPECT_EQ(status(ErrorCode::kInvalidArgument), 400);
  EXPECT_EQ(status(ErrorCode::kOutOfRange), 400);
  EXPECT_EQ(status(ErrorCode::kNotFound), 404);
  EXPECT_EQ(status(ErrorCode::kResourceExhausted), 429);
  EXPECT_EQ(status(ErrorCode::kUnavailable), 503);
  EXPECT_EQ(status(ErrorCode::kInternal), 500);
  EXPECT_EQ(error_answer(std::runtime_error("secret")).body.find("secret"), std::string::npos);
}

}  // namespace
}  // namespace tokamak::openai
