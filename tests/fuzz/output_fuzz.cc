// A model's answer, whole and in pieces, through the parsers of thoughts and calls: the result must
// be the same. The first byte selects the format.
#include <cstdint>
#include <string>

#include "base/json.h"
#include "tests/fuzz/fuzzer.h"
#include "text/output/parser.h"

using namespace tokamak;

namespace {

std::string parse_in_pieces(const OutputSpec& spec, std::string_view text, size_t piece) {
  auto parser = make_output_parser(spec, 1);
  std::string thoughts, answer, calls;
  auto add = [&](const OutputParser::Result& result) {
    thoughts += result.thoughts;
    answer += result.text;
    for (const ToolCall& call : result.calls)
      calls += (call.id.empty() ? "" : "\x01" + call.name + "\x02") + call.arguments;
  };
  for (size_t at = 0; at < text.size(); at += piece) add(parser->push(text.substr(at, piece)));
  add(parser->finish());
  return thoughts + '\x03' + answer + '\x03' + calls;
}

}  // namespace

TK_FUZZER(output) {
  if (size == 0) return 0;
  static const Value tools = parse_json(
      R"([{"function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}}, {"function": {"name": "g"}}])");
  std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t count = tool_formats().size();
  const size_t kind = data[0] % (2 * count + 2);
  const char* thoughts = kind >= count ? "<think>" : "";
  const ToolFormat* format = kind < 2 * count ? &tool_formats()[kind % count] : nullptr;
  OutputSpec spec = output_spec(thoughts, kind == 2 * count ? "<think>" : "", format, &tools);
  std::string whole = parse_in_pieces(spec, text, text.size() + 1);
  for (size_t piece : {1, 3, 7}) fail_if(parse_in_pieces(spec, text, piece) != whole);
  return 0;
}
