#include <fmt/chrono.h>

#include <ctime>

#include "base/json.h"
#include "serve/compat/dialect.h"
#include "serve/openai/api.h"
#include "serve/openai/api_error.h"
#include "serve/openai/prepare.h"
#include "text/chat_guard.h"

namespace tokamak::openai {

std::string utc_time(int64_t unix_seconds) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(static_cast<std::time_t>(unix_seconds)));
}

http::Response flat_error(http::Response response) {
  try {
    std::string message = parse_json(response.body).at("error").get_string("message", "");
    response.body = dump_json(Value::Object{{"error", std::move(message)}});
  } catch (const Error&) {
    // It stays as it is.
  }
  return response;
}

int64_t count_prompt(const Api& api, const Value& chat) {
  auto model = api.model_of(chat);
  if (model->chat_template == nullptr)
    bad_request("model", "no_chat_template", "The model '{}' has no chat template.", model->name);
  Fields fields(chat);
  RenderedChat rendered = render_chat(fields, *model);
  return std::ssize(encode_chat(*model->tokenizer, rendered.text, rendered.guard));
}

void add_compat_routes(Api& api, http::Router& router) {
  add_anthropic_routes(api, router);
  add_responses_routes(api, router);
  add_ollama_routes(api, router);
  add_llama_routes(api, router);
  add_slot_routes(api, router);
  add_kserve_routes(api, router);
}

}  // namespace tokamak::openai
