#pragma once
// The OpenAI-compatible API: routes over one or more models.
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "serve/compat/dialect.h"
#include "serve/http/router.h"
#include "serve/http/server.h"
#include "serve/model_registry.h"
#include "serve/openai/api_keys.h"
#include "serve/openai/generation.h"
#include "serve/openai/vectors.h"
#include "serve/served_model.h"
#include "serve/worker_pool.h"

namespace tokamak::program {
struct Host;
}

namespace tokamak::openai {

class PausedPrograms;

struct ApiOptions {
  std::vector<ApiKey> api_keys;        // empty: no key needed; otherwise every route except health
                                       // and readiness requires one
  std::string admin_key;               // needed to load models and adapters; empty: loading is off
  ModelLimits limits;                  // of models that are loaded when they are needed
  double request_timeout_seconds = 0;  // 0: none
  // Requests without a seed derive theirs from this and their arrival number; without a value, the
  // seeds differ in each run.
  std::optional<uint64_t> seed;
  int prepare_threads = 2;  // JSON, templates, tokenising
  int stream_threads =
      1;  // detokenising and JSON of answers, so that a long prompt does not delay them
  std::string version = "0.1.0";
  std::string request_log;      // file for one JSON line per generation request; empty: none
  std::string trace_collector;  // address for spans (OTLP over HTTP); empty: none
  std::string service_name = "tokamak";  // in the spans
  std::string slot_folder;               // files of saved slots (/slots); empty: they are not saved
  bool vllm_metrics = false;             // also export /metrics under vLLM's names
  bool llama_metrics = false;            // ... under llama.cpp's
  const http::ServerStats* http_stats = nullptr;  // of the server that the routes are added to
  std::function<void()> restart;                  // replaces the process; empty: it cannot be
};

// Owner: the program; destroyed after the http::Server with its routes has been stopped, and before
// the engines. Thread-safe.
class Api {
 public:
  Api(ApiOptions options, std::vector<ServedModel> models);
  Api(ApiOptions options, std::vector<ModelEntry> models);
  ~Api();

  void add_routes(http::Router& router);
  const GenerationStats& stats() const { return *stats_; }
  // Ends the request with this id, if it runs and is the tenant's.
  void abort(const std::string& tenant, const std::string& id) {
    stats_->requests.abort({id}, false, tenant);
  }
  // The model of that name (empty: the first). Throws ApiError(404) or ModelNotLoaded: handlers of
  // with_json let that one pass, and are called again when the model is loaded.
  std::shared_ptr<const ServedModel> model(const std::string& name) const;
  std::shared_ptr<const ServedModel> model_of(const Value& body) const;
  std::vector<std::shared_ptr<const ServedModel>> models() const { return registry_->loaded(); }
  std::vector<ModelRegistry::Listed> known_models() const { return registry_->list(); }
  const ApiOptions& options() const { return options_; }

  // For routes of this and of other APIs: a handler that answers on the I/O thread (direct: or
  // passes the exchange on), one on a worker, one that receives the parsed body there, and one that
  // generates. open: no key is needed. number: counts the requests of all handlers that are
  // numbered, in the order of arrival.
  using Answer = std::function<http::Response(const http::Request&)>;
  using JsonAnswer = std::function<void(http::ExchangePtr, Value body, uint64_t number)>;
  http::Handler quick(Answer answer, bool open = false, ErrorForm form = nullptr);
  http::Handler direct(http::Handler handler, bool open = false, ErrorForm form = nullptr);
  http::Handler with_json(JsonAnswer answer, bool numbered = false, ErrorForm form = nullptr);
  http::Handler on_worker(Answer answer);
  http::Handler generator(Dialect dialect);
  http::Handler vectors(VectorRoute route, ErrorForm form = nullptr, BodyForm body = nullptr);
  // The client's key; "" if none is needed.
  std::string tenant_of(const http::Request& request) const;
  std::string salt_of(const std::string& tenant, const std::string& salt) const;  // operators.cc
  bool serves(const std::string& name) const;  // a model or an adapter, loaded or not

