// Answers of Ollama's API: lines of JSON.
#include <algorithm>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "serve/compat/anthropic.h"
#include "serve/compat/ollama.h"

namespace tokamak::openai {
namespace {

class OllamaShape final : public Shape {
 public:
  OllamaShape(ShapeOptions options, OllamaOptions ollama, const Tokenizer& tokenizer)
      : Shape(std::move(options)), ollama_(std::move(ollama)), tokenizer_(tokenizer) {
    id_ = new_id("ollama-");
  }

  http::StreamHead head() const override {
    http::StreamHead head;
    head.content_type = "application/x-ndjson";
    head.ping = "";
    return head;
  }

  void begin(std::string&, int, const std::vector<int32_t>*, const Usage&) override {}

  // Calls are sent when they are complete: their arguments are objects.
  void piece(std::string& out, const Piece& piece, const Usage&) override {
    for (const ToolCall& call : piece.calls) {
      if (!call.id.empty() && !call_.id.empty()) send_call(out);
      if (!call.id.empty())
        call_ = call;
      else
        call_.arguments += call.arguments;
    }
    if (!piece.text.empty() || !piece.reasoning.empty() || !piece.scored.empty())
      line(out, part(piece));
    if (piece.finish == nullptr) return;
    if (!call_.id.empty()) send_call(out);
    finish_ = piece.finish;
  }

  void end(std::string& out, const Usage& usage) override {
    Value value = part({});
    add_end(value, usage);
    line(out, value);
  }

  void broken(std::string& out, const http::Response& error) override { out += error.body + "\n"; }

  std::string whole(const std::vector<Piece>& choices, const Usage& usage) override {
    const Piece& piece = choices.at(0);
    if (piece.finish != nullptr) finish_ = piece.finish;
    Value value = part(piece);
    if (!piece.calls.empty()) add_calls(value, piece.calls);
    add_end(value, usage);
    return dump_json(value);
  }

  http::Response error(http::Response response) const override {
    return flat_error(std::move(response));
  }

 private:
  Value part(const Piece& piece) const {
    Value value = Value::object();
    value.set("model", ollama_.model);
    value.set("created_at", utc_time(options_.created));
    if (ollama_.chat) {
      Value message = Value::object();
      message.set("role", "assistant");
      message.set("content", piece.text);
      if (!piece.reasoning.empty()) message.set("thinking", piece.reasoning);
      value.set("message", std::move(message));
    } else {
      value.set("response", piece.text);
      if (!piece.reasoning.empty()) value.set("thinking", piece.reasoning);
    }
    if (options_.logprobs && !piece.scored.empty()) value.set("logprobs", logprobs(piece));
    value.set("done", false);
    return value;
  }

  Value scored(int32_t id, float logprob) const {
    return Value::Object{{"token", tokenizer_.piece_bytes(id)},
                         {"logprob", static_cast<double>(std::max(logprob, -9999.0f))}};
  }

  Value logprobs(const Piece& piece) const {
    Value list = Value::array();
    for (const ScoredToken& token : piece.scored) {
      Value entry = scored(token.id, token.logprob.value_or(0)), top = Value::array();
      for (size_t i = 0; i < token.top.size() && static_cast<int>(i) < options_.top_logprobs; ++i)
        top.push(scored(token.top[i].id, token.top[i].logprob));
      if (top.size() > 0) entry.set("top_logprobs", std::move(top));
      list.push(std::move(entry));
    }
    return list;
  }

  void add_calls(Value& value, const std::vector<ToolCall>& calls) const {
    Value list = Value::array();
    for (const ToolCall& call : calls) {
      Value function = Value::Object{
          {"index", call.index}, {"name", call.name}, {"arguments", call_input(call)}};
      list.push(Value::Object{{"id", call.id}, {"function", std::move(function)}});
    }
    if (Value* message = value.find("message")) message->set("tool_calls", std::move(list));
  }

  void send_call(std::string& out) {
    Value value = part({});
    add_calls(value, {std::exchange(call_, {})});
    line(out, value);
  }

  void add_end(Value& value, const Usage& usage) const {
    value.set("done", true);
    value.set("done_reason", finish_ == std::string_view("length") ? "length" : "stop");
    value.set("total_duration", usage.prompt_time + usage.answer_time);
    value.set("load_duration", 0);
    value.set("prompt_eval_count", usage.prompt_tokens);
    value.set("prompt_eval_duration", usage.prompt_time);
    value.set("eval_count", usage.completion_tokens);
    value.set("eval_duration", usage.answer_time);
  }

  static void line(std::string& out, const Value& value) { out += dump_json(value) + "\n"; }

  const OllamaOptions ollama_;
  const Tokenizer& tokenizer_;
  ToolCall call_;  // not complete yet
  const char* finish_ = "stop";
};

}  // namespace

http::Response ollama_loaded(const OllamaOptions& options, int64_t created) {
  Value value = Value::object();
  value.set("model", options.model);
  value.set("created_at", utc_time(created));
  if (options.chat)
    value.set("message", Value::Object{{"role", "assistant"}, {"content", ""}});
  else
    value.set("response", "");
  value.set("done_reason", "load");
  value.set("done", true);
  return http::json_response(value);
}

std::unique_ptr<Shape> make_ollama_shape(ShapeOptions options, OllamaOptions ollama,
                                         const Tokenizer& tokenizer) {
  return std::make_unique<OllamaShape>(std::move(options), std::move(ollama), tokenizer);
}

}  // namespace tokamak::openai
