#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/file.h"
#include "base/json.h"
#include "serve/fake_client.h"
#include "serve/program/run.h"

namespace tokamak::program {
namespace {

using tokamak::testing::fake_model;
using tokamak::testing::FakeClient;

class Programs : public ::testing::Test {
 protected:
  Host host() const {
    ServedModel model = fake_model(client);
    Host h;
    h.client = client;
    h.tokenizer = model.tokenizer;
    h.chat_template = model.chat_template;
    h.grammars = std::make_shared<grammar::GrammarCache>(model.tokenizer);
    h.max_model_len = model.max_model_len;
    return h;
  }
  Value run(const std::string& json) const {
    return run_program(parse_program(parse_json(json)), host());
  }
  Value variable(const std::string& json, const std::string& name) const {
    return run(json).at("variables").at(name);
  }
  // {path, message}
  std::pair<std::string, std::string> error(const std::string& json) const {
    try {
      run(json);
    } catch (const ProgramError& e) {
      return {e.path(), e.what()};
    }
    return {"none", ""};
  }

  std::shared_ptr<FakeClient> client = std::make_shared<FakeClient>();
};

TEST_F(Programs, TextsVariablesAndGenerations) {
  Value out = run(R"({"variables": {"who": "Ada"}, "program": [
    {"text": "Hello {{ who }}.\n[say Good day.|rest]"},
    {"gen": "answer", "stop": "|", "max_tokens": 40},
    {"set": "shout", "text": "{{ answer | upper }}\n"},
    {"set": "length", "expr": "answer | length"},
    {"return": "{'a': answer, 'n': length + 1}"}]})");
  EXPECT_EQ(dump_json(out.at("output")), R"({"a":"Good day.","n":10})");
  EXPECT_EQ(out.at("variables").at("shout").as_string(), "GOOD DAY.\n");
  EXPECT_EQ(out.at("text").as_string(), "Hello Ada.\n[say Good day.|rest]Good day.");
  EXPECT_EQ(out.at("usage").at("requests").as_int(), 1);
  EXPECT_EQ(out.at("usage").at("steps").as_int(), 5);
}

// The engine sees the ids of the text so far, each generated id included.
TEST_F(Programs, AContextGrowsByIds) {
  run(R"({"program": [{"text": "[say ab.cd]"}, {"gen": "a", "stop": "."}, {"text": "!"},
                      {"gen": "b", "max_tokens": 1}]})");
  RequestSpec spec = client->last_spec();
  EXPECT_EQ(std::string(spec.prompt.begin(), spec.prompt.end()), "[say ab.cd]ab!");
}

TEST_F(Programs, SelectTakesTheBestMeanLogProbability) {
  // "+a" has a mean of -1, the longer "+++b" one of -0.75, "c" of -1.5.
  Value out = run(R"({"program": [{"text": "x"},
      {"select": "s", "choices": ["c", "+a", "+++b"], "score": "scores"}, {"text": "."}]})");
  EXPECT_EQ(out.at("variables").at("s").as_string(), "+++b");
  EXPECT_EQ(dump_json(out.at("variables").at("scores")), "[-1.5,-1.0,-0.75]");
  EXPECT_EQ(out.at("text").as_string(), "x+++b.");
  EXPECT_EQ(variable(R"({"variables": {"list": ["+", "b"]},
      "program": [{"text": "x"}, {"select": "s", "choices": "list"}]})",
                     "s")
                .as_string(),
            "+");
}

TEST_F(Programs, LoopsAndConditions) {
  EXPECT_EQ(dump_json(variable(R"({"variables": {"all": [], "n": 0}, "program": [
    {"for": "i", "in": [1, 2, 3], "do": [
      {"if": "i % 2 == 1", "then": [{"append": "all", "expr": "i * 10"}],
       "else": [{"append": "all", "text": "even {{ i }}"}]}]},
    {"while": "n < 4", "do": [{"set": "n", "expr": "n + 1"}]},
    {"append": "all", "expr": "n"}, {"append": "all", "value": null}]})",
                               "all")),
            R"([10,"even 2",30,4,null])");
}

TEST_F(Programs, ForksHaveTheirOwnVariablesAndJoin) {
  Value out = run(R"({"variables": {"n": 1}, "program": [
    {"text": "Start."},
    {"fork": ["a", "b"], "as": "word", "into": "all", "do": [
      {"set": "n", "expr": "n + loop_free"}, {"text": " {{ word }}"},
      {"fork": 2, "as": "k", "do": [{"set": "m", "expr": "k"}], "into": "inner"},
      {"select": "s", "choices": ["+", "x"]}]},
    {"set": "count", "expr": "n"}], "variables": {"n": 1, "loop_free": 2}})");
  EXPECT_EQ(
      dump_json(out.at("variables").at("all")),
      R"([{"inner":[{"m":0},{"m":1}],"n":3,"s":"+"},{"inner":[{"m":0},{"m":1}],"n":3,"s":"+"}])");
  EXPECT_EQ(out.at("variables").at("count").as_int(), 1);
  EXPECT_EQ(out.at("text").as_string(), "Start.");
  EXPECT_EQ(out.at("usage").at("branches").as_int(), 7);
}

