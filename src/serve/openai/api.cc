#include "serve/openai/api.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstddef>
#include <thread>
#include <utility>

#include "base/json.h"
#include "base/rng.h"
#include "serve/compat/fill_in.h"
#include "serve/openai/api_error.h"
#include "serve/openai/metrics.h"
#include "serve/openai/openapi_data.h"
#include "serve/openai/program_call.h"

namespace tokamak::openai {
namespace {

constexpr int kMaxJsonDepth = 64;
constexpr size_t kMaxMembers = 4096;

void check_content_type(const http::Request& request) {
  std::string type(request.header("content-type"));
  type = type.substr(0, type.find(';'));
  std::transform(type.begin(), type.end(), type.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  while (!type.empty() && (type.back() == ' ' || type.back() == '\t')) type.pop_back();
  // curl -d sends this type unless told otherwise. So can forms of web pages, without permission.
  const bool page = !request.header("origin").empty() || !request.header("referer").empty() ||
                    !request.header("sec-fetch-site").empty();
  if (type == "application/x-www-form-urlencoded" && !page) type.clear();
  const bool binary = !request.binary().empty() && type == "application/octet-stream";
  if (!type.empty() && type != "application/json" && !type.ends_with("+json") && !binary)
    throw ApiError(415, fmt::format("Unsupported content type '{}': send application/json.", type),
                   "", "unsupported_content_type");
  std::string_view encoding = request.header("content-encoding");
  if (!encoding.empty() && encoding != "identity")
    throw ApiError(415, "Compressed bodies are not supported.", "", "unsupported_content_encoding");
}

// Objects are searched from their beginning, so that very wide ones would take very long.
void check_width(const Value& value) {
  if (value.is_array())
    for (const Value& item : value.as_array()) check_width(item);
  if (!value.is_object()) return;
  if (value.size() > kMaxMembers)
    bad_request("", "invalid_json",
                "The JSON body of your request has an object with more than {} members.",
                kMaxMembers);
  for (const auto& [key, member] : value.as_object()) check_width(member);
}

Value parse_body(const http::Request& request) {
  Value body = parse_any_body(request);
  if (!body.is_object())
    bad_request("", "invalid_json", "The JSON body of the request must be an object.");
  return body;
}

http::Response in_form(ErrorForm form, http::Response response) {
  return form == nullptr ? response : form(std::move(response));
}

// A completion with a suffix fills in the text between the two.
void replace_suffix(Value& body, const Api& api) {
  Fields fields(body);
  auto suffix = fields.string("suffix");
  if (!suffix || suffix->empty()) return;
  const Value& prompt = fields.require("prompt");
  if (!prompt.is_string()) wrong_type("prompt", "a string, because there is a 'suffix'", prompt);
  if (fields.boolean("echo").value_or(false))
    unsupported("echo", "It has no meaning together with 'suffix'.");
  body.set("prompt", fill_in_prompt(*api.model_of(body), prompt.as_string(), *suffix));
  body.set("suffix", Value());
}

// The API that the others are translated to.
Dialect openai_dialect(bool chat, const Api& api) {
  Dialect dialect;
  dialect.translate = [chat, &api](Value body, const http::Request&) {
    Translated out;
    out.body = with_llama_names(std::move(body));
    if (!chat) replace_suffix(out.body, api);
    out.chat = chat;
    out.shape = chat ? make_chat_shape : make_completion_shape;
    return out;
  };
  return dialect;
}

// Models that stay.
std::vector<ModelEntry> entries_of(std::vector<ServedModel> models) {
  std::vector<ModelEntry> entries;
  for (ServedModel& model : models) {
    ModelEntry entry;
    entry.name = model.name;
    entry.aliases = model.aliases;
    entry.model = std::make_shared<const ServedModel>(std::move(model));
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace

Value parse_any_body(const http::Request& request) {
  if (request.body.empty())
    bad_request("", "missing_body", "The request has no body; send a JSON object.");
  Value body;
  auto parse = [](std::string_view text) {
    return parse_json(text, "body", {.max_depth = kMaxJsonDepth});
  };
  try {
    try {
      body = parse(request.json());
    } catch (const Error& e) {
      if (std::string_view(e.what()).find("surrogate") == std::string_view::npos) throw;
      body = parse(mend_surrogates(request.json()));
    }
  } catch (const Error& e) {
    bad_request("", "invalid_json", "We could not parse the JSON body of your request: {}",
                e.what());
  }
  check_width(body);
  return body;
}

Api::Api(ApiOptions options, std::vector<ServedModel> models)
    : Api(std::move(options), entries_of(std::move(models))) {}

Api::Api(ApiOptions options, std::vector<ModelEntry> models)
    : options_(std::move(options)),
      start_time_(unix_seconds()),
      keys_(options_.api_keys),
      admin_(options_.admin_key.empty() ? std::vector<ApiKey>()
                                        : std::vector<ApiKey>{{options_.admin_key}}),
      log_(options_.request_log.empty() && options_.trace_collector.empty()
               ? nullptr
               : std::make_unique<RequestLog>(options_.request_log, options_.trace_collector,
                                              options_.service_name)),
      paused_programs_(std::make_shared<PausedPrograms>()),
      prepare_(std::make_unique<WorkerPool>(options_.prepare_threads)),
      stream_(std::make_unique<WorkerPool>(options_.stream_threads)),
      programs_(std::make_unique<WorkerPool>(options_.prepare_threads)) {
  std::vector<std::pair<std::string, std::shared_ptr<const Adapter>>> adapters;
  for (const ModelEntry& entry : models)
    if (entry.model != nullptr)
      for (const auto& adapter : entry.model->adapters) adapters.emplace_back(entry.name, adapter);
  registry_ = std::make_unique<ModelRegistry>(std::move(models), options_.limits,
                                              [this](ServedModel& model) { complete(model); });
  for (auto& [name, adapter] : adapters)
    add_adapter(*registry_->get(name), std::move(adapter), false);
}

void Api::complete(ServedModel& model) const {
  model.adapters.clear();  // they may be unloaded later
  if (model.fingerprint.empty()) model.fingerprint = "fp_tokamak_" + options_.version;
  if (model.embedder == nullptr)
    model.embedder = std::make_shared<const EmbeddingEncoder>(model.tokenizer);
  if (model.grammars == nullptr)
    model.grammars = std::make_shared<grammar::GrammarCache>(model.tokenizer);
  if (model.tool_format == nullptr)
    model.tool_format = tool_format_of(pick_chat_template(model.tokenizer->spec(), "", true));
  for (const auto& [name, text] : model.tokenizer->spec().named_templates)
    if (name == "tool_use" && model.tool_template == nullptr)
      model.tool_template = std::make_shared<const ChatTemplate>(ChatTemplate::parse(text));
}

Api::~Api() {
  registry_->stop();                               // requests that wait for a model are answered
  prepare_.reset();                                // its jobs may still post to the other pool
  stats_->requests.abort({}, true, std::nullopt);  // those that no connection waits for
  // The connections are closed, so no generation keeps itself alive. The engine may still hold one
  // for a
  // moment; that one must not destroy the engine on the engine's own thread.
  while (stats_->running > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  stream_.reset();
  programs_.reset();
  paused_programs_->clear();
}

std::string_view Api::key_of(const http::Request& request) {
  std::string_view value = request.header("authorization");
  constexpr std::string_view kScheme = "bearer ";  // schemes are case-insensitive
  if (value.size() <= kScheme.size()) return request.header("x-api-key");
  for (size_t i = 0; i < kScheme.size(); ++i)
    if (std::tolower(static_cast<unsigned char>(value[i])) != kScheme[i])
      return request.header("x-api-key");
  size_t key = value.find_first_not_of(' ', kScheme.size());
  return key == std::string_view::npos ? "" : value.substr(key);
}

void Api::authorise(const http::Request& request) const {
  if (keys_.empty()) return;
  std::string_view given = key_of(request);
  if (keys_.find(given) != nullptr || admin_.find(given) != nullptr) return;
  if (given.empty())
    throw ApiError(401, "You didn't provide an API key: send 'Authorization: Bearer KEY'.", "",
                   "invalid_api_key");
  throw ApiError(401, "Incorrect API key provided.", "", "invalid_api_key");
}

std::string Api::tenant_of(const http::Request& request) const {
  return keys_.empty() ? "" : std::string(key_of(request));
}

// Each key has its own cache: a salt separates requests of one key, it never joins those of two. A
// key has no line breaks.
void Api::add_tenant(const http::Request& request, GenerationParams& params) const {
  params.tenant = tenant_of(request);
  params.cache_salt = salt_of(params.tenant, params.cache_salt);
}

http::Handler Api::quick(Answer answer, bool open, ErrorForm form) {
  return direct([answer = std::move(answer)](
                    http::ExchangePtr exchange) { exchange->respond(answer(exchange->request())); },
                open, form);
}

http::Handler Api::direct(http::Handler handler, bool open, ErrorForm form) {
  return [this, handler = std::move(handler), open, form](http::ExchangePtr exchange) {
    try {
      if (!open) authorise(exchange->request());
      handler(exchange);
    } catch (const std::exception& e) {
      exchange->respond(in_form(form, error_answer(e)));
    }
  };
}

http::Handler Api::with_json(JsonAnswer answer, bool numbered, ErrorForm form) {
  return [this, answer = std::move(answer), numbered, form](http::ExchangePtr exchange) {
    try {
      authorise(exchange->request());
      check_content_type(exchange->request());
    } catch (const std::exception& e) {
      return exchange->respond(in_form(form, error_answer(e)));
    }
    uint64_t number = numbered ? arrivals_++ : 0;
    prepare_->post([this, answer, number, form, exchange = std::move(exchange)] {
      answer_json(exchange, answer, number, form);
    });
  };
}

void Api::answer_json(const http::ExchangePtr& exchange, const JsonAnswer& answer, uint64_t number,
                      ErrorForm form) {
  if (exchange->gone()) return;
  try {
    answer(exchange, parse_body(exchange->request()), number);
  } catch (const ModelNotLoaded& e) {
    registry_->when_loaded(
        e.name(), [this, exchange, answer, number, form](const std::exception* error) {
          if (error != nullptr) return exchange->respond(in_form(form, error_answer(*error)));
          prepare_->post([=, this] { answer_json(exchange, answer, number, form); });
        });
  } catch (const std::exception& e) {
    exchange->respond(in_form(form, error_answer(e)));
  }
}

http::Handler Api::on_worker(Answer answer) {
  return [this, answer = std::move(answer)](http::ExchangePtr exchange) {
    try {
      authorise(exchange->request());
    } catch (const std::exception& e) {
      return exchange->respond(error_answer(e));
    }
    prepare_->post([this, answer, exchange = std::move(exchange)] { quick(answer)(exchange); });
  };
}

http::Handler Api::generator(Dialect dialect) {
  ErrorForm form = dialect.error;
  return with_json(
      [this, dialect = std::move(dialect)](http::ExchangePtr exchange, Value body,
                                           uint64_t number) {
        generate(std::move(exchange), std::move(body), dialect, number);
      },
      true, form);
}

http::Handler Api::vectors(VectorRoute route, ErrorForm form, BodyForm rewrite) {
  return with_json(
      [=, this](http::ExchangePtr exchange, Value given, uint64_t) {
        const Value body = rewrite == nullptr ? std::move(given) : rewrite(std::move(given));
        RequestContext context = context_of(exchange->request());
        try {
          context.slot = keys_.admit(key_of(exchange->request()), context.start);
          VectorRequest request = route(body, model_of(body));
          request.tenant = tenant_of(exchange->request());
          request.cache_salt = salt_of(request.tenant, "");
          request.timeout_seconds = options_.request_timeout_seconds;
          std::make_shared<VectorCall>(exchange, std::move(request), *stream_, stats_, context)
              ->start();
          if (context.slot != nullptr) context.slot->accept();
        } catch (const ModelNotLoaded&) {
          throw;
        } catch (const std::exception& e) {
          context.slot.reset();  // a client that asks again at once finds its place free
          http::Response response = in_form(form, error_answer(e));
          response.headers.emplace_back("traceparent", context.trace.header());
          if (log_ != nullptr) log_->write(context.trace, context.line(response.status, e.what()));
          exchange->respond(std::move(response));
        }
      },
      false, form);
}

uint64_t Api::seed_of(uint64_t number) const {
  if (!options_.seed) return fresh_number();
  auto bits = philox(*options_.seed, number, 0);
  return uint64_t{bits[0]} << 32 | bits[1];
}

RequestContext Api::context_of(const http::Request& request) const {
  RequestContext context;
  context.trace = trace_of(request);
  context.route = request.path;
  context.remote = request.remote;
  context.start = SteadyClock().now();
  context.log = log_.get();
  return context;
}

void Api::generate(http::ExchangePtr exchange, Value body, const Dialect& dialect,
                   uint64_t number) {
  RequestContext context = context_of(exchange->request());
  try {
    context.slot = keys_.admit(key_of(exchange->request()), context.start);
    generate(exchange, std::move(body), dialect, seed_of(number), context);
  } catch (const ModelNotLoaded&) {
    throw;
  } catch (const std::exception& e) {
    context.slot.reset();  // a client that asks again at once finds its place free
    http::Response response = in_form(dialect.error, error_answer(e));
    response.headers.emplace_back("traceparent", context.trace.header());
    if (log_ != nullptr) log_->write(context.trace, context.line(response.status, e.what()));
    exchange->respond(std::move(response));
  }
}

void Api::generate(http::ExchangePtr exchange, Value body, const Dialect& dialect, uint64_t seed,
                   const RequestContext& context) {
  Translated asked = dialect.translate(std::move(body), exchange->request());
  if (asked.answer) return exchange->respond(std::move(*asked.answer));
  auto model = model_of(asked.body);
  if (!model->embedding.generates())
    bad_request("model", "model_not_supported",
                "The model '{}' is an encoder and generates no text; use {}.", model->name,
                model->embedding.classifies() ? "/v1/classify or /v1/rerank" : "/v1/embeddings");
  Prepared request = asked.chat ? prepare_chat(asked.body, model, seed, asked.clamp)
                                : prepare_completion(asked.body, model, seed, asked.clamp);
  GenerationParams& params = request.params;
  params.sample.penalize_prompt = asked.penalize_prompt;
  add_tenant(exchange->request(), params);
  if (std::string_view id = exchange->request().request_id(); !id.empty()) params.request_id = id;
  params.timeout_seconds = options_.request_timeout_seconds;
  ShapeOptions shape;
  shape.model = model->name;
  shape.fingerprint = model->fingerprint;
  shape.created = unix_seconds();
  shape.logprobs = params.logprobs >= 0;
  shape.top_logprobs = params.logprobs;
  shape.prompt_logprobs = params.prompt_logprobs;
  shape.include_usage = params.stream && params.include_usage;
  shape.continuous_usage = params.continuous_usage;
  shape.token_ids = params.return_token_ids;
  shape.spell_ids = params.spell_ids;
  shape.timings = params.timings;
  shape.sampled_probs = params.sample.report_sampled;
  if (asked.settings != nullptr) shape.settings = asked.settings(params, *model);
  auto made = asked.shape(std::move(shape), *model->tokenizer);
  std::optional<Detached> detached;
  if (asked.detach) detached = asked.detach(*made);
  try {
    std::make_shared<Generation>(detached ? detached->exchange : exchange, std::move(request),
                                 std::move(made), *stream_, stats_, context)
        ->start();
  } catch (...) {
    if (detached) detached->refused();
    throw;
  }
  if (context.slot != nullptr) context.slot->accept();
  if (detached) detached->accepted(exchange);
}

http::Response Api::metrics(const http::Request& request) const {
  std::vector<ModelMetrics> models;
  const auto loaded = registry_->loaded();
  for (const auto& model : loaded)
    models.push_back(
        {model->name, model->max_model_len, model->client->stats(), model->client->memory()});
  MetricsOptions options{options_.version, options_.vllm_metrics, options_.llama_metrics,
                         start_time_, log_ ? log_->exporter() : nullptr};
  options.open_metrics =
      request.header("accept").find("application/openmetrics-text") != std::string_view::npos;
  http::Response response;
  response.content_type = options.open_metrics
                              ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                              : "text/plain; version=0.0.4; charset=utf-8";
  response.body = metrics_text(options, models, *stats_, options_.http_stats);
  return response;
}

http::Response Api::openapi() const {
  Value document = parse_json(kOpenapiJson, "openapi.json");
  document.find("info")->set("version", options_.version);
  return http::json_response(document);
}

// "decode", or "decode/NAME" for one of several models.
http::Response Api::plan(const std::string& which) const {
  size_t slash = which.find('/');
  auto served = model(slash == std::string::npos ? "" : which.substr(slash + 1));
  std::string function = which.substr(0, slash);
  if (function != "decode" && function != "step")
    throw ApiError(404, "There are plans of 'decode' and 'step'.", "function", "no_plan");
  if (!served->plan) throw ApiError(404, "The plan of this model is not available.", "", "no_plan");
  return http::json_response(served->plan(function));
}

// For supervisors and load balancers: no key, also while the server drains.
void Api::add_probes(http::Router& router) {
  auto alive = [](const http::Request&) {
    return http::json_response(Value::Object{{"status", "ok"}});
  };
  router.add("GET", "/health", quick(alive, true), true);
  router.add("GET", "/v1/health", quick(alive, true), true);
  router.add("GET", "/ping", quick(alive, true), true);
  router.add("GET", "/ready",
             quick(
                 [](const http::Request& request) {
                   http::Response response = http::json_response(
                       Value::Object{{"status", request.draining ? "draining" : "ready"}});
                   if (request.draining) response.status = 503;
                   return response;
                 },
                 true),
             true);
  router.add("GET", "/metrics", quick([this](const http::Request& r) { return metrics(r); }), true);
}

void Api::add_routes(http::Router& router) {
  using http::ExchangePtr;
  using http::Request;
  add_probes(router);
  router.add("GET", "/openapi.json", quick([this](const Request&) { return openapi(); }));
  router.add("GET", "/version", quick([this](const Request&) {
               Value value = Value::object();
               value.set("version", options_.version);
               return http::json_response(value);
             }));
  for (std::string base :
       {"/v1", ""}) {  // also without /v1, for clients whose base address lacks it
    router.add("GET", base + "/models", quick([this](const Request&) { return list_models(); }));
    router.add("GET", base + "/models/{id...}",
               quick([this](const Request& request) { return one_model(request.parameter); }));
    for (bool chat : {true, false})
      router.add("POST", base + (chat ? "/chat/completions" : "/completions"),
                 generator(openai_dialect(chat, *this)));
    for (auto [path, route] :
         {std::pair<const char*, VectorRoute>{
              "/embeddings", base.empty() ? prepare_bare_embeddings : prepare_embeddings},
          {"/rerank", prepare_rerank},
          {"/reranking", prepare_rerank},
          {"/score", prepare_score},
          {"/classify", prepare_classify}})
      router.add("POST", base + path, vectors(route));
    add_program_routes(router, base);
  }
  router.add("POST", "/embedding", vectors(prepare_llama_embedding));
  router.add("POST", "/v2/rerank", vectors(prepare_rerank));
  auto add_plain = [&](const char* path, http::Response (Api::*method)(const Value&) const) {
    router.add("POST", path,
               with_json([this, method](ExchangePtr exchange, const Value& body, uint64_t) {
                 exchange->respond((this->*method)(body));
               }));
  };
  router.add("GET", "/plan/{function...}",
             on_worker([this](const Request& request) { return plan(request.parameter); }));
  add_plain("/tokenize", &Api::tokenize);
  add_plain("/detokenize", &Api::detokenize);
  add_plain("/apply-template", &Api::apply_template);
  add_model_routes(router);
  add_adapter_routes(router);
  add_scale_routes(router);
  add_operator_routes(router);
  add_compat_routes(*this, router);
}

}  // namespace tokamak::openai
