// Answers in every format: what they are taken apart into, however their text is cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>

#include "base/json.h"
#include "base/rng.h"
#include "text/output/parser.h"

namespace tokamak {
namespace {

const Value& tools() {
  static const Value list = parse_json(R"([
    {"type": "function", "function": {"name": "f", "parameters": {"properties": {
      "a": {"type": "string"}, "n": {"type": "integer"}}}}},
    {"type": "function", "function": {"name": "g"}},
    {"type": "function"}, {"function": {"name": 7}}, 3])");
  return list;
}

struct Parsed {
  std::string thoughts, text;
  std::vector<std::string> calls;  // name and arguments
  bool operator==(const Parsed&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Parsed& parsed) {
  out << "thoughts '" << parsed.thoughts << "' text '" << parsed.text << "'";
  for (const std::string& call : parsed.calls) out << " call '" << call << "'";
  return out;
}

Parsed parse(const OutputSpec& spec, const std::vector<std::string>& pieces,
             std::vector<ToolCall>* all = nullptr) {
  auto parser = make_output_parser(spec, 1);
  Parsed parsed;
  std::vector<ToolCall> calls;
  auto add = [&](OutputParser::Result&& result) {
    parsed.thoughts += result.thoughts;
    parsed.text += result.text;
    append_calls(calls, std::move(result.calls));
  };
  for (const std::string& piece : pieces) add(parser->push(piece));
  add(parser->finish());
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i].index, static_cast<int>(i));
    EXPECT_FALSE(calls[i].id.empty());
    parsed.calls.push_back(calls[i].name + calls[i].arguments);
  }
  EXPECT_EQ(parser->any_calls(), !calls.empty());
  if (all != nullptr) *all = calls;
  return parsed;
}

struct Case {
  const char* format;  // "": no tools
  std::string text;
  Parsed expected;
};

OutputSpec spec_of(const Case& c) {
  const bool thinks = c.text.find("think>") != std::string::npos;
  const ToolFormat* format = find_tool_format(c.format);
  std::string chat_template = thinks ? "<think>" : "";
  if (c.text.find("[THINK]") != std::string::npos) chat_template = "[THINK]";
  if (c.text.find("<|START_THINKING|>") != std::string::npos) chat_template = "<|START_THINKING|>";
  if (std::string_view(c.format) == "harmony-plain") chat_template = "<|channel|><|message|>";
  return output_spec(chat_template, "", format, &tools());
}

std::vector<Case> hermes() {
  const std::string one =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"<b>\"}}\n</tool_call>";
  return {
      {"", one, {"", one, {}}},
      {"hermes", "plain < text", {"", "plain < text", {}}},
      {"hermes", "trailing <tool", {"", "trailing <tool", {}}},
      {"hermes", one, {"", "", {R"(f{"a": "<b>"})"}}},
      {"hermes",
       "Let me see.\n" + one + "\n" + one + "\n",
       {"", "Let me see.", {R"(f{"a": "<b>"})", R"(f{"a": "<b>"})"}}},
      {"hermes", "<tool_call>not json</tool_call>", {"", "<tool_call>not json</tool_call>", {}}},
      {"hermes", "<tool_call>{\"name\": \"g\"}", {"", "", {"g{}"}}},
      {"hermes", "<tool_call>{\"name\": ", {"", "<tool_call>{\"name\": ", {}}},
      {"hermes", "a <tool_call>x</tool_call> b", {"", "a <tool_call>x</tool_call> b", {}}},
      {"hermes",
       R"(<tool_call>{"arguments": {"a": [1, {"</tool_call>": "\"}"}]}, "id": 7, "name": "g"}</tool_call>)",
       {"", "", {R"(g{"a": [1, {"</tool_call>": "\"}"}]})"}}},
      {"hermes",
       R"(<tool_call>{"name": "g", "arguments": "{\"a\": 1}"}</tool_call>.)",
       {"", ".", {R"(g{"a": 1})"}}},
      {"hermes", R"(<tool_call>{"name": "g", "arguments": null})", {"", "", {"g{}"}}},
      {"hermes", R"(<tool_call>{"name": "g", "arguments": {"a": "x)", {"", "", {R"(g{"a": "x)"}}},
      {"hermes",
       R"(<tool_call>{"name": "g", "arguments": {"a": 1}</tool_call> ok)",
       {"", " ok", {R"(g{"a": 1})"}}},
      {"hermes",
       R"(<tool_call>{"name": 7, "arguments": {}}</tool_call>)",
       {"", R"(<tool_call>{"name": 7, "arguments": {}}</tool_call>)", {}}},
      {"hermes",
       "<tool_call>{\"name\": \"f\"}\n<tool_call>{\"name\": \"g\"}</tool_call>",
       {"", "", {"f{}", "g{}"}}},
      {"hermes", "<tool_call>{}</tool_call>", {"", "<tool_call>{}</tool_call>", {}}},
      {"hermes", " <think> hm </thi </think>\n\n" + one, {"hm </thi", "", {R"(f{"a": "<b>"})"}}},
      {"", "<think>a</think> b", {"a", "b", {}}},
      {"", "x <think>a</think>", {"", "x <think>a</think>", {}}},
  };
}