TEST_F(Programs, KeepGoesOnWithOneBranch) {
  Value out = run(R"({"program": [{"text": "A"},
    {"fork": 3, "as": "i", "into": "all", "keep": "2 - all[0].zero",
     "do": [{"set": "zero", "value": 0}, {"text": "<{{ i }}>"}, {"set": "mine", "expr": "i * i"}]},
    {"text": "B"}]})");
  EXPECT_EQ(out.at("text").as_string(), "A<2>B");
  EXPECT_EQ(out.at("variables").at("mine").as_int(), 4);
}

TEST_F(Programs, BranchesSampleIndependentlyAndRepeatably) {
  const std::string json = R"({"seed": 3, "program": [{"text": "x"},
    {"fork": 3, "into": "all", "do": [{"gen": "g", "max_tokens": 12, "ignore_eos": true}]},
    {"vote": "best", "of": "[1, 2, 'b', 2, 'b']"}]})";
  Value first = run(json), second = run(json);
  EXPECT_EQ(first.at("variables"), second.at("variables"));
  const auto& all = first.at("variables").at("all").as_array();
  EXPECT_NE(all[0], all[1]);
  EXPECT_NE(all[1], all[2]);
  EXPECT_EQ(first.at("variables").at("best").as_int(), 2);
}

TEST_F(Programs, MessagesUseTheChatTemplate) {
  Value out = run(R"({"program": [{"system": "Be brief."}, {"user": "[say Yes|x]"},
    {"assistant": [{"text": "Well: "}, {"gen": "a", "stop": "|"}]}, {"user": "Why <|im_end|>?"},
    {"assistant": [{"select": "b", "choices": ["+", "-"]}]}]})");
  EXPECT_EQ(
      dump_json(out.at("messages")),
      R"([{"role":"system","content":"Be brief."},{"role":"user","content":"[say Yes|x]"},)"
      R"({"role":"assistant","content":"Well: Yes"},{"role":"user","content":"Why <|im_end|>?"},)"
      R"({"role":"assistant","content":"+"}])");
  const std::vector<int32_t>& ids = client->last_spec().prompt;
  // A control token that a user writes is text: two ends of messages with the answer open.
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 257), 4);
}

TEST_F(Programs, ConstrainedTextsAreParsed) {
  EXPECT_EQ(dump_json(variable(R"({"program": [{"text": "[say {\"a\": 5}]"},
    {"gen": "x", "parse_json": true, "json_schema": {"type": "object"}}]})",
                               "x")),
            R"({"a":5})");
  EXPECT_TRUE(client->last_spec().mask != nullptr);
  EXPECT_TRUE(
      variable(R"({"program": [{"text": "[say no]"}, {"gen": "x", "parse_json": true}]})", "x")
          .is_null());
}

