// Answers questions about grammars, one JSON object per line, for oracles in Python:
//   {"schema": ... | "grammar": "..." | "regex": "...", "texts": [...], "walks": 5, "seed": 1}
//   -> {"matches": [true, ...], "walks": ["{...}", ...]} or {"error": "..."}, with "compile_ms"
// {"calls": "FORMAT", "tools": [...], ...}: the calls of a format. Then "parsed" has what the
// reader of this format makes of each text and walk: [[name, arguments], ...], or null if text is
// left. With "masks": N also N random walks of tokens, each [[token, [allowed tokens], may end],
// ...]: the token is what was taken next, -1 at the end. {"vocabulary": true} gives the tokens'
// bytes.
#include <ctime>
#include <iostream>
#include <random>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "text/grammar/call_grammar.h"
#include "text/grammar/grammar_cache.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/matcher.h"
#include "text/output/parser.h"

namespace tokamak::grammar {
namespace {

Ir grammar_of(const Value& question) {
  if (const Value* format = question.find("calls")) {
    Value tools = Value::array();
    for (const Value& tool : question.at("tools").as_array()) {
      const Value& function = tool.at("function");
      tools.push(
          Value::Object{{"name", function.at("name")}, {"parameters", function.at("parameters")}});
    }
    return call_grammar(format->as_string(), tools, {}, false);
  }
  if (const Value* schema = question.find("schema")) return json_schema_grammar(*schema);
  bool regex = question.has("regex");
  return parse_grammar({regex ? Kind::kRegex : Kind::kGrammar,
                        question.at(regex ? "regex" : "grammar").as_string()});
}

// Bytes, words and punctuation: tokens that cross the borders of rules.
std::shared_ptr<const Vocabulary> walk_vocabulary() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* text : {"\", \"",
                           "\":",
                           "\": \"",
                           "\"}",
                           "\"]",
                           "},{",
                           " \"",
                           "{\"",
                           "[\"",
                           ", ",
                           "true",
                           "false",
                           "null",
                           "name",
                           "a b",
                           "\\n",
                           "\\u0",
                           "\xC3\xA9",
                           "\xF0\x9F\x98\x80",
                           "12",
                           "-1",
                           "0.",
                           "e+",
                           "2024",
                           "-0",
                           "http",
                           "://",
                           "@x.org",
                           "\n  ",
                           "</parameter>",
                           "\n</parameter>\n",
                           "</arg_value>",
                           "<escape>",
                           "<|\"|>"})
    tokens.emplace_back(text);
  return std::make_shared<Vocabulary>(tokens);
}

// A random text of the grammar. After some tokens it prefers what ends the text.
bool walk(const std::shared_ptr<const Grammar>& grammar, std::mt19937& rng, std::string& text) {
  const Vocabulary& vocabulary = grammar->vocabulary();
  Matcher matcher(grammar);
  text.clear();
  size_t free = 5 + rng() % 60;
  for (size_t step = 0; step < free + 400; ++step) {
    if (matcher.finished() || (matcher.accepting() && (step > free || rng() % 8 == 0))) return true;
    std::vector<uint32_t> mask(vocabulary.words(), 0);
    matcher.fill_mask(mask);
    std::vector<int32_t> allowed, likely;
    for (int32_t id = 0; id < static_cast<int32_t>(vocabulary.size()); ++id) {
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) == 0) continue;
      allowed.push_back(id);
      const char first = vocabulary.bytes(id)[0];
      bool ends = id == '"' || id == '}' || id == ']' || id == ')' || (id >= 256 && first == '<');
      if (step > free ? ends : id >= 'a' && (id <= 'z' || id >= 256)) likely.push_back(id);
    }
    if (allowed.empty()) return false;
    const auto& from = likely.empty() || rng() % 6 == 0 ? allowed : likely;
    int32_t id = from[rng() % from.size()];
    text += vocabulary.bytes(id);
    if (!matcher.accept(id)) fail(ErrorCode::kInternal, "a token of the mask is not accepted");
  }
  return false;
}

