// Answers of OpenAI's Responses API: items, and the events of a stream.
#include <algorithm>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "serve/compat/responses.h"

namespace tokamak::openai {
namespace {

struct Item {
  enum class Kind { kReasoning, kMessage, kCall };
  Kind kind;
  std::string id, text;             // text: also the arguments of a call
  std::string call_id, name;        // of a call
  Value logprobs = Value::array();  // of a message
};

class ResponsesShape final : public Shape {
 public:
  ResponsesShape(ShapeOptions options, ResponsesOptions responses, const Tokenizer& tokenizer)
      : Shape(std::move(options)), responses_(std::move(responses)), tokenizer_(tokenizer) {
    id_ = responses_.id;
  }

  void begin(std::string& out, int, const std::vector<int32_t>*, const Usage&) override {
    for (const char* type : {"response.created", "response.in_progress"})
      send(out, type, {{"response", response("in_progress", nullptr)}});
  }

  bool counts() const override { return options_.timings; }
  Value queued() const override { return response("queued", nullptr); }
  void started() override {
    if (responses_.started) responses_.started();
  }

  void progress(std::string& out, const PromptProgress& progress) override {
    Value::Object members = progress_value(progress, options_.timings).as_object();
    members.emplace_back("response", response("in_progress", nullptr));
    send(out, "response.in_progress", std::move(members));
  }

  void piece(std::string& out, const Piece& piece, const Usage& usage) override {
    if (!piece.reasoning.empty()) {
      open(out, Item::Kind::kReasoning);
      items_.back().text += piece.reasoning;
      send_part(out, "response.reasoning_text.delta", {{"delta", piece.reasoning}});
    }
    if (!piece.text.empty()) {
      open(out, Item::Kind::kMessage);
      items_.back().text += piece.text;
      Value scores = logprobs_value(piece, options_, tokenizer_);
      for (const Value& score : scores.as_array()) items_.back().logprobs.push(score);
      Value::Object members = {{"delta", piece.text}, {"logprobs", std::move(scores)}};
      if (options_.timings) members.emplace_back("timings", timings_value(usage));
      send_part(out, "response.output_text.delta", std::move(members));
    }
    for (const ToolCall& call : piece.calls) {
      if (!call.id.empty()) open(out, Item::Kind::kCall, &call);
      items_.back().text += call.arguments;
      if (!call.arguments.empty())
        send(out, "response.function_call_arguments.delta",
             {{"item_id", items_.back().id}, {"output_index", last()}, {"delta", call.arguments}});
    }
    if (piece.finish != nullptr) finish_ = piece.finish;
  }

  void end(std::string& out, const Usage& usage) override {
    close(out);
    Value value = finished(usage);
    const bool complete = value.get_string("status", "") == "completed";
    Value::Object members = {{"response", value}};
    if (options_.timings) members.emplace_back("timings", timings_value(usage));
    send(out, complete ? "response.completed" : "response.incomplete", std::move(members));
  }

  void broken(std::string& out, const http::Response& error) override {
    Value inner = parse_json(error.body).at("error");
    Value value = response("failed", nullptr);
    value.set("error", Value::Object{{"code", "server_error"},
                                     {"message", inner.get_string("message", "")}});
    send(out, "response.failed", {{"response", std::move(value)}});
    if (responses_.failed) responses_.failed(inner.get_string("message", ""));
  }

  std::string whole(const std::vector<Piece>& choices, const Usage& usage) override {
    std::string events;
    piece(events, choices.at(0), usage);
    close(events);
    return dump_json(finished(usage));
  }

 private:
  int64_t last() const { return static_cast<int64_t>(items_.size()) - 1; }

  static Value text_part(const Item& item) {
    if (item.kind == Item::Kind::kReasoning)
      return Value::Object{{"type", "reasoning_text"}, {"text", item.text}};
    return Value::Object{{"type", "output_text"},
                         {"text", item.text},
                         {"annotations", Value::array()},
                         {"logprobs", item.logprobs}};
  }

  static Value item_value(const Item& item, const char* status) {
    Value value = Value::object();
    value.set("id", item.id);
    Value content = Value::array();
    if (!item.text.empty() || status == std::string_view("completed"))
      content.push(text_part(item));
    switch (item.kind) {
      case Item::Kind::kReasoning:
        value.set("type", "reasoning");
        value.set("summary", Value::array());
        value.set("content", std::move(content));
        break;
      case Item::Kind::kMessage:
        value.set("type", "message");
        value.set("role", "assistant");
        value.set("content", std::move(content));
        break;
      case Item::Kind::kCall:
        value.set("type", "function_call");
        value.set("call_id", item.call_id);
        value.set("name", item.name);
        value.set("arguments", item.text);
    }
    value.set("status", status);
    return value;
  }