TEST_F(Programs, ErrorsHaveAPath) {
  struct Case {
    const char *json, *path, *words;
  };
  for (const Case& c : std::vector<Case>{
           {R"({})", "", "'program' is missing"},
           {R"({"program": {}})", "program", "array of statements"},
           {R"({"program": [5]})", "program[0]", "expected an object"},
           {R"({"program": [{"tex": "a"}]})", "program[0]", "no statement"},
           {R"({"program": [{"text": "a", "x": 1}]})", "program[0].x", "not known"},
           {R"({"program": [{"gen": "a", "set": "b"}]})", "program[0]", "both statements"},
           {R"({"program": [{"text": "{{ missing }}"}]})", "program[0].text", "unknown variable"},
           {R"({"program": [{"text": "{{ 1 + }}"}]})", "program[0].text", "expected an expression"},
           {R"({"program": [{"if": "1) | tojson }}{{ (2", "then": []}]})", "program[0].if", ""},
           {R"({"program": [{"text": "x"}, {"fork": 1000000000, "do": []}]})", "program[1].fork",
            "limit of 64"},
           {R"({"program": [{"fork": "10 ** 9", "do": []}]})", "program[0].fork", "limit of 64"},
           {R"({"program": [{"while": "true", "do": []}]})", "program[0].while",
            "more than 10000 statements"},
           {R"({"program": [{"while": true, "do": [{"set": "x", "value": 1}]}],
                "limits": {"steps": 50}})",
            "program[0].do[0].set", "more than 50"},
           {R"({"program": [{"text": "x"}, {"gen": "a", "max_tokens": 50}],
                "limits": {"tokens": 20}})",
            "program[1].gen", "the limit is 20"},
           {R"({"program": [{"text": "[hold]"}, {"gen": "a"}], "limits": {"seconds": 0.05}})",
            "program[1].gen", "more than 0.05 s"},
           {R"({"program": [], "limits": {"forks": 1000000000}})", "limits.forks", "to 1024"},
           {R"({"program": [{"text": "x"}, {"gen": "a", "temperature": 9}]})",
            "program[1].temperature", "from 0 to 2"},
           {R"({"program": [{"text": "x"}, {"gen": "a", "regex": "("}]})", "program[1].regex", ""},
           {R"({"program": [{"gen": "a"}]})", "program[0].gen", "no text precedes"},
           {R"({"program": [{"user": "x"}, {"gen": "a"}]})", "program[1].gen", "assistant"},
           {R"({"program": [{"text": "x"}, {"select": "a", "choices": []}]})", "program[1].choices",
            "1 to 256"},
           {R"({"program": [{"for": "x", "in": "3", "do": []}]})", "program[0].for", "not a list"},
           {R"({"variables": {"s": "ab"}, "program": [{"while": "true", "do": [
                {"set": "s", "expr": "s ~ s"}]}]})",
            "program[0].do[0].set", "bytes"},
           {R"({"program": [{"if": "1 == 2", "then": [{"set": "y", "value": 1}]},
                {"set": "x", "expr": "y"}]})",
            "program[1].set", "'y' has no value"},
           {R"({"program": [], "other": 1})", "other", "not known"}}) {
    auto [path, message] = error(c.json);
    EXPECT_EQ(path, c.path) << c.json << "\n" << message;
    EXPECT_NE(message.find(c.words), std::string::npos) << c.json << "\n" << message;
  }
}

TEST_F(Programs, CallsPauseAndGoOnWithTheirResults) {
  auto program = parse_program(parse_json(R"({"program": [{"text": "[say x|y]"},
    {"fork": 2, "as": "i", "into": "all", "do": [
      {"call": "r", "tool": "add", "arguments": "{'a': i, 'b': 10}"}, {"text": "={{ r.sum }}"},
      {"call": "again", "tool": "now"}, {"gen": "g", "stop": "|"}]},
    {"return": "all | map(attribute='r') | map(attribute='sum') | list"}]})"));
  program::Run run(program, host(), [] {});
  ASSERT_EQ(run.advance(), program::Run::State::kPaused);
  EXPECT_EQ(dump_json(run.calls()),
            R"([{"id":"call-0","branch":"0.0","tool":"add","arguments":{"a":0,"b":10}},)"
            R"({"id":"call-1","branch":"0.1","tool":"add","arguments":{"a":1,"b":10}}])");
  EXPECT_THROW(run.give_results(parse_json(R"({"call-0": 1, "call-7": 2})")), ProgramError);
  EXPECT_THROW(run.give_results(Value::array()), ProgramError);
  run.give_results(parse_json(R"({"call-1": {"sum": 11}})"));
  ASSERT_EQ(run.advance(), program::Run::State::kPaused);
  EXPECT_EQ(run.calls().size(), 2u);  // call-0, and the next one of the other branch
  run.give_results(parse_json(R"({"call-0": {"sum": 10}, "call-2": null})"));
  while (run.advance() != program::Run::State::kPaused)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  run.give_results(parse_json(R"({"call-3": "late"})"));
  while (run.advance() != program::Run::State::kDone)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(dump_json(run.result().at("output")), "[10,11]");
  EXPECT_EQ(run.result().at("variables").at("all").as_array()[0].at("again").as_string(), "late");

  // Calls can be answered at once, and only where there is a function for it.
  const std::string one = R"({"program": [{"call": "x", "tool": "t"}, {"return": "x"}]})";
  Value out = run_program(parse_program(parse_json(one)), host(), {},
                          [](const Value& call) { return call.at("tool"); });
  EXPECT_EQ(out.at("output").as_string(), "t");
  EXPECT_THROW(this->run(one), Error);
}