std::vector<Case> llama() {
  return {
      {"llama3", R"({"name": "f", "parameters": {"x": 1}})", {"", "", {R"(f{"x": 1})"}}},
      {"llama3", R"(<|python_tag|>{"name": "f", "parameters": {}})", {"", "", {"f{}"}}},
      {"llama3",
       R"({"name": "f", "parameters": {"x": 1}}; {"name": "g", "parameters": {}})",
       {"", "", {R"(f{"x": 1})", "g{}"}}},
      {"llama3", R"( {"city": "Paris"} )", {"", R"( {"city": "Paris"} )", {}}},
      {"llama3", "<|python_tag|>print(1)", {"", "<|python_tag|>print(1)", {}}},
      {"llama3", R"({"name": "f", "parameters": {}} so)", {"", " so", {"f{}"}}},
      {"llama3", "{ is a brace", {"", "{ is a brace", {}}},
      {"llama3", "hello {\"name\": 1}", {"", "hello {\"name\": 1}", {}}},
  };
}

std::vector<Case> with_names() {
  const std::string sep = "<｜tool▁sep｜>", begin = "<｜tool▁call▁begin｜>",
                    end = "<｜tool▁call▁end｜>", kimi = "<|tool_call_argument_begin|>";
  return {
      {"mistral",
       R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": "]"}}, {"name": "g", "arguments": {}}])",
       {"", "", {R"(f{"a": "]"})", "g{}"}}},
      {"mistral",
       R"(Well. [TOOL_CALLS]f[ARGS]{"a": "x"}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{})",
       {"", "Well.", {R"(f{"a": "x"})", "g{}"}}},
      {"mistral", "[TOOL_CALLS]f{\"n\": 1}", {"", "", {R"(f{"n": 1})"}}},
      {"mistral", "[TOOL_CALLS] [1, 2]", {"", "[TOOL_CALLS] [1, 2]", {}}},
      {"mistral", "[THINK]so[/THINK]An [array]", {"so", "An [array]", {}}},
      {"deepseek",
       "Sure.\n<｜tool▁calls▁begin｜>" + begin + "function" + sep +
           "f\n```json\n{\"a\": \"x\"}\n```" + end + "\n" + begin + "function" + sep +
           "g\n```json\n{}\n```" + end + "<｜tool▁calls▁end｜>",
       {"", "Sure.", {R"(f{"a": "x"})", "g{}"}}},
      {"deepseek",
       "<｜tool▁calls▁begin｜>" + begin + "f" + sep + "{\"a\": \"}<\"}" + end + begin + "g" + sep +
           "{}" + end + "<｜tool▁calls▁end｜>",
       {"", "", {R"(f{"a": "}<"})", "g{}"}}},
      {"deepseek", "<think>t</think>ok", {"t", "ok", {}}},
      {"deepseek", begin + "<｜", {"", begin + "<｜", {}}},
      {"kimi_k2",
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0" + kimi +
           "{\"a\": 1}<|tool_call_end|><|tool_call_begin|>functions.g:1" + kimi +
           " {} <|tool_call_end|><|tool_calls_section_end|>",
       {"", "", {R"(f{"a": 1})", "g{}"}}},
  };
}

