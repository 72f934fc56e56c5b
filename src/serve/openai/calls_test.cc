// What tool_choice and strict tools ask of an answer.
#include <gtest/gtest.h>

#include <map>

#include "base/json.h"
#include "serve/fake_client.h"
#include "serve/openai/api_error.h"
#include "serve/openai/generation.h"

namespace tokamak::openai {
namespace {

using testing::fake_model;

TEST(Prepare, StrictToolsConstrainCallsOnly) {
  ServedModel model = fake_model(nullptr);
  model.grammars = std::make_shared<grammar::GrammarCache>(model.tokenizer);
  auto shared = std::make_shared<const ServedModel>(std::move(model));
  auto prepared = [&](const std::string& strict, const std::string& more) {
    return prepare_chat(
        parse_json(R"({"messages": [{"role": "user", "content": "x"}], "tools": [
        {"type": "function", "function": {"name": "f", "strict": )" +
                   strict + R"(, "parameters": {"type": "object"}}}])" + more + "}"),
        shared);
  };
  EXPECT_NE(prepared("true", "").params.call_grammar, nullptr);
  EXPECT_EQ(prepared("true", "").params.grammar, nullptr);
  EXPECT_EQ(prepared("false", "").params.call_grammar, nullptr);
  EXPECT_EQ(prepared("true", R"(, "tool_choice": "none")").params.call_grammar, nullptr);
  EXPECT_NE(prepared("true", R"(, "tool_choice": "required")").params.grammar, nullptr);
  EXPECT_THROW(prepared("true", R"(, "guided_regex": "a")"), ApiError);
}

// With the tools f and g, of which g is strict.
Prepared with_choice(const std::string& choice) {
  ServedModel model = fake_model(nullptr);
  model.grammars = std::make_shared<grammar::GrammarCache>(model.tokenizer);
  return prepare_chat(parse_json(R"({"messages": [{"role": "user", "content": "x"}], "tools": [
      {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
      {"type": "function", "function": {"name": "g", "strict": true}}], "tool_choice": )" +
                                 choice + "}"),
                      std::make_shared<const ServedModel>(std::move(model)));
}

// Spellings of other APIs, and the tools that are left.
TEST(Prepare, FormsOfToolChoice) {
  const auto call = [](const char* name) {
    return fmt::format("<tool_call>\n{{\"name\": \"{}\", \"arguments\": {{}}}}\n</tool_call>",
                       name);
  };
  struct Case {
    const char* choice;
    bool forced, f, g;
  };
  for (const Case& c : {Case{R"("any")", true, true, true},
                        Case{R"({"type": "function", "name": "g"})", true, false, true},
                        Case{R"({"type": "allowed_tools", "allowed_tools": {"mode": "required",
                             "tools": [{"type": "function", "function": {"name": "f"}}]}})",
                             true, true, false},
                        Case{R"({"type": "allowed_tools", "mode": "required",
                             "tools": [{"type": "function", "name": "g"}, {"name": "f"}]})",
                             true, true, true},
                        Case{R"({"type": "allowed_tools", "allowed_tools": {"mode": "auto",
                             "tools": [{"type": "function", "function": {"name": "f"}}]}})",
                             false, false, false},
                        Case{R"({"type": "allowed_tools", "allowed_tools": {
                             "tools": [{"type": "function", "function": {"name": "g"}}]}})",
                             false, false, true}}) {
    SCOPED_TRACE(c.choice);
    const Prepared p = with_choice(c.choice);
    ASSERT_EQ(p.params.grammar != nullptr, c.forced);
    if (!c.forced) {
      EXPECT_EQ(p.params.call_grammar != nullptr, c.g);  // g is strict
      continue;
    }
    EXPECT_EQ(p.params.grammar->matches(call("f")), c.f);
    EXPECT_EQ(p.params.grammar->matches(call("g")), c.g);
  }
}

