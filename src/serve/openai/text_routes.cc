// Tokens of texts and texts of tokens, without the engine.
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "serve/openai/api.h"
#include "serve/openai/api_error.h"
#include "serve/openai/prepare.h"
#include "text/unicode.h"

namespace tokamak::openai {
namespace {

// A token's text, or its bytes as numbers if they are not valid text, as in llama.cpp.
Value piece_value(const ServedModel& model, int32_t id) {
  std::string bytes = model.tokenizer->piece_bytes(id);
  if (utf8_is_valid(bytes)) return Value(std::move(bytes));
  Value list = Value::array();
  for (char c : bytes) list.push(static_cast<int64_t>(static_cast<unsigned char>(c)));
  return list;
}

}  // namespace

// {"prompt": text} or {"messages": [...]} as in vLLM; "content" as in llama.cpp, which adds no
// special tokens by default.
http::Response Api::tokenize(const Value& body) const {
  auto model = model_of(body);
  Fields fields(body);
  EncodeOptions encode;
  std::string text;
  RenderedChat chat;
  if (body.has("messages")) {
    if (model->chat_template == nullptr)
      bad_request("messages", "no_chat_template", "The model '{}' has no chat template.",
                  model->name);
    chat = render_chat(fields, *model);
    text = chat.text;
    encode.guard = chat.guard;
    encode.add_special = false;
  } else {
    auto prompt = fields.string("prompt"), content = fields.string("content");
    if (!prompt && !content) fields.require("prompt");
    text = prompt ? *prompt : *content;
    encode.add_special = prompt || fields.boolean("add_special").value_or(false);
    encode.parse_special = fields.boolean("parse_special").value_or(true);
  }
  encode.add_special = fields.boolean("add_special_tokens").value_or(encode.add_special);
  bool strings = fields.boolean("return_token_strs").value_or(false);
  bool pieces = fields.boolean("with_pieces").value_or(false);
  std::vector<int32_t> ids = model->tokenizer->encode(text, encode);
  Value list = Value::array(), names = Value::array();
  for (int32_t id : ids) {
    list.push(pieces ? Value(Value::Object{{"id", id}, {"piece", piece_value(*model, id)}})
                     : Value(id));
    if (strings) names.push(std::string(model->tokenizer->piece(id)));
  }
  Value value = Value::object();
  value.set("tokens", std::move(list));
  value.set("count", static_cast<int64_t>(ids.size()));
  value.set("max_model_len", model->max_model_len);
  value.set("token_strs", strings ? std::move(names) : Value());
  return http::json_response(value);
}

http::Response Api::detokenize(const Value& body) const {
  auto model = model_of(body);
  Fields fields(body);
  const Value& tokens = fields.require("tokens");
  if (!tokens.is_array()) wrong_type("tokens", "an array", tokens);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < tokens.as_array().size(); ++i)
    ids.push_back(
        static_cast<int32_t>(checked_integer(fmt::format("tokens[{}]", i), tokens.as_array()[i], 0,
                                             model->tokenizer->vocab_size() - 1)));
  std::string text = model->tokenizer->decode(ids);
  Value value = Value::object();
  value.set("prompt", text);
  value.set("content", std::move(text));
  return http::json_response(value);
}

http::Response Api::apply_template(const Value& body) const {
  auto model = model_of(body);
  if (model->chat_template == nullptr)
    bad_request("messages", "no_chat_template", "The model '{}' has no chat template.",
                model->name);
  Fields fields(body);
  Value value = Value::object();
  value.set("prompt", render_chat(fields, *model).plain());
  return http::json_response(value);
}

}  // namespace tokamak::openai