std::vector<Case> with_tags() {
  return {
      {"qwen3_coder",
       "I "
       "call.\n<tool_call>\n<function=f>\n<parameter=a>\n12\n\"x\"\n</"
       "parameter>\n<parameter=n>\n5\n"
       "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</"
       "tool_call>",
       {"", "I call.", {R"(f{"a": "12\n\"x\"", "n": 5})", "g{}"}}},
      {"qwen3_coder",
       "<tool_call><function=g><parameter=l>[1, {\"k\": true}]</parameter><parameter=s>word "
       "é</parameter>"
       "<parameter=b>True</parameter></function></tool_call>",
       {"", "", {R"(g{"l": [1, {"k": true}], "s": "word é", "b": true})"}}},
      {"qwen3_coder",
       "<function=f><parameter=a></parameter></function>",
       {"", "", {R"(f{"a": ""})"}}},
      {"qwen3_coder", "1 <functional= 2", {"", "1 <functional= 2", {}}},
      {"glm45",
       "Hm.\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>n</arg_key>\n"
       "<arg_value>2</arg_value>\n</tool_call>\n<tool_call>g</tool_call> end",
       {"", "Hm. end", {R"(f{"a": "1", "n": 2})", "g{}"}}},
      {"glm45",
       "<think>x</think>\n<tool_call>what is this</tool_call",
       {"x", "<tool_call>what is this</tool_call", {}}},
      {"glm4", "f\n{\"a\": \"x\"}", {"", "", {R"(f{"a": "x"})"}}},
      {"glm4", "first\n{\"a\": 1}", {"", "first\n{\"a\": 1}", {}}},
      {"glm4", "An answer.", {"", "An answer.", {}}},
      {"command_r",
       R"(<|START_ACTION|>[
    {"tool_call_id": "0", "tool_name": "f", "parameters": {"a": "x"}},
    {"tool_call_id": "1", "tool_name": "g", "parameters": {}}
]<|END_ACTION|>)",
       {"", "", {R"(f{"a": "x"})", "g{}"}}},
      {"command_r",
       "<|START_THINKING|>I will.<|END_THINKING|><|START_RESPONSE|>Done.<|END_RESPONSE|>",
       {"I will.", "Done.", {}}},
      {"command_r",
       "Action:```json\n[{\"tool_name\": \"f\", \"parameters\": {\"n\": 1}}]\n```",
       {"", "", {R"(f{"n": 1})"}}},
  };
}