TEST(Prepare, WrongToolChoicesAreNamed) {
  for (const auto& [choice, param] : std::vector<std::pair<std::string, std::string>>{
           {R"({"type": "allowed_tools"})", "tool_choice.tools"},
           {R"({"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": [{}]}})",
            "tool_choice.allowed_tools.mode"},
           {R"({"type": "allowed_tools", "allowed_tools": {"tools": []}})",
            "tool_choice.allowed_tools.tools"},
           {R"({"type": "allowed_tools", "allowed_tools": {"tools": [{"name": "h"}]}})",
            "tool_choice.allowed_tools.tools[0]"},
           {R"({"type": "allowed_tools", "allowed_tools": 5})", "tool_choice.allowed_tools"},
           {R"({"type": "function", "name": "h"})", "tool_choice"},
           {R"("some")", "tool_choice"}}) {
    try {
      with_choice(choice);
      ADD_FAILURE() << choice << " is accepted";
    } catch (const ApiError& e) {
      EXPECT_EQ(e.param(), param) << choice << ": " << e.what();
    }
  }
}

// A call as each format writes it; @ is the argument.
const std::map<std::string_view, std::string> kCalls = {
    {"hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": @}}\n</tool_call>"},
    {"llama3", R"({"name": "f", "parameters": {"x": @}})"},
    {"mistral", R"([TOOL_CALLS][{"name": "f", "arguments": {"x": @}}])"},
    {"granite", R"(<|tool_call|>[{"name": "f", "arguments": {"x": @}}])"},
    {"phi4", R"(<|tool_call|>[{"name": "f", "arguments": {"x": @}}])"},
    {"command_r",
     R"(<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {"x": @}}])"},
    {"kimi_k2", R"(<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x": @})"},
    {"deepseek", R"(<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": @})"},
    {"qwen3_coder", "<function=f>\n<parameter=x>\n@\n</parameter>\n</function>"},
    {"glm45", "<tool_call>f<arg_key>x</arg_key><arg_value>@</arg_value></tool_call>"},
    {"glm4", "f\n{\"x\": @}"},
    {"gemma", "<start_function_call>call:f{x:@}"},
    {"gemma4", "<|tool_call>call:f{x:@}"},
    {"llama4", "[f(x=@)]"},
    {"llama4_json", R"({"name": "f", "parameters": {"x": @}})"},
    {"mistral_args", R"([TOOL_CALLS]f[ARGS]{"x": @})"}};

// Where marks may be control tokens, a forced call is plain JSON; strict calls follow the mark.
TEST(Prepare, CallsInOtherFormats) {
  for (const ToolFormat& format : tool_formats()) {
    SCOPED_TRACE(format.name);
    ServedModel model = fake_model(nullptr);
    model.grammars = std::make_shared<grammar::GrammarCache>(model.tokenizer);
    model.tool_format = &format;
    auto shared = std::make_shared<const ServedModel>(std::move(model));
    auto prepared = [&](const std::string& choice) {
      return prepare_chat(
          parse_json(R"({"messages": [{"role": "user", "content": "x"}], "tool_choice": )" +
                     choice + R"(, "tools": [{"type": "function", "function":
          {"name": "f", "strict": true, "parameters": {"$defs": {"n": {"type": "integer"}},
           "type": "object", "properties": {"x": {"$ref": "#/$defs/n"}}, "required": ["x"]}}}]})"),
          shared);
    };
    if (format.name == "harmony") {  // thoughts and the call in two spellings; then also text
      Prepared forced = prepared(R"("required")"), free = prepared(R"("auto")");
      ASSERT_EQ(forced.params.messages.size(), 3u);
      EXPECT_EQ(free.params.messages.size(), 5u);
      const MessageForm& call = forced.params.messages[1];
      EXPECT_EQ(call.header, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>");
      EXPECT_TRUE(call.grammar->matches(R"({"x": 3})"));
      EXPECT_FALSE(call.grammar->matches(R"({"x": "3"})"));
      EXPECT_EQ(forced.output.tools, &format);
      continue;
    }
    bool own = format.name == "hermes" || format.name == "llama3" || format.name == "llama4_json";
    Prepared forced = prepared(R"("required")");
    ASSERT_NE(forced.params.grammar, nullptr);
    EXPECT_EQ(forced.output.tools->name, own ? format.name : "llama3");
    EXPECT_EQ(forced.params.grammar->matches(R"({"name": "f", "parameters": {"x": 3}})"),
              format.name != "hermes");
    EXPECT_FALSE(forced.params.grammar->matches(R"({"name": "f", "parameters": {"x": "3"}})"));
    Prepared free = prepared(R"("auto")");
    EXPECT_EQ(free.output.tools, &format);
    ASSERT_NE(free.params.call_grammar, nullptr);
    EXPECT_EQ(free.params.warning, "");
    for (const char* value : {"3", "3.5", "\"3\"", "true", ""}) {
      std::string text = kCalls.at(format.name);
      text.replace(text.find('@'), 1, value);
      EXPECT_EQ(free.params.call_grammar->matches(text), std::string_view(value) == "3") << text;
    }
  }
}

