#include <fmt/chrono.h>

#include <ctime>

#include "base/json.h"
#include "serve/compat/dialect.h"

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

void add_compat_routes(Api& api, http::Router& router) {
  add_anthropic_routes(api, router);
  add_responses_routes(api, router);
  add_ollama_routes(api, router);
  add_llama_routes(api, router);
  add_kserve_routes(api, router);
}

}  // namespace tokamak::openai
