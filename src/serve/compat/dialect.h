#pragma once
// Other APIs stand on the OpenAI one: a dialect translates a request into an OpenAI request, and
// its shape writes the answer. Nothing else of a generation depends on the API.
#include <functional>
#include <memory>
#include <optional>

#include "base/value.h"
#include "serve/http/router.h"
#include "serve/openai/shape.h"
#include "serve/served_model.h"

namespace tokamak::openai {

class Api;
struct GenerationParams;

// Rewrites an error from OpenAI's form.
using ErrorForm = http::Response (*)(http::Response response);

// Rewrites the body of a request.
using BodyForm = Value (*)(Value body);

// An answer that the client does not wait for.
struct Detached {
  http::ExchangePtr exchange;  // gets the answer
  // One of these is called: to tell the client, or because the request could not be submitted.
  std::function<void(const http::ExchangePtr& client)> accepted;
  std::function<void()> refused;
};

struct Translated {
  Value body;  // of a chat or completion request
  bool chat = true;
  bool clamp = false;            // shorten an answer length that does not fit the context
  bool penalize_prompt = false;  // SampleSpec::penalize_prompt
  std::function<std::unique_ptr<Shape>(ShapeOptions, const Tokenizer&)> shape;
  std::optional<http::Response> answer;          // known without generating
  std::function<Detached(const Shape&)> detach;  // empty: the client waits
  // For ShapeOptions::settings.
  Value (*settings)(const GenerationParams& params, const ServedModel& model) = nullptr;
};

struct Dialect {
  // Throws ApiError.
  std::function<Translated(Value body, const http::Request& request)> translate;
  ErrorForm error = nullptr;  // nullptr: OpenAI's
};

Dialect anthropic_dialect();
Dialect ollama_dialect(bool chat, const Api& api);
Dialect llama_dialect(bool infill, const Api& api);

void add_compat_routes(Api& api, http::Router& router);
// Parts of it.
void add_anthropic_routes(Api& api, http::Router& router);
void add_responses_routes(Api& api, http::Router& router);
void add_ollama_routes(Api& api, http::Router& router);
void add_llama_routes(Api& api, http::Router& router);
void add_slot_routes(Api& api, http::Router& router);
void add_kserve_routes(Api& api, http::Router& router);

// Tokens of the prompt of a chat request. Throws ApiError.
int64_t count_prompt(const Api& api, const Value& chat);
// {"error": message}, from OpenAI's form.
http::Response flat_error(http::Response response);

// llama.cpp's names of OpenAI fields and extensions: n_predict, repeat_penalty, cache_prompt ...
Value with_llama_names(Value body);

std::string utc_time(int64_t unix_seconds);  // 2026-11-16T05:24:03Z

}  // namespace tokamak::openai