  Value response(const char* status, const Usage* usage) const {
    Value value = Value::object();
    value.set("id", id_);
    value.set("object", "response");
    value.set("created_at", options_.created);
    value.set("status", status);
    value.set("error", {});
    value.set("incomplete_details", {});
    value.set("model", options_.model);
    Value output = Value::array();
    for (const Item& item : items_) output.push(item_value(item, "completed"));
    value.set("output", std::move(output));
    for (const auto& [key, member] : responses_.echo.as_object()) value.set(key, member);
    value.set("usage", usage == nullptr ? Value() : usage_of(*usage));
    return value;
  }

  static Value usage_of(const Usage& usage) {
    Value value = Value::object();
    value.set("input_tokens", usage.prompt_tokens);
    value.set("input_tokens_details", Value::Object{{"cached_tokens", usage.cached_tokens}});
    value.set("output_tokens", usage.completion_tokens);
    value.set("output_tokens_details", Value::Object{{"reasoning_tokens", usage.reasoning_tokens}});
    value.set("total_tokens", usage.prompt_tokens + usage.completion_tokens);
    return value;
  }

  Value finished(const Usage& usage) {
    const bool length = finish_ == std::string_view("length");
    Value value = response(length ? "incomplete" : "completed", &usage);
    if (length) value.set("incomplete_details", Value::Object{{"reason", "max_output_tokens"}});
    if (responses_.keep) std::exchange(responses_.keep, nullptr)(value, messages());
    return value;
  }

  // The answer as the next request needs it.
  Value::Array messages() const {
    Value message = Value::object(), calls = Value::array();
    std::string text, thoughts;
    for (const Item& item : items_) {
      if (item.kind == Item::Kind::kMessage) text += item.text;
      if (item.kind == Item::Kind::kReasoning) thoughts += item.text;
      if (item.kind != Item::Kind::kCall) continue;
      Value function = Value::Object{{"name", item.name}, {"arguments", item.text}};
      calls.push(Value::Object{
          {"id", item.call_id}, {"type", "function"}, {"function", std::move(function)}});
    }
    message.set("role", "assistant");
    message.set("content", std::move(text));
    if (!thoughts.empty()) message.set("reasoning_content", std::move(thoughts));
    if (calls.size() > 0) message.set("tool_calls", std::move(calls));
    return {std::move(message)};
  }

  void send(std::string& out, const char* type, Value::Object members) {
    Value event = Value::object();
    event.set("type", type);
    event.set("sequence_number", sequence_++);
    for (auto& [key, value] : members) event.set(key, std::move(value));
    add_event(out, dump_json(event), type);
  }

  void send_part(std::string& out, const char* type, Value::Object more) {
    Value::Object members = {
        {"item_id", items_.back().id}, {"output_index", last()}, {"content_index", 0}};
    for (auto& member : more) members.push_back(std::move(member));
    send(out, type, std::move(members));
  }

  void open(std::string& out, Item::Kind kind, const ToolCall* call = nullptr) {
    if (open_ && items_.back().kind == kind && call == nullptr) return;
    close(out);
    const char* prefix = kind == Item::Kind::kReasoning ? "rs_"
                         : kind == Item::Kind::kMessage ? "msg_"
                                                        : "fc_";
    Item item{kind, new_id(prefix), "", "", "", Value::array()};
    if (call != nullptr) {
      item.call_id = call->id;
      item.name = call->name;
    }
    items_.push_back(std::move(item));
    open_ = true;
    send(out, "response.output_item.added",
         {{"output_index", last()}, {"item", item_value(items_.back(), "in_progress")}});
    if (kind != Item::Kind::kCall)
      send_part(out, "response.content_part.added", {{"part", text_part(items_.back())}});
  }

  void close(std::string& out) {
    if (!std::exchange(open_, false)) return;
    const Item& item = items_.back();
    if (item.kind == Item::Kind::kCall) {
      send(out, "response.function_call_arguments.done",
           {{"item_id", item.id},
            {"output_index", last()},
            {"name", item.name},
            {"arguments", item.text}});
    } else {
      if (item.kind == Item::Kind::kMessage)
        send_part(out, "response.output_text.done",
                  {{"text", item.text}, {"logprobs", item.logprobs}});
      else
        send_part(out, "response.reasoning_text.done", {{"text", item.text}});
      send_part(out, "response.content_part.done", {{"part", text_part(item)}});
    }
    send(out, "response.output_item.done",
         {{"output_index", last()}, {"item", item_value(item, "completed")}});
  }

  ResponsesOptions responses_;
  const Tokenizer& tokenizer_;
  std::vector<Item> items_;
  bool open_ = false;
  int64_t sequence_ = 0;
  const char* finish_ = "stop";
};

}  // namespace

std::unique_ptr<Shape> make_responses_shape(ShapeOptions options, ResponsesOptions responses,
                                            const Tokenizer& tokenizer) {
  return std::make_unique<ResponsesShape>(std::move(options), std::move(responses), tokenizer);
}

}  // namespace tokamak::openai