// Arguments are objects, also where the parameters may be something else.
TEST(Prepare, ArgumentsAreObjects) {
  const std::string x = R"("properties": {"x": {"type": "integer"}}, "required": ["x"])";
  for (const ToolFormat& format : tool_formats()) {
    if (format.name == "harmony") continue;
    ServedModel model = fake_model(nullptr);
    model.grammars = std::make_shared<grammar::GrammarCache>(model.tokenizer);
    model.tool_format = &format;
    auto shared = std::make_shared<const ServedModel>(std::move(model));
    auto calls = [&](const std::string& parameters) {
      return prepare_chat(parse_json(R"({"messages": [{"role": "user", "content": "x"}], "tools": [
          {"type": "function", "function": {"name": "f", "strict": true, "parameters": )" +
                                     parameters + "}}]}"),
                          shared)
          .params.call_grammar;
    };
    for (const std::string& parameters :
         {R"({"type": ["array", "object", "null"], )" + x + "}",
          R"({"anyOf": [{"type": "null"}, {"type": "object", )" + x + "}]}",
          R"({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/p",
              "definitions": {"p": {"type": ["null", "object"], )" +
              x + "}}}"}) {
      SCOPED_TRACE(fmt::format("{}: {}", format.name, parameters));
      const auto grammar = calls(parameters);
      const std::string call = kCalls.at(format.name), object = R"({"x": @})";
      std::string valid = call;
      valid.replace(valid.find('@'), 1, "3");
      EXPECT_TRUE(grammar->matches(valid));
      const size_t at = call.find(object);
      if (at == call.npos) continue;
      for (const char* other : {"null", "[]", "[3]", "3"}) {
        EXPECT_FALSE(grammar->matches(std::string(call).replace(at, object.size(), other)));
      }
    }
    EXPECT_THROW(calls(R"({"type": ["array", "null"]})"), ApiError);
    EXPECT_THROW(calls(R"({"type": "array"})"), ApiError);
    try {
      calls(R"({"type": "object", "properties": {"x": {"items": {}, "uniqueItems": true}}})");
      ADD_FAILURE() << "uniqueItems is accepted";
    } catch (const ApiError& e) {
      EXPECT_NE(std::string_view(e.what()).find(", #/properties/x/uniqueItems: "),
                std::string_view::npos)
          << e.what();
      EXPECT_NE(std::string_view(e.what()).find("function 'f': "), std::string_view::npos)
          << e.what();
    }
  }
}

// Where the marks of a JSON format are control tokens, calls are written with these tokens.
TEST(Prepare, MarksOfCallsAsControlTokens) {
  TokenizerSpec spec = testing::byte_tokenizer()->spec();
  for (const char* mark : {"<tool_call>", "</tool_call>"}) {
    AddedToken token;
    token.id = static_cast<int32_t>(spec.vocab_size());
    token.content = mark;
    token.special = true;
    spec.added_tokens.push_back(token);
  }
  ServedModel model = fake_model(nullptr);
  model.tokenizer = std::make_shared<Tokenizer>(std::move(spec));
  model.grammars = std::make_shared<grammar::GrammarCache>(model.tokenizer);
  auto shared = std::make_shared<const ServedModel>(std::move(model));
  const std::string call = R"({"name": "f", "arguments": {}})", control = "\xFF";
  for (bool forced : {true, false}) {
    Prepared p = prepare_chat(
        parse_json(R"({"messages": [{"role": "user", "content": "x"}], "tool_choice": ")" +
                   std::string(forced ? "required" : "auto") +
                   R"(", "tools": [{"type": "function", "function": {"name": "f", "strict": true,
                      "parameters": {"type": "object", "additionalProperties": false}}}]})"),
        shared);
    const auto& grammar = forced ? p.params.grammar : p.params.call_grammar;
    ASSERT_NE(grammar, nullptr);
    const std::string mark = (forced ? control : "") + "<tool_call>\n";
    EXPECT_TRUE(grammar->matches(mark + call + "\n" + control + "</tool_call>"));
    EXPECT_FALSE(grammar->matches(mark + call + "\n</tool_call>"));
  }
}

