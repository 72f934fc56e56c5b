// Masks of strict tools in the formats that do not write a call as one JSON value.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "serve/call_mask.h"
#include "serve/fake_client.h"
#include "tests/grammar/mask_bits.h"
#include "text/grammar/grammar_cache.h"
#include "text/output/formats.h"

namespace tokamak {
namespace {

using grammar::GrammarCache;
using grammar::Kind;

// A tokenizer with the marks of a format as control tokens, from 259 on.
CallMaskOptions call_format(const char* format, std::vector<std::string> controls,
                            const char* parameters) {
  TokenizerSpec spec = testing::byte_tokenizer()->spec();
  for (const std::string& mark : controls) {
    AddedToken token;
    token.id = static_cast<int32_t>(spec.vocab_size());
    token.content = mark;
    token.special = true;
    spec.added_tokens.push_back(token);
  }
  CallMaskOptions options;
  options.tokenizer = std::make_shared<Tokenizer>(std::move(spec));
  const grammar::CallSyntax& syntax = *grammar::find_call_syntax(format);
  options.begin = {syntax.start, std::string(syntax.mark), {"add", "sub"}, {}};
  for (std::string_view open : find_tool_format(format)->opens)
    if (open != syntax.mark) options.begin.others.emplace_back(open);
  grammar::GrammarSource source{Kind::kCalls, fmt::format(R"([{{"name": "add", "parameters": {}}},
                                               {{"name": "sub", "parameters": null}}])",
                                                          parameters)};
  source.choices = std::move(controls);
  source.format = format;
  options.grammar = GrammarCache(options.tokenizer).get(source);
  options.end_ids = grammar_end_ids(*options.tokenizer, {});
  return options;
}
constexpr const char* kAB =
    R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x"]}},
        "required": ["a"]})";

