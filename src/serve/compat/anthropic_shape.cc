// Answers of Anthropic's Messages API.
#include <fmt/format.h>

#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "serve/compat/anthropic.h"

namespace tokamak::openai {
namespace {

Value anthropic_usage(const Usage& usage) {
  Value value = Value::object();
  value.set("input_tokens", usage.prompt_tokens - usage.cached_tokens);
  value.set("cache_creation_input_tokens", 0);
  value.set("cache_read_input_tokens", usage.cached_tokens);
  value.set("output_tokens", usage.completion_tokens);
  return value;
}

struct Ending {
  Value reason, sequence;
};

Ending ending_of(const Piece& piece) {
  std::string_view finish = piece.finish == nullptr ? "stop" : piece.finish;
  if (finish == "length") return {"max_tokens", {}};
  if (finish == "tool_calls") return {"tool_use", {}};
  if (piece.stop_reason.is_string()) return {"stop_sequence", piece.stop_reason};
  return {"end_turn", {}};
}

Value thinking_block(std::string text) {
  return Value::Object{{"type", "thinking"}, {"thinking", std::move(text)}, {"signature", ""}};
}

Value text_block(std::string text) {
  return Value::Object{{"type", "text"}, {"text", std::move(text)}};
}

Value tool_block(const ToolCall& call, Value input) {
  return Value::Object{
      {"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", std::move(input)}};
}

class AnthropicShape final : public Shape {
 public:
  explicit AnthropicShape(ShapeOptions options) : Shape(std::move(options)) {
    id_ = new_id("msg_");
  }

  http::StreamHead head() const override {
    http::StreamHead head;
    head.ping = "event: ping\ndata: {\"type\": \"ping\"}\n\n";
    return head;
  }

  void begin(std::string& out, int, const std::vector<int32_t>*, const Usage& usage) override {
    Value message = this->message(Value::array(), {}, usage);
    send(out, "message_start", {{"message", std::move(message)}});
  }

  void piece(std::string& out, const Piece& piece, const Usage&) override {
    if (!piece.reasoning.empty()) {
      open(out, Kind::kThinking, thinking_block(""));
      delta(out, {{"type", "thinking_delta"}, {"thinking", piece.reasoning}});
    }
    if (!piece.text.empty()) {
      open(out, Kind::kText, text_block(""));
      delta(out, {{"type", "text_delta"}, {"text", piece.text}});
    }
    for (const ToolCall& call : piece.calls) {
      if (!call.id.empty()) {
        close(out);
        open(out, Kind::kTool, tool_block(call, Value::object()));
      }
      if (!call.arguments.empty())
        delta(out, {{"type", "input_json_delta"}, {"partial_json", call.arguments}});
    }
    if (piece.finish != nullptr) ending_ = ending_of(piece);
  }

  void end(std::string& out, const Usage& usage) override {
    close(out);
    send(out, "message_delta",
         {{"delta",
           Value::Object{{"stop_reason", ending_.reason}, {"stop_sequence", ending_.sequence}}},
          {"usage", anthropic_usage(usage)}});
    send(out, "message_stop", {});
  }

  void broken(std::string& out, const http::Response& error) override {
    add_event(out, error.body, "error");
  }

  std::string whole(const std::vector<Piece>& choices, const Usage& usage) override {
    const Piece& piece = choices.at(0);
    Value content = Value::array();
    if (!piece.reasoning.empty()) content.push(thinking_block(piece.reasoning));
    if (!piece.text.empty()) content.push(text_block(piece.text));
    for (const ToolCall& call : piece.calls) content.push(tool_block(call, call_input(call)));
    return dump_json(message(std::move(content), ending_of(piece), usage));
  }

  http::Response error(http::Response response) const override {
    return anthropic_error(std::move(response));
  }

 private:
  enum class Kind { kNone, kThinking, kText, kTool };

  Value message(Value content, const Ending& ending, const Usage& usage) const {
    Value value = Value::object();
    value.set("id", id_);
    value.set("type", "message");
    value.set("role", "assistant");
    value.set("model", options_.model);
    value.set("content", std::move(content));
    value.set("stop_reason", ending.reason);
    value.set("stop_sequence", ending.sequence);
    value.set("usage", anthropic_usage(usage));
    return value;
  }

  void send(std::string& out, const char* type, Value::Object members) {
    Value event = Value::object();
    event.set("type", type);
    for (auto& [key, value] : members) event.set(key, std::move(value));
    add_event(out, dump_json(event), type);
  }

  void open(std::string& out, Kind kind, Value block) {
    if (kind_ == kind) return;
    close(out);
    kind_ = kind;
    send(out, "content_block_start", {{"index", index_}, {"content_block", std::move(block)}});
  }

  void delta(std::string& out, Value::Object members) {
    send(out, "content_block_delta", {{"index", index_}, {"delta", Value(std::move(members))}});
  }

  void close(std::string& out) {
    if (kind_ == Kind::kNone) return;
    send(out, "content_block_stop", {{"index", index_++}});
    kind_ = Kind::kNone;
  }

  Kind kind_ = Kind::kNone;
  int index_ = 0;
  Ending ending_{"end_turn", {}};
};

}  // namespace

Value call_input(const ToolCall& call) {
  try {
    Value input = parse_json(call.arguments, "arguments", {.max_depth = 64});
    if (input.is_object()) return input;
  } catch (const Error&) {
    // The answer was truncated, or the model wrote something else.
  }
  return Value::Object{{"text", call.arguments}};
}

std::unique_ptr<Shape> make_anthropic_shape(ShapeOptions options) {
  return std::make_unique<AnthropicShape>(std::move(options));
}

}  // namespace tokamak::openai