// A format that is not known is an error in strict tools, if they may be called; not in others.
TEST(Prepare, AStrictToolLeavesOthersAsTheyAre) {
  const std::string a = R"({"type": "function", "function": {"name": "a"}})",
                    b = R"({"type": "function", "function": {"name": "b"}})";
  struct Case {
    std::string choice;
    const char *strict_format, *other_format;
    bool rejected;
  };
  const Case cases[] = {{R"("required")", "date", "color", false},
                        {R"("required")", "color", "date", true},
                        {b, "color", "color", false},
                        {a, "date", "color", false},
                        {a, "color", "date", true}};
  for (const ToolFormat& format : tool_formats()) {
    ServedModel model = fake_model(nullptr);
    model.grammars = std::make_shared<grammar::GrammarCache>(model.tokenizer);
    model.tool_format = &format;
    auto shared = std::make_shared<const ServedModel>(std::move(model));
    auto tool = [](const char* name, bool strict, const char* string_format) {
      return fmt::format(
          R"({{"type": "function", "function": {{"name": "{}", "strict": {}, "parameters": {{
              "properties": {{"x": {{"type": "string", "format": "{}"}}}}, "required": ["x"]}}}}}})",
          name, strict, string_format);
    };
    for (const Case& c : cases) {
      SCOPED_TRACE(fmt::format("{} {} {}", format.name, c.choice, c.strict_format));
      auto prepare = [&] {
        return prepare_chat(
            parse_json(fmt::format(R"({{"messages": [{{"role": "user", "content": "x"}}],
                                        "tool_choice": {}, "tools": [{}, {}]}})",
                                   c.choice, tool("a", true, c.strict_format),
                                   tool("b", false, c.other_format))),
            shared);
      };
      if (c.rejected) {
        EXPECT_THROW(prepare(), ApiError);
        continue;
      }
      Prepared p = prepare();
      if (p.params.grammar == nullptr) continue;  // Harmony has messages instead
      EXPECT_EQ(p.params.grammar->notes().size(), c.choice == a ? 0u : 1u);
      if (format.name == "hermes") continue;  // written differently
      auto matches = [&](const char* name, const char* x) {
        return p.params.grammar->matches(
            fmt::format(R"({{"name": "{}", "parameters": {{"x": "{}"}}}})", name, x));
      };
      EXPECT_EQ(matches("a", "2024-01-02"), c.choice != b);
      EXPECT_FALSE(matches("a", "red"));
      EXPECT_EQ(matches("b", "red"), c.choice != a);
    }
  }
}

}  // namespace
}  // namespace tokamak::openai