// Names are rejected only where the reader of the format would not read them back.
TEST(CallFormats, NamesThatCannotBeWritten) {
  struct Case {
    const char *format, *name;
    bool valid;
  };
  const Case cases[] = {
      {"qwen3_coder", "a b", true},      {"qwen3_coder", "a>b", false},
      {"qwen3_coder", "", false},        {"glm45", "a>b", true},
      {"glm45", "a<b", false},           {"glm45", " a", false},
      {"glm4", "get.weather-1", true},   {"glm4", "a\nb", false},
      {"glm4", "function", false},       {"glm4", "functions", true},
      {"glm4", "functions.a", false},    {"gemma", "a\"b", true},
      {"gemma", "a{b", false},           {"gemma4", "a{b", false},
      {"llama4", "get.weather-1", true}, {"llama4", "a b", false},
      {"llama4", "a(b", false},          {"kimi_k2", "functions.a:1", true},
      {"kimi_k2", "a<b", false},         {"deepseek", "function", true},
      {"deepseek", "wetter_für", true},  {"deepseek", "a:1", false},
      {"mistral_args", "a b", true},     {"mistral_args", "a[b", false},
      {"mistral_args", "a:1", false},    {"mistral_args", "function", false},
  };
  auto error_of = [](const char* format, const std::string& name) -> std::string {
    Value tools = Value::array();
    tools.push(Value::Object{{"name", name}, {"parameters", Value()}});
    try {
      grammar::call_grammar(format, tools, {}, true);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  for (const Case& c : cases) {
    const std::string error = error_of(c.format, c.name);
    EXPECT_EQ(error.empty(), c.valid) << c.format << ' ' << c.name << ": " << error;
    EXPECT_EQ(error.find("the name cannot be written") != std::string::npos, !c.valid) << error;
  }
  EXPECT_EQ(error_of("llama4", std::string(256, 'a')), "");
  EXPECT_NE(error_of("llama4", std::string(257, 'a')), "");
}

// The readers take words of at most 256 characters.
TEST(CallFormats, NumbersHaveFewDigits) {
  const char* number = R"({"type": "object", "properties": {"a": {"type": "number"}}})";
  const std::string digits(40, '3');
  for (auto [format, begin] :
       {std::pair("llama4", "[add(a=0."), {"gemma", "<start_function_call>call:add{a:0."}}) {
    CallMask mask(call_format(format, {}, number));
    EXPECT_TRUE(allows(allowed_after(mask, ids_of(begin + digits.substr(1))), '3')) << format;
    EXPECT_FALSE(allows(allowed_after(mask, ids_of(begin + digits)), '3')) << format;
  }
}

TEST(CallFormats, MarksOfAllFormats) {
  const auto marks = grammar::call_marks();
  for (const char* mark : {"<parameter=", "</function>", "</arg_key>", "<arg_value>",
                           "</tool_call>", "<escape>", "<|\"|>", "[ARGS]", "<｜tool▁sep｜>"})
    EXPECT_EQ(std::count(marks.begin(), marks.end(), mark), 1) << mark;
  EXPECT_EQ(marks.size(), 13u);
}

TEST(CallFormats, MarksMayBeControlTokens) {
  CallMask mask(call_format("gemma4", {"<|tool_call>", "<|\"|>"}, kAB));
  auto call = [](std::string_view text, std::vector<int32_t> more = {}) {
    std::vector<int32_t> ids = ids_of("hm");
    ids.push_back(259);
    for (int32_t id : ids_of(text)) ids.push_back(id);
    ids.insert(ids.end(), more.begin(), more.end());
    return ids;
  };
  EXPECT_TRUE(allows(allowed_after(mask, {}), 260));
  EXPECT_EQ(allowed_after(mask, call("")), ids_of("c"));
  EXPECT_EQ(allowed_after(mask, call("call:")), ids_of("as"));
  EXPECT_EQ(allowed_after(mask, call("call:add{a:1,b:")), (std::vector<int32_t>{260}));
  EXPECT_EQ(allowed_after(mask, call("call:add{a:1,b:", {260})), ids_of("x"));
  EXPECT_EQ(allowed_after(mask, call("call:add{a:1,b:", {260, 'x'})), (std::vector<int32_t>{260}));
  EXPECT_TRUE(allows(allowed_after(mask, call("call:add{a:1,b:", {260, 'x', 260, '}'})), kEnd));
  EXPECT_FALSE(allows(allowed_after(mask, call("call:sub{z:", {260})), 259));
}

TEST(CallFormats, ANameAndAMark) {
  CallMask mask(call_format("mistral_args", {"[TOOL_CALLS]", "[ARGS]"}, kAB));
  auto call = [](std::string_view name, std::string_view arguments) {
    std::vector<int32_t> ids = {259};
    for (int32_t id : ids_of(name)) ids.push_back(id);
    ids.push_back(260);
    for (int32_t id : ids_of(arguments)) ids.push_back(id);
    return ids;
  };
  EXPECT_EQ(allowed_after(mask, {259}), ids_of("as"));
  EXPECT_EQ(allowed_after(mask, {259, 'a', 'd', 'd'}), (std::vector<int32_t>{260}));
  EXPECT_TRUE(allows(allowed_after(mask, call("add", "{\"a\": ")), '1'));
  EXPECT_FALSE(allows(allowed_after(mask, call("add", "{\"a\": ")), '"'));
  EXPECT_TRUE(allows(allowed_after(mask, call("add", "{\"a\": 1}")), 259));
}

TEST(CallFormats, ANameAtTheBeginning) {
  CallMask mask(call_format("glm4", {}, kAB));
  std::vector<int32_t> first = allowed_after(mask, {});
  EXPECT_TRUE(allows(first, 'a') && allows(first, 'x') && allows(first, kEnd));
  EXPECT_TRUE(allows(allowed_after(mask, ids_of("add")), 's'));
  EXPECT_TRUE(allows(allowed_after(mask, ids_of("add")), '\n'));
  EXPECT_FALSE(allows(allowed_after(mask, ids_of("add")), '{'));  // the template has a line break
  EXPECT_TRUE(allows(allowed_after(mask, ids_of("ad")), '{'));
  EXPECT_EQ(allowed_after(mask, ids_of("add\n")), ids_of("{"));
  EXPECT_EQ(allowed_after(mask, ids_of("\nadd"), ids_of("\n")), ids_of("{"));
  EXPECT_FALSE(allows(allowed_after(mask, ids_of("add\n{\"a\": ")), '"'));
  EXPECT_TRUE(allows(allowed_after(mask, ids_of("add\n{\"a\": 1}")), kEnd));
  EXPECT_TRUE(allows(allowed_after(mask, ids_of("adds\n")), 'x'));
  EXPECT_FALSE(allows(allowed_after(mask, ids_of("functions.add")), '\n'));
}

TEST(CallFormats, AListAtTheBeginning) {
  CallMask mask(call_format("llama4", {"<|python_start|>"}, kAB));
  EXPECT_TRUE(allows(allowed_after(mask, ids_of("[")), '1'));
  EXPECT_TRUE(allows(allowed_after(mask, ids_of("[1, 2](")), 'x'));
  EXPECT_EQ(allowed_after(mask, ids_of("[add(")), ids_of("a"));
  std::vector<int32_t> marked = ids_of("[add(a=");
  marked.insert(marked.begin(), 259);
  EXPECT_EQ(allowed_after(mask, marked), ids_of("-0123456789"));
  EXPECT_EQ(allowed_after(mask, ids_of("[add(a=1), sub(b=[None]), add(a=2, b=")), ids_of("\"'"));
  EXPECT_EQ(allowed_after(mask, ids_of("<|python_start|>[add(a=")), ids_of("-0123456789"));
  // Another list may follow, but not one that the grammar does not allow.
  EXPECT_EQ(allowed_after(mask, ids_of("[add(a=1)]; [add(")), ids_of("a"));
  EXPECT_FALSE(allows(allowed_after(mask, ids_of("[add(a=1)]; [ add")), '('));
  EXPECT_TRUE(allows(allowed_after(mask, ids_of("[add(a=1)] so")), '('));
}

}  // namespace
}  // namespace tokamak
