#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "serve/openai/shape.h"

namespace tokamak::openai {
namespace {

class ChatShape final : public OpenaiShape {
 public:
  ChatShape(ShapeOptions options, const Tokenizer& tokenizer)
      : OpenaiShape(std::move(options), tokenizer) {
    set_names("chatcmpl", "chat.completion", "chat.completion.chunk");
  }

 protected:
  std::string first_chunk(int index, const std::vector<int32_t>* prompt_ids,
                          const Usage* usage) override {
    std::string ids;
    if (prompt_ids != nullptr) ids = ",\"prompt_token_ids\":" + dump_json(ids_value(*prompt_ids));
    return wrap_chunk(fmt::format(R"({{"index":{},"delta":{{"role":"assistant","content":""}},)"
                                  R"("logprobs":null,"finish_reason":null}})",
                                  index),
                      usage, ids);
  }

  bool separate_finish() const override { return true; }

  std::string stream_choice(const Piece& piece) override {
    Value fields = Value::object();
    if (!piece.reasoning.empty()) fields.set("reasoning_content", piece.reasoning);
    if (!piece.text.empty() ||
        (!piece.scored.empty() && piece.calls.empty() && piece.reasoning.empty()))
      fields.set("content", piece.text);
    if (!piece.calls.empty()) fields.set("tool_calls", calls(piece, true));
    std::string delta = dump_json(fields);
    std::string out =
        fmt::format(R"({{"index":{},"delta":{},"logprobs":{},"finish_reason":{})", piece.index,
                    delta, dump_json(logprobs(piece)), dump_json(finish(piece)));
    if (!piece.stop_reason.is_null()) out += ",\"stop_reason\":" + dump_json(piece.stop_reason);
    if (options_.token_ids) out += ",\"token_ids\":" + dump_json(ids_value(piece.ids));
    return out + "}";
  }

  Value whole_choice(const Piece& piece) override {
    Value message = Value::object();
    message.set("role", "assistant");
    message.set("content",
                piece.text.empty() && !piece.calls.empty() ? Value() : Value(piece.text));
    message.set("refusal", Value());
    if (!piece.reasoning.empty()) message.set("reasoning_content", piece.reasoning);
    if (!piece.calls.empty()) message.set("tool_calls", calls(piece, false));
    Value choice = Value::object();
    choice.set("index", piece.index);
    choice.set("message", std::move(message));
    choice.set("logprobs", options_.logprobs ? logprobs(piece, true) : Value());
    choice.set("finish_reason", finish(piece));
    if (!piece.stop_reason.is_null()) choice.set("stop_reason", piece.stop_reason);
    if (options_.token_ids) choice.set("token_ids", ids_value(piece.ids));
    return choice;
  }

  Value top_level_ids(const std::vector<Piece>& choices) override {
    if (choices.empty() || choices[0].prompt_ids == nullptr) return {};
    return ids_value(*choices[0].prompt_ids);
  }

  Value top_level_scores(const std::vector<Piece>& choices) override {
    if (choices.empty() || choices[0].prompt_scores == nullptr) return {};
    return prompt_logprobs(choices[0].prompt_scores->ids, *choices[0].prompt_scores);
  }

 private:
  static Value finish(const Piece& piece) {
    return piece.finish == nullptr ? Value() : Value(piece.finish);
  }

  // In a stream id and name are sent once, since clients concatenate them; the type is repeated for
  // those that validate every delta.
  static Value calls(const Piece& piece, bool stream) {
    Value list = Value::array();
    for (const ToolCall& call : piece.calls) {
      Value entry = Value::object(), function = Value::object();
      if (stream) entry.set("index", call.index);
      if (!call.id.empty()) entry.set("id", call.id);
      entry.set("type", "function");
      if (!call.id.empty()) function.set("name", call.name);
      function.set("arguments", call.arguments);
      entry.set("function", std::move(function));
      list.push(std::move(entry));
    }
    return list;
  }

  Value logprobs(const Piece& piece, bool always = false) const {
    if (piece.scored.empty() && !always) return {};
    Value value = Value::object();
    value.set("content", logprobs_value(piece, options_, tokenizer_));
    value.set("refusal", Value());
    return value;
  }
};

}  // namespace

std::unique_ptr<Shape> make_chat_shape(ShapeOptions options, const Tokenizer& tokenizer) {
  return std::make_unique<ChatShape>(std::move(options), tokenizer);
}

}  // namespace tokamak::openai