 private:
  static std::string_view key_of(const http::Request& request);  // empty: it has none
  void authorise(const http::Request& request) const;            // throws ApiError(401)
  // models.cc
  void need_admin(const http::Request& request) const;  // throws ApiError(401 or 403)
  void need_admin_and_loading(const http::Request& request) const;
  // Does not load it: throws ApiError(400) if it is not loaded.
  std::shared_ptr<const ServedModel> loaded_model(const std::string& name) const;
  void load_model(const http::ExchangePtr& exchange, const Value& body);
  http::Response unload_model(const Value& body);
  void add_model_routes(http::Router& router);
  // adapters.cc
  void add_adapter(const ServedModel& base, std::shared_ptr<const Adapter> adapter, bool replace);
  http::Response load_adapter(const Value& body);
  http::Response unload_adapter(const Value& body);
  void add_adapter_routes(http::Router& router);
  // lora_scales.cc: llama.cpp's way, adapters by number and scale
  std::vector<std::shared_ptr<const ServedModel>> numbered_adapters(
      const std::string& parent) const;
  std::shared_ptr<const ServedModel> with_scales(std::shared_ptr<const ServedModel> model,
                                                 const Value* given) const;
  http::Response list_scales() const;
  http::Response set_scales(const http::Request& request);
  void add_scale_routes(http::Router& router);
  // operators.cc
  http::Response reset_cache(const http::Request& request);
  http::Response restart(const http::Request& request);
  http::Response prefixes(const http::Request& request);
  http::Response timeline(const std::string& which);  // timeline.cc
  http::Response abort_requests(const http::Request& request, const Value& body);
  void add_operator_routes(http::Router& router);
  void add_tenant(const http::Request& request, GenerationParams& params) const;

  void answer_json(const http::ExchangePtr& exchange, const JsonAnswer& answer, uint64_t number,
                   ErrorForm form);
  void complete(ServedModel& model) const;  // what the program did not set
  RequestContext context_of(const http::Request& request) const;
  uint64_t seed_of(uint64_t number) const;  // of a request without a seed
  // program_call.cc
  using ProgramStart = void (Api::*)(const http::ExchangePtr& exchange, const Value& body,
                                     uint64_t number, const RequestContext& context);
  http::Handler program_route(ProgramStart start);
  void add_program_routes(http::Router& router, const std::string& base);
  static program::Host program_host(const std::shared_ptr<const ServedModel>& model);
  void run_program(const http::ExchangePtr& exchange, const Value& body, uint64_t number,
                   const RequestContext& context);
  void resume_program(const http::ExchangePtr& exchange, const Value& body, uint64_t number,
                      const RequestContext& context);
  void generate(http::ExchangePtr exchange, Value body, const Dialect& dialect, uint64_t number);
  void generate(http::ExchangePtr exchange, Value body, const Dialect& dialect, uint64_t seed,
                const RequestContext& context);
  http::Response list_models() const;
  http::Response one_model(const std::string& name) const;
  http::Response tokenize(const Value& body) const;
  http::Response detokenize(const Value& body) const;
  http::Response apply_template(const Value& body) const;
  http::Response metrics(const http::Request& request) const;
  http::Response openapi() const;
  http::Response plan(const std::string& which) const;
  void add_probes(http::Router& router);

  const ApiOptions options_;
  const int64_t start_time_;
  std::shared_ptr<GenerationStats> stats_ = std::make_shared<GenerationStats>();
  std::atomic<uint64_t> arrivals_{0};
  std::atomic<uint64_t> cache_epoch_{0};  // how often the prefix cache was reset
  ApiKeys keys_, admin_;
  std::mutex tree_mutex_;      // one request at a time waits for an engine's prefix tree
  std::mutex timeline_mutex_;  // and one for a measured step
  mutable std::mutex adapters_mutex_;
  std::map<std::string, std::shared_ptr<const ServedModel>> adapters_;
  // The scale of adapters, by their ids, for requests that do not say; and the sums in use.
  using Scales = std::map<uint64_t, float>;
  Scales scales_;
  mutable std::map<Scales, std::shared_ptr<const Adapter>> sums_;
  std::unique_ptr<RequestLog> log_;
  std::unique_ptr<ModelRegistry> registry_;
  std::shared_ptr<PausedPrograms> paused_programs_;
  std::unique_ptr<WorkerPool> prepare_, stream_, programs_;
};

// The engine of a model, with an adapter for every request.
std::shared_ptr<Client> with_adapter(std::shared_ptr<Client> base,
                                     std::shared_ptr<const Adapter> adapter);
// The body of a request as JSON of any kind. Throws ApiError(400).
Value parse_any_body(const http::Request& request);

}  // namespace tokamak::openai
