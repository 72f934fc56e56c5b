// tokamak serve: the OpenAI-compatible server and the chat page.
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "apps/model_setup.h"
#include "apps/terminal.h"
#include "apps/verbs.h"
#include "base/error.h"
#include "base/log.h"
#include "serve/http/server.h"
#include "serve/openai/api.h"
#include "serve/web/page.h"

namespace tokamak {
namespace {

struct ServeFlags {
  ModelFlags model;
  http::ServerOptions http;
  std::vector<std::string> api_keys, names, origins = {"*"};
  double request_timeout = 0, shutdown_timeout = 30;
  int max_body_mb = 16;
};

ServedModel served(const LoadedModel& loaded, const ServeFlags& flags) {
  ServedModel model;
  model.name = flags.names.empty() ? loaded.name : flags.names[0];
  for (size_t i = 1; i < flags.names.size(); ++i) model.aliases.push_back(flags.names[i]);
  if (flags.names.empty()) {  // people also type what they started the server with
    model.aliases.push_back(flags.model.model);
    model.aliases.push_back(std::filesystem::path(flags.model.model).stem().string());
  }
  model.client = loaded.engine;
  model.tokenizer = loaded.tokenizer;
  model.chat_template = loaded.chat_template;
  model.max_model_len = loaded.engine->info().max_model_len;
  model.created = unix_seconds();
  return model;
}

void serve(ServeFlags& flags) {
  SteadyClock clock;
  Nanos start = clock.now();
  flags.http.max_body_bytes = static_cast<size_t>(flags.max_body_mb) << 20;
  flags.http.allowed_origins = flags.origins;
  if (flags.api_keys.empty())
    if (const char* key = std::getenv("TOKAMAK_API_KEY"); key != nullptr && *key != '\0')
      flags.api_keys.push_back(key);
  http::Server server(flags.http);
  LoadedModel loaded = load_model(flags.model);
  if (loaded.chat_template == nullptr)
    log::warn("{} has no chat template: /v1/chat/completions will refuse, /v1/completions works",
              loaded.name);
  openai::ApiOptions options;
  options.api_keys = flags.api_keys;
  options.request_timeout_seconds = flags.request_timeout;
  options.version = TOKAMAK_VERSION;
  openai::Api api(options, {served(loaded, flags)});
  http::Router router;
  api.add_routes(router);
  web::add_page(router);
  server.catch_signals();
  server.start(std::move(router));
  fmt::print("tokamak: {} is ready at {} after {:.1f} s\n", served(loaded, flags).name,
             server.url(), seconds(clock.now() - start));
  std::fflush(stdout);
  auto drain = std::chrono::milliseconds(static_cast<int64_t>(flags.shutdown_timeout * 1000));
  server.run_until_signal(drain);
  log::info("stopped");
}

}  // namespace

void add_serve_verb(CLI::App& app) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* verb = app.add_subcommand("serve", "OpenAI-compatible server and chat page");
  add_model_argument(*verb, flags->model);
  verb->add_option("--host", flags->http.host, "address to listen on; 0.0.0.0 for all")
      ->capture_default_str();
  verb->add_option("--port", flags->http.port, "port to listen on; 0 takes a free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  verb->add_option("--api-key", flags->api_keys,
                   "ask clients for this key (may be repeated; also $TOKAMAK_API_KEY)");
  verb->add_option("--served-model-name", flags->names,
                   "name(s) clients call the model by; the first is shown");
  verb->add_option("--max-model-len", flags->model.context, "the same as --context")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24));
  verb->add_option("--max-num-seqs", flags->model.max_sequences, "sequences computed at a time")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}))
      ->capture_default_str();
  verb->add_option("--max-num-batched-tokens", flags->model.max_tokens, "tokens of one step")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  verb->add_option("--request-timeout", flags->request_timeout,
                   "seconds until a request is given up; 0 = never")
      ->check(CLI::Range(0.0, 1e6));
  verb->add_option("--shutdown-timeout", flags->shutdown_timeout,
                   "seconds that running answers get when the server is stopped")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  verb->add_option("--allowed-origins", flags->origins,
                   "web origins whose pages may use the server; * = any")
      ->capture_default_str();
  verb->add_option("--max-connections", flags->http.max_connections, "open connections")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--max-body-mb", flags->max_body_mb, "largest request in MiB")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  add_model_flags(*verb, flags->model);
  verb->footer(
      "Examples:\n  tokamak serve SmolLM2-135M-Instruct.Q4_1.gguf\n"
      "  tokamak serve model.gguf --host 0.0.0.0 --port 9000 --api-key secret\n"
      "  curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\\n"
      "       -d '{\"prompt\": \"The capital of France is\", \"max_tokens\": 8}'");
  verb->callback([flags] { serve(*flags); });
}

}  // namespace tokamak
