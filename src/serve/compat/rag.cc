#include "serve/compat/rag.h"

#include "base/json.h"
#include "serve/compat/dialect.h"
#include "serve/openai/api_error.h"
#include "serve/openai/fields.h"

namespace tokamak::openai {
namespace {

constexpr int64_t kPassages = 4, kMostPassages = 100;

// The answer of a chat model with its sources: a field of the whole answer, the first event of a
// stream.
class RagShape final : public Shape {
 public:
  RagShape(ShapeOptions options, std::unique_ptr<Shape> answer, Value sources)
      : Shape(std::move(options)), answer_(std::move(answer)), sources_(std::move(sources)) {
    id_ = answer_->id();
  }

  http::StreamHead head() const override { return answer_->head(); }
  bool counts() const override { return answer_->counts(); }
  void begin(std::string& out, int choices, const std::vector<int32_t>* prompt_ids,
             const Usage& usage) override {
    add_event(out, dump_json(Value::Object{{"id", id_},
                                           {"object", "chat.completion.chunk"},
                                           {"created", options_.created},
                                           {"model", options_.model},
                                           {"choices", Value::array()},
                                           {"sources", sources_}}));
    answer_->begin(out, choices, prompt_ids, usage);
  }
  void piece(std::string& out, const Piece& piece, const Usage& usage) override {
    answer_->piece(out, piece, usage);
  }
  void end(std::string& out, const Usage& usage) override { answer_->end(out, usage); }
  void broken(std::string& out, const http::Response& error) override {
    answer_->broken(out, error);
  }
  std::string whole(const std::vector<Piece>& choices, const Usage& usage) override {
    Value body = parse_json(answer_->whole(choices, usage), "answer");
    body.set("sources", sources_);
    return dump_json(body);
  }

 private:
  std::unique_ptr<Shape> answer_;
  Value sources_;
};

// What is not about passages goes to the chat request.
Value chat_body(const Value& body, const Api& api, const std::string& prompt) {
  Value out = Value::object();
  for (const auto& [key, value] : body.as_object())
    if (key != "query" && key != "top" && key != "generate") out.set(key, value);
  if (api.model_of(body)->chat_template == nullptr)
    out.set("prompt", prompt + "\nAnswer:");
  else
    out.set("messages", Value::Array{Value::Object{{"role", "user"}, {"content", prompt}}});
  return out;
}

Dialect rag_dialect(Api& api, FindPassages find) {
  Dialect dialect;
  dialect.translate = [&api, find = std::move(find)](Value body, const http::Request&) {
    if (!find)
      throw ApiError(404, "The server has no index of documents: start it with --rag-index.", "",
                     "no_index");
    Fields fields(body);
    std::string question = fields.require_string("query");
    int64_t top = fields.integer("top", 1, kMostPassages).value_or(kPassages);
    bool generate = fields.boolean("generate").value_or(true);
    for (const char* field : {"messages", "prompt"})
      fields.refuse(field, "The route writes the prompt from 'query' and the passages.");
    if (question.empty()) bad_request("query", "invalid_value", "'query' is empty.");
    std::vector<RagSource> sources = find(question, top);
    Translated out;
    if (!generate) {
      http::Response response;
      response.body = dump_json(Value::Object{
          {"object", "rag.sources"}, {"query", question}, {"sources", rag_sources_value(sources)}});
      out.answer = std::move(response);
      return out;
    }
    out.body = chat_body(body, api, rag_prompt(question, sources));
    out.chat = out.body.has("messages");
    out.shape = [chat = out.chat, sources = rag_sources_value(sources)](
                    ShapeOptions options, const Tokenizer& tokenizer) -> std::unique_ptr<Shape> {
      auto answer =
          chat ? make_chat_shape(options, tokenizer) : make_completion_shape(options, tokenizer);
      return std::make_unique<RagShape>(std::move(options), std::move(answer), sources);
    };
    return out;
  };
  return dialect;
}

}  // namespace

std::string rag_prompt(std::string_view question, const std::vector<RagSource>& sources) {
  std::string prompt =
      "Answer the question from these passages alone, and name those you use, like [1].\n\n";
  for (size_t i = 0; i < sources.size(); ++i)
    prompt += fmt::format("[{}] {}\n\n", i + 1, sources[i].text);
  return prompt + fmt::format("Question: {}", question);
}

Value rag_sources_value(const std::vector<RagSource>& sources) {
  Value list = Value::array();
  for (const RagSource& s : sources)
    list.push(
        Value::Object{{"file", s.file}, {"line", s.line}, {"score", s.score}, {"text", s.text}});
  return list;
}

void add_rag_routes(Api& api, http::Router& router, Value about, FindPassages find) {
  about.set("object", "rag.index");
  router.add("GET", "/v1/rag", api.quick([body = dump_json(about)](const http::Request&) {
    http::Response response;
    response.body = body;
    return response;
  }));
  router.add("POST", "/v1/rag/query", api.generator(rag_dialect(api, std::move(find))));
}

}  // namespace tokamak::openai