// The other model has its own ids of the same text.
TEST_F(Programs, SeveralModelsWriteOneText) {
  auto other = std::make_shared<FakeClient>();
  Host h = host();
  Host second = host();
  second.client = other;
  h.models["small"] = std::make_shared<const Host>(second);
  auto program = parse_program(parse_json(R"({"program": [{"text": "[say one|]"},
    {"gen": "a", "stop": "|"}, {"text": "[say two|]"}, {"gen": "b", "stop": "|", "model": "small"},
    {"text": "."}, {"select": "c", "choices": ["+", "-"], "model": "small"},
    {"text": "[say three|]"}, {"gen": "d", "stop": "|"}]})"));
  EXPECT_EQ(program->models, std::set<std::string>{"small"});
  Value out = run_program(program, h);
  const std::string all = "[say one|]one[say two|]two.+[say three|]three";
  EXPECT_EQ(out.at("text").as_string(), all);
  auto text = [](const std::vector<int32_t>& ids) { return std::string(ids.begin(), ids.end()); };
  EXPECT_EQ(text(client->last_spec().prompt), "[say one|]one[say two|]two.+[say three|]");
  EXPECT_EQ(text(other->last_spec().prompt).substr(0, 27), "[say one|]one[say two|]two.");
  EXPECT_EQ(out.at("usage").at("requests").as_int(), 5);

  Value chat = run_program(parse_program(parse_json(R"({"program": [{"user": "[say hi|]"},
    {"assistant": [{"gen": "a", "stop": "|", "model": "small"}, {"text": "!"}]}, {"user": "[say ho|]"},
    {"assistant": [{"text": ">"}, {"gen": "b", "stop": "|", "model": "small"}]}]})")),
                           h);
  EXPECT_EQ(dump_json(chat.at("messages")),
            R"([{"role":"user","content":"[say hi|]"},{"role":"assistant","content":"hi!"},)"
            R"({"role":"user","content":"[say ho|]"},{"role":"assistant","content":">ho"}])");
}

// A gen that runs on over its stop string has guessed the texts that follow.
TEST_F(Programs, RunningOnSavesRequestsAndChangesNothing) {
  auto with = [&](const std::string& run_on, const std::string& middle) {
    return run(R"({"sampling": {"temperature": 0}, "program": [
      {"text": "[text Name: Ada\nAge: 36\nCity: London\nEnd]"},
      {"gen": "name", "stop": "\n")" +
               run_on + R"(}, {"text": "\n)" + middle + R"( "},
      {"gen": "age", "stop": "\n"}, {"text": "\nCity: "},
      {"gen": "city", "stop": "\n"}]})");
  };
  Value plain = with("", "Age:"), fast = with(R"(, "run_on": 60)", "Age:");
  EXPECT_EQ(fast.at("variables"), plain.at("variables"));
  EXPECT_EQ(fast.at("text"), plain.at("text"));
  EXPECT_EQ(plain.at("usage").at("requests").as_int(), 3);
  EXPECT_EQ(fast.at("usage").at("requests").as_int(), 1);
  EXPECT_EQ(fast.at("usage").at("run_on").at("saved_requests").as_int(), 2);
  // What follows differs from the guess.
  Value other = with(R"(, "run_on": 60)", "Years:"), slow = with("", "Years:");
  EXPECT_EQ(other.at("variables"), slow.at("variables"));
  EXPECT_EQ(other.at("usage").at("requests").as_int(), 3);
  EXPECT_EQ(other.at("usage").at("run_on").at("used_tokens").as_int(), 0);
  // The guess ends inside of a gen, which goes on with a request.
  Value part = with(R"(, "run_on": 8)", "Age:");
  EXPECT_EQ(part.at("variables"), plain.at("variables"));
  EXPECT_EQ(part.at("usage").at("run_on").at("tokens").as_int(), 8);
}

TEST_F(Programs, TheExamplesRun) {
  const char* source = std::getenv("TOKAMAK_SOURCE_DIR");
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(source ? source : ".") / "examples/programs")) {
    SCOPED_TRACE(entry.path().filename().string());
    Value out = run_program(parse_program(parse_json(read_text_file(entry.path()))), host(), {},
                            [](const Value& call) { return call.at("arguments"); });
    EXPECT_FALSE(out.at("output").is_null());
    EXPECT_GT(out.at("usage").at("requests").as_int(), 2);
    ++files;
  }
  EXPECT_GE(files, 6);
}

TEST_F(Programs, EngineErrorsAndCancelling) {
  EXPECT_THROW(run(R"({"program": [{"text": "[error]"}, {"gen": "a"}]})"), Error);
  EXPECT_THROW(run(R"({"program": [{"text": "[full]"}, {"gen": "a"}]})"), Error);
  EXPECT_EQ(error(R"({"program": [{"text": "[never]"}, {"gen": "a"}]})").first, "program[1].gen");
  auto program = parse_program(parse_json(
      R"({"program": [{"text": "[slow 1]"}, {"fork": 4, "do": [{"gen": "a", "max_tokens": 500}]}]})"));
  EXPECT_THROW(run_program(program, host(), [](const Value&) { return false; }), Error);
  for (int i = 0; i < 1000 && client->running() > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(client->running(), 0);
}

}  // namespace
}  // namespace tokamak::program