std::vector<Case> others() {
  return {
      {"granite",
       R"(<|tool_call|>[{"name": "f", "arguments": {"a": "x"}}, {"name": "g", "arguments": {}}])",
       {"", "", {R"(f{"a": "x"})", "g{}"}}},
      {"granite", "<think>t</think><response>r</response>", {"t", "r", {}}},
      {"phi4",
       R"(<|tool_call|>[{"name": "f", "arguments": {"n": 1}}]<|/tool_call|>)",
       {"", "", {R"(f{"n": 1})"}}},
      {"phi4", R"(functools[{"name": "f", "arguments": {"n": 1}}])", {"", "", {R"(f{"n": 1})"}}},
      {"gemma",
       "<start_function_call>call:f{a:<escape>x, {y}\"<escape>,n:1}<end_function_call>"
       "<start_function_call>call:g{o:{k:[1,<escape>z<escape>],b:true}}<end_function_call>",
       {"", "", {R"(f{"a": "x, {y}\"", "n": 1})", R"(g{"o": {"k": [1, "z"], "b": true}})"}}},
      {"gemma4", "<|tool_call>call:f{a:<|\"|>x<|\"|>}<tool_call|>", {"", "", {R"(f{"a": "x"})"}}},
      {"gemma4", "<|tool_call>f()<tool_call|>", {"", "<|tool_call>f()", {}}},
      {"llama4",
       R"([f(a="it's \"x\"\n", n=-1.5), g(l=[1, 'two', None, (3,)], d={'k': True, "e": {}}, s='''a'b''')])",
       {"",
        "",
        {R"(f{"a": "it's \"x\"\n", "n": -1.5})",
         R"(g{"l": [1, "two", null, [3]], "d": {"k": true, "e": {}}, "s": "a'b"})"}}},
      {"llama4", "<|python_start|>[g()]<|python_end|>", {"", "", {"g{}"}}},
      {"llama4", "[f(a='\\x41\\u00e9\\q')]", {"", "", {R"(f{"a": "\u0041\u00e9\\q"})"}}},
      {"llama4_json",
       R"(<|python_start|><|python_end|>{"name": "f", "parameters": {"a": 1}})",
       {"", "", {R"(f{"a": 1})"}}},
      {"llama4_json",
       R"({"name": "f", "parameters": {}}{"name": "g", "parameters": {}})",
       {"", "", {"f{}", "g{}"}}},
      {"llama4_json", "[f(a=1)]", {"", "[f(a=1)]", {}}},
      {"llama4", "[1, 2] is a list", {"", "[1, 2] is a list", {}}},
      {"llama4", "[unknown(a=1)]", {"", "[unknown(a=1)]", {}}},
      {"llama4", "[f(1)]", {"", "[f(1)]", {}}},
      {"harmony",
       "<|channel|>analysis<|message|>I think.<|end|><|start|>assistant<|channel|>commentary"
       " to=functions.f <|constrain|>json<|message|>{\"a\": \"x\"}<|call|>",
       {"I think.", "", {R"(f{"a": "x"})"}}},
      {"harmony",
       "<|channel|>commentary<|message|>First.<|end|><|start|>assistant "
       "to=functions.g<|channel|>commentary"
       "<|message|><|call|><|start|>assistant<|channel|>final<|message|>Second.",
       {"", "First.\nSecond.", {"g{}"}}},
      {"harmony", "no message < at all", {"", "no message < at all", {}}},
      {"harmony", "asses", {"", "asses", {}}},
      {"harmony", "<|channel|>fin", {"", "", {}}},
      {"harmony-plain",
       "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B<|"
       "end|>"
       "<|start|>assistant<|channel|>final<|message|>C <| D",
       {"A\nB", "C <| D", {}}},
  };
}

std::vector<Case> cases() {
  std::vector<Case> all = hermes();
  for (const auto& list : {llama(), with_names(), with_tags(), others()})
    all.insert(all.end(), list.begin(), list.end());
  return all;
}

TEST(Output, EveryCutGivesTheSameResult) {
  Rng rng(7);
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.format);
    const OutputSpec spec = spec_of(c);
    EXPECT_EQ(parse(spec, {c.text}), c.expected) << c.text;
    std::vector<std::string> bytes;
    for (char byte : c.text) bytes.emplace_back(1, byte);
    ASSERT_EQ(parse(spec, bytes), c.expected) << c.text << " byte by byte";
    for (size_t cut = 1; cut < c.text.size(); ++cut)
      ASSERT_EQ(parse(spec, {c.text.substr(0, cut), c.text.substr(cut)}), c.expected)
          << c.text << " cut at " << cut;
    for (int round = 0; round < 20; ++round) {
      std::vector<std::string> pieces;
      for (size_t at = 0; at < c.text.size();) {
        size_t size = 1 + rng.below(9);
        pieces.push_back(c.text.substr(at, size));
        at += size;
      }
      ASSERT_EQ(parse(spec, pieces), c.expected) << c.text << " round " << round;
    }
  }
}

TEST(Output, TruncatedAnswersAreTheSameForEveryCut) {
  for (const Case& c : cases()) {
    const OutputSpec spec = spec_of(c);
    for (size_t size = 0; size < c.text.size(); ++size) {
      std::vector<std::string> bytes;
      for (char byte : c.text.substr(0, size)) bytes.emplace_back(1, byte);
      ASSERT_EQ(parse(spec, bytes), parse(spec, {c.text.substr(0, size)}))
          << c.format << ": " << c.text.substr(0, size);
    }
  }
}

TEST(Output, ArgumentsOfEveryCaseAreJson) {
  for (const Case& c : cases())
    for (const std::string& call : c.expected.calls)
      if (call.back() == '}') {
        EXPECT_NO_THROW(parse_json(call.substr(1))) << call;
      }
}

TEST(Output, ArgumentsArriveAsTheyAreWritten) {
  auto parser = make_output_parser(output_spec("", "", find_tool_format("hermes"), nullptr), 1);
  EXPECT_TRUE(parser->push(R"(<tool_call>{"name": "f", "argum)").calls.empty());
  auto first = parser->push(R"(ents": {"a": )").calls, second = parser->push(R"("x", "b)").calls,
       third = parser->push(R"(": 1}}</tool_call>)").calls;
  ASSERT_TRUE(first.size() == 1 && second.size() == 1 && third.size() == 1);
  EXPECT_EQ(first[0].name, "f");
  EXPECT_EQ(first[0].arguments, R"({"a": )");
  EXPECT_EQ(second[0].arguments, R"("x", "b)");
  EXPECT_EQ(third[0].arguments, R"(": 1})");
  EXPECT_TRUE(second[0].id.empty() && second[0].name.empty());

  parser = make_output_parser(output_spec("", "", find_tool_format("qwen3_coder"), &tools()), 1);
  parser->push("<tool_call><function=f><parameter=a>\nsome");
  EXPECT_EQ(parser->push(" text").calls.at(0).arguments, " text");
}

