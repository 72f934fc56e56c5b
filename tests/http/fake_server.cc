// The real server over a fake engine, for black-box tests that need no model. Prints "ready PORT"
// and runs until SIGTERM. GET /fake shows the requests that the engine received.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sstream>

#include "base/json.h"
#include "serve/batch/batch_api.h"
#include "serve/compat/rag.h"
#include "serve/fake_client.h"
#include "serve/http/server.h"
#include "serve/openai/api.h"
#include "serve/web/page.h"

using namespace tokamak;

namespace {

// --name=value; missing options keep their defaults.
int64_t option(int argc, char** argv, const char* name, int64_t fallback) {
  std::string prefix = std::string("--") + name + "=";
  for (int i = 1; i < argc; ++i)
    if (std::strncmp(argv[i], prefix.c_str(), prefix.size()) == 0)
      return std::atoll(argv[i] + prefix.size());
  return fallback;
}

std::vector<openai::RagSource> fake_passages(const std::string& question, int64_t top) {
  std::vector<openai::RagSource> sources = {{"a.txt", "about " + question, 1, 0.75},
                                            {"b.txt", "something else", 7, 0.25}};
  sources.resize(std::min(sources.size(), static_cast<size_t>(top)));
  return sources;
}

http::ServerOptions server_options(int argc, char** argv) {
  http::ServerOptions options;
  auto number = [&](const char* name, auto& field) {
    field = static_cast<std::remove_reference_t<decltype(field)>>(
        option(argc, argv, name, static_cast<int64_t>(field)));
  };
  auto time = [&](const char* name, std::chrono::milliseconds& field) {
    field = std::chrono::milliseconds(option(argc, argv, name, field.count()));
  };
  options.port = 0;
  number("port", options.port);
  number("io-threads", options.io_threads);
  number("max-connections", options.max_connections);
  number("max-header", options.max_header_bytes);
  number("max-body", options.max_body_bytes);
  number("max-unsent", options.max_unsent_bytes);
  number("send-buffer", options.send_buffer_bytes);
  time("read-ms", options.read_timeout);
  time("idle-ms", options.idle_timeout);
  time("write-ms", options.write_timeout);
  time("ping-ms", options.ping_interval);
  if (const char* file = std::getenv("FAKE_CERTIFICATE")) options.tls_certificate = file;
  if (const char* file = std::getenv("FAKE_KEY")) options.tls_key = file;
  if (const char* origins = std::getenv("FAKE_ORIGINS")) {
    options.allowed_origins.clear();
    std::istringstream list(origins);
    for (std::string one; list >> one;) options.allowed_origins.push_back(one);
  }
  return options;
}

http::Response engine_state(const tokamak::testing::FakeClient& client, const openai::Api& api,
                            const http::Server& server) {
  Value value = Value::object();
  value.set("submitted", client.submitted.load());
  value.set("cancelled", client.cancelled.load());
  value.set("stopped", client.stopped.load());
  value.set("finished", client.finished.load());
  value.set("tokens", client.tokens.load());
  value.set("running", client.running());
  value.set("last_stop", client.last_stop_position());
  value.set("cache_salt", client.last_spec().cache_salt);
  value.set("tenant", client.last_spec().tenant);
  value.set("generations", api.stats().running.load());
  value.set("connections", server.stats().connections.load());
  http::Response response;
  response.body = dump_json(value);
  return response;
}

// The fields that the code reads, to compare with the OpenAPI document.
Value known_fields(const std::shared_ptr<const ServedModel>& model) {
  auto list = [](const std::vector<std::string_view>& names) {
    Value out = Value::array();
    for (std::string_view name : names) out.push(name);
    return out;
  };
  Value body = parse_json(R"({"messages": [{"role": "user", "content": "x"}], "prompt": "x"})");
  openai::Fields fields(body);
  openai::render_chat(fields, *model);
  return Value::Object{{"chat", list(openai::prepare_chat(body, model).known_fields)},
                       {"completion", list(openai::prepare_completion(body, model).known_fields)},
                       {"template", list(fields.known())}};
}

openai::BatchOptions batch_options(int argc, char** argv, const char* folder) {
  openai::BatchOptions options{folder, 4};
  options.retention = option(argc, argv, "batch-retention", options.retention);
  options.max_files = option(argc, argv, "batch-max-files", options.max_files);
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    auto client = std::make_shared<tokamak::testing::FakeClient>();
    http::Server server(server_options(argc, argv));
    openai::ApiOptions options;
    if (const char* key = std::getenv("FAKE_API_KEY")) options.api_keys = {{key}};
    if (const char* key = std::getenv("FAKE_ADMIN_KEY")) options.admin_key = key;
    if (const char* file = std::getenv("FAKE_KEY_FILE"))
      options.api_keys = openai::read_key_file(file);
    options.request_timeout_seconds =
        static_cast<double>(option(argc, argv, "request-timeout-ms", 0)) * 1e-3;
    if (const char* file = std::getenv("FAKE_REQUEST_LOG")) options.request_log = file;
    if (const char* url = std::getenv("FAKE_COLLECTOR")) options.trace_collector = url;
    options.vllm_metrics = options.llama_metrics = option(argc, argv, "vllm", 0) != 0;
    options.http_stats = &server.stats();
    client->retry_after = static_cast<double>(option(argc, argv, "retry-after", 1));
    client->tree_ms = option(argc, argv, "tree-ms", 0);
    ServedModel model = tokamak::testing::fake_model(client);
    if (const char* format = std::getenv("FAKE_TOOLS"))
      model.tool_format = find_tool_format(format);
    openai::Api api(options, {std::move(model)});
    http::Router router;
    api.add_routes(router);
    std::optional<openai::BatchApi> batches;
    if (const char* folder = std::getenv("FAKE_BATCH_DIR")) {
      batches.emplace(batch_options(argc, argv, folder), api, router);
      batches->add_routes(router);
    } else {
      openai::explain_missing_batches(api, router);
    }
    openai::add_rag_routes(api, router,
                           Value::Object{{"model", "fake"}, {"files", 1}, {"passages", 2}},
                           fake_passages);
    web::add_page(router);
    router.add("GET", "/fake", [&](http::ExchangePtr exchange) {
      exchange->respond(engine_state(*client, api, server));
    });
    Value routes = Value::array();
    for (const std::string& line : router.listing()) routes.push(line);
    router.add("GET", "/fake/routes", [routes](http::ExchangePtr exchange) {
      http::Response response;
      response.body = dump_json(routes);
      exchange->respond(std::move(response));
    });
    router.add("GET", "/fake/fields", [&](http::ExchangePtr exchange) {
      http::Response response;
      response.body = dump_json(known_fields(api.model("")));
      exchange->respond(std::move(response));
    });
    server.catch_signals();
    server.start(std::move(router));
    std::printf("ready %d\n", server.port());
    std::fflush(stdout);
    server.run_until_signal(std::chrono::milliseconds(option(argc, argv, "drain-ms", 5000)));
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 1;
  }
}
