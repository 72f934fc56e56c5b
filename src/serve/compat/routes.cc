#include <fmt/chrono.h>

#include <ctime>

#include "base/json.h"
#include "serve/compat/dialect.h"

namespace tokamak::openai {

std::string utc_time(int64_t unix_seconds) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(static_cast<std::time_t>(unix_seconds)));
}

void add_compat_routes(Api& api, http::Router& router) {
  add_anthropic_routes(api, router);
  add_responses_routes(api, router);
  add_ollama_routes(api, router);
  add_llama_routes(api, router);
}

}  // namespace tokamak::openai