TEST(Output, IdsHaveTheFormThatTemplatesAccept) {
  auto ids = [](const char* format, const std::string& text) {
    std::vector<ToolCall> calls;
    parse(output_spec("", "", find_tool_format(format), &tools()), {text}, &calls);
    std::vector<std::string> out;
    for (const ToolCall& call : calls) out.push_back(call.id);
    return out;
  };
  auto nine = ids("mistral", R"([TOOL_CALLS][{"name": "f"}, {"name": "g"}])");
  ASSERT_EQ(nine.size(), 2u);
  EXPECT_NE(nine[0], nine[1]);
  for (const std::string& id : nine) {
    EXPECT_EQ(id.size(), 9u);
    EXPECT_TRUE(std::all_of(id.begin(), id.end(), [](unsigned char c) { return std::isalnum(c); }));
  }
  EXPECT_EQ(ids("kimi_k2", "<|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{}"),
            std::vector<std::string>{"functions.f:3"});
  EXPECT_EQ(ids("hermes", R"(<tool_call>{"name": "f"})").at(0).substr(0, 5), "call_");
}

// Pieces of the templates of published models.
TEST(Output, TheTemplateNamesTheFormat) {
  const std::pair<const char*, const char*> known[] = {
      {"<tool_call>\\n{\"name\": <function-name>, \"arguments\": "
       "<args-json-object>}\\n</tool_call>",
       "hermes"},
      {"{{ '<tool_call>\\n<function=' + tool_call.name + '>\\n' }}<parameter=", "qwen3_coder"},
      {"<tool_call>{function-name}\\n<arg_key>{arg-key-1}</arg_key>", "glm45"},
      {"{%- if tools %}<|observation|>", "glm4"},
      {"[AVAILABLE_TOOLS]{{ tools }}[/AVAILABLE_TOOLS][TOOL_CALLS]", "mistral"},
      {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "deepseek"},
      {"<|tool_calls_section_begin|><|tool_call_begin|>", "kimi_k2"},
      {"<|START_ACTION|>[ {{ tool_calls }} ]<|END_ACTION|>", "command_r"},
      {"<|start_of_role|>assistant_tool_call<|end_of_role|><|tool_call|>", "granite"},
      {"'<|tool|>' + message['tools'] + '<|/tool|>'", "phi4"},
      {"<start_function_declaration> tools <start_function_call>call:", "gemma"},
      {"tools <|tool_call>call:", "gemma4"},
      {"tools: use exact format [func_name1(param1=value1)] <|header_start|>", "llama4"},
      {"tools {{ '<|python_start|>' }}", "llama4_json"},
      {"tools {{ '<|header_start|>assistant' }}", "llama4_json"},
      {"tools {{ '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}", "mistral_args"},
      {"builtin_tools {{ '<|python_tag|>' }}", "llama3"},
      {"<|start|>assistant<|channel|>analysis<|message|> tools", "harmony"},
  };
  for (const auto& [text, name] : known) {
    const ToolFormat* format = tool_format_of(text);
    ASSERT_NE(format, nullptr) << text;
    EXPECT_EQ(format->name, name) << text;
    EXPECT_EQ(find_tool_format(name), format);
  }
  EXPECT_EQ(tool_format_of("{{ messages[0].content }}"), nullptr);
  EXPECT_EQ(tool_format_of("tools: {{ tools }}"), nullptr);
  EXPECT_EQ(find_tool_format("x"), nullptr);
}

TEST(Output, ThoughtsMayBeginInThePrompt) {
  OutputSpec spec =
      output_spec("... <think> ...", "<|im_start|>assistant\n<think>\n", nullptr, nullptr);
  EXPECT_EQ(parse(spec, {"so", " </think>", "\n\nyes"}), (Parsed{"so", "yes", {}}));
  EXPECT_EQ(output_spec("no marks", "<think>", nullptr, nullptr).start, ThoughtStart::kOff);
}

}  // namespace
}  // namespace tokamak
