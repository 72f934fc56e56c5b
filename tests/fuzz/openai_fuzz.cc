// Client and model output. The first byte selects: a chat or completion body -> a prepared request;
// or a model's text, whole and in pieces, through the parsers of tool calls and reasoning, which
// must give the same result. Anything but Error is a finding.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "serve/fake_client.h"
#include "serve/openai/prepare.h"

using namespace tokamak;

namespace {

void read_body(std::string_view text, bool chat) {
  log::set_level(log::Level::kError);  // unknown fields are logged
  static const auto model = std::make_shared<const ServedModel>(testing::fake_model(nullptr));
  Value body = parse_json(text);
  if (chat)
    openai::prepare_chat(body, model);
  else
    openai::prepare_completion(body, model);
}

// The two streams of an answer: text, and calls or reasoning.
using Streams = std::pair<std::string, std::string>;
void add(Streams& to, const openai::ToolCalls::Result& r) {
  to.first += r.text;
  for (const openai::ToolCall& c : r.calls)
    to.second += (c.id.empty() ? "" : "\x01" + c.name + "\x02") + c.arguments;
}
void add(Streams& to, const openai::ReasoningSplit::Result& r) {
  to.first += r.text;
  to.second += r.reasoning;
}

template <class Parser>
Streams parse(Parser parser, std::string_view text, size_t piece) {
  Streams out;
  for (size_t at = 0; at < text.size(); at += piece) add(out, parser.push(text.substr(at, piece)));
  add(out, parser.finish());
  return out;
}

template <class Parser>
void same_in_pieces(const Parser& parser, std::string_view text) {
  Streams whole = parse(parser, text, text.size() + 1);
  for (size_t piece : {1, 3, 7})
    if (parse(parser, text, piece) != whole) std::abort();
}

void read_answer(std::string_view text, int kind) {
  using enum openai::ToolStyle;
  using enum openai::ReasoningSplit::Start;
  if (kind < 2)
    same_in_pieces(openai::ToolCalls(kind == 0 ? kHermes : kLlama3), text);
  else
    same_in_pieces(openai::ReasoningSplit(kind == 2 ? kMaybe : kInside), text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  int kind = data[0] % 6;
  try {
    if (kind < 2)
      read_body(text, kind == 0);
    else
      read_answer(text, kind - 2);
  } catch (const Error& e) {
    if (e.code() == ErrorCode::kInternal) throw;
  }
  return 0;
}