// The mask of every state on a random way through the grammar.
Value mask_walk(const std::shared_ptr<const Grammar>& grammar, std::mt19937& rng) {
  const Vocabulary& vocabulary = grammar->vocabulary();
  Matcher matcher(grammar);
  Value out = Value::array();
  for (size_t step = 0; step < 60; ++step) {
    std::vector<uint32_t> mask(vocabulary.words(), 0);
    matcher.fill_mask(mask);
    Value::Array allowed;
    std::vector<int32_t> likely;  // one token in four is any of the allowed ones
    for (int32_t id = 0; id < static_cast<int32_t>(vocabulary.size()); ++id) {
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) == 0) continue;
      allowed.emplace_back(id);
      if (id >= 256 || id == '"' || id == '}' || id == ']' || id == ',') likely.push_back(id);
    }
    int32_t taken = -1;
    if (!allowed.empty())
      taken = likely.empty() || rng() % 4 == 0
                  ? static_cast<int32_t>(allowed[rng() % allowed.size()].as_int())
                  : likely[rng() % likely.size()];
    out.push(Value::Array{taken, Value(std::move(allowed)), matcher.accepting()});
    if (taken < 0) break;
    if (!matcher.accept(taken)) fail(ErrorCode::kInternal, "a token of the mask is not accepted");
  }
  return out;
}

Value parsed_calls(const Value& question, const std::string& text) {
  const ToolFormat* format = find_tool_format(question.at("calls").as_string());
  auto parser = make_output_parser(output_spec("", "", format, &question.at("tools")), /*seed=*/1);
  OutputParser::Result all = parser->push(text), last = parser->finish();
  append_calls(all.calls, std::move(last.calls));
  all.text += last.text;
  if (!all.text.empty()) return Value();
  Value out = Value::array();
  for (const ToolCall& call : all.calls) out.push(Value::Array{call.name, call.arguments});
  return out;
}

Value vocabulary_value(const Vocabulary& vocabulary) {
  Value tokens = Value::array();
  for (int32_t id = 0; id < static_cast<int32_t>(vocabulary.size()); ++id) {
    Value bytes = Value::array();
    for (unsigned char byte : vocabulary.bytes(id)) bytes.push(static_cast<int64_t>(byte));
    tokens.push(std::move(bytes));
  }
  return tokens;
}

double cpu_ms() { return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

Value answer(const Value& question) {
  static const auto vocabulary = walk_vocabulary();
  Value out = Value::object();
  if (question.has("vocabulary")) {
    out.set("vocabulary", vocabulary_value(*vocabulary));
    return out;
  }
  const double begin = cpu_ms();
  try {
    auto grammar = std::make_shared<Grammar>(grammar_of(question), vocabulary);
    out.set("compile_ms", cpu_ms() - begin);
    Value matches = Value::array(), walks = Value::array();
    if (const Value* texts = question.find("texts"))
      for (const Value& text : texts->as_array()) matches.push(grammar->matches(text.as_string()));
    std::mt19937 rng(static_cast<uint32_t>(question.get_int("seed", 1)));
    std::string text;
    for (int64_t i = 0; i < question.get_int("walks", 0); ++i)
      if (walk(grammar, rng, text)) walks.push(text);
    Value masks = Value::array();
    for (int64_t i = 0; i < question.get_int("masks", 0); ++i) masks.push(mask_walk(grammar, rng));
    if (question.has("calls")) {
      Value parsed = Value::array();
      for (const Value& one : question.at("texts").as_array())
        parsed.push(parsed_calls(question, one.as_string()));
      for (const Value& one : walks.as_array())
        parsed.push(parsed_calls(question, one.as_string()));
      out.set("parsed", std::move(parsed));
    }
    out.set("masks", std::move(masks));
    out.set("matches", std::move(matches));
    out.set("walks", std::move(walks));
  } catch (const Error& e) {
    out.set("compile_ms", cpu_ms() - begin);
    out.set("error", e.what());
    out.set("code", static_cast<int64_t>(e.code()));
  }
  return out;
}

}  // namespace
}  // namespace tokamak::grammar

int main() {
  std::string line;
  while (std::getline(std::cin, line))
    std::cout << tokamak::dump_json(tokamak::grammar::answer(tokamak::parse_json(line))) << "\n"
              << std::flush;
  return 0;
}
