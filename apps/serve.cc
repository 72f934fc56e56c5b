// tokamak serve: the OpenAI-compatible server and the chat page.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "api/resident.h"
#include "apps/explain.h"
#include "apps/ledger.h"
#include "apps/model_flags.h"
#include "apps/model_store.h"
#include "apps/rag_index.h"
#include "apps/terminal.h"
#include "apps/verbs.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/context_shift.h"
#include "serve/batch/batch_api.h"
#include "serve/http/server.h"
#include "serve/openai/api.h"
#include "serve/process_memory.h"
#include "serve/web/page.h"

namespace tokamak {
namespace {

struct ServeFlags {
  OpenOptions model;
  std::vector<std::string> models;
  http::ServerOptions http;
  openai::BatchOptions batches;
  RagServeFlags rag;
  std::vector<std::string> api_keys, names;
  std::optional<uint64_t> seed;
  double request_timeout = 0, shutdown_timeout = 30, tpot_target_ms = 250, unload_idle = 0;
  ModelLimits limits;
  int max_body_mb = 16;
  int64_t max_queue = 4096;
  bool no_prefix_cache = false, no_ui = false, context_shift = false;
  int32_t keep = 0;
  std::vector<std::string> lora_modules;
  std::string lora_dir, admin_key;
  GenerateOptions sampling;
  std::string scheduler = "fcfs", kv_policy = "max-utilization", metrics_compat, request_log,
              tool_format, key_file, trace_collector;
};

ServedModel served(const LoadedModel& loaded, const ServeFlags& flags, size_t index) {
  const std::string& path = flags.models[index];
  ServedModel model;
  bool alone = flags.models.size() == 1;
  model.name = flags.names.empty() ? loaded.name : flags.names[alone ? 0 : index];
  if (alone)
    for (size_t i = 1; i < flags.names.size(); ++i) model.aliases.push_back(flags.names[i]);
  if (flags.names.empty()) {  // clients may also use the path the server was started with
    model.aliases.push_back(path);
    model.aliases.push_back(std::filesystem::path(path).stem().string());
  }
  model.client = loaded.engine;
  model.context_shift = flags.context_shift;
  model.shift_keep = flags.keep;
  if (flags.context_shift) model.client = std::make_shared<ContextShift>(loaded.engine);
  model.tokenizer = loaded.tokenizer;
  model.chat_template = loaded.chat_template;
  model.tool_format = find_tool_format(flags.tool_format);
  model.grammars = loaded.grammars;
  model.embedding = loaded.embedding;
  model.embedder = loaded.embedder;
  model.vector_width = loaded.engine->config().vector_width;
  model.max_model_len = loaded.engine->info().max_model_len;
  model.max_sequences = loaded.engine->config().max_num_seqs;
  model.draft_tokens = loaded.drafter ? loaded.engine->config().draft_tokens : 0;
  model.dola_layers = loaded.engine->config().layers;
  const std::vector<WeightEntry>& weights = loaded.source->plans().weights;
  model.shares_embedding = std::none_of(weights.begin(), weights.end(), [](const WeightEntry& w) {
    return w.name.starts_with("output.weight");
  });
  model.jump_forward = flags.sampling.jump_forward;
  model.created = unix_seconds();
  OpenOptions options = flags.model;
  options.model = path;
  struct Reports {
    std::mutex mutex;
    std::map<std::string, Value> by_function;
  };
  // A report compiles the model again: once per function.
  model.plan = [options, reports = std::make_shared<Reports>()](const std::string& function) {
    std::lock_guard lock(reports->mutex);
    auto it = reports->by_function.find(function);
    if (it == reports->by_function.end())
      it = reports->by_function.emplace(function, explain_report(options, function)).first;
    return it->second;
  };
  model.defaults = sample_spec(loaded.defaults, flags.sampling);
  if (loaded.adapters) {
    model.adapters = loaded.adapters->list();
    for (const auto& adapter : model.adapters) loaded.adapters->remove(adapter->name);
    model.open_adapter = [host = loaded.adapters, folder = flags.lora_dir](
                             const std::string& name, const std::string& path) {
      if (folder.empty())
        fail(ErrorCode::kInvalidArgument,
             "adapters are loaded from one folder only: start the server with --lora-dir");
      return host->open(name, adapter_inside(folder, path));
    };
  }
  return model;
}

// NAME=PATH, or JSON with "name" and "path" as in vLLM.
std::pair<std::string, std::string> lora_module(const std::string& text) {
  if (text.starts_with('{')) {
    Value module = parse_json(text, "--lora-modules");
    return {module.at("name").as_string(), module.at("path").as_string()};
  }
  size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
    fail(ErrorCode::kInvalidArgument, "--lora-modules: \"{}\" is not NAME=PATH", text);
  return {text.substr(0, equals), text.substr(equals + 1)};
}

void check_adapters(ServeFlags& flags) {
  for (const std::string& module : flags.lora_modules)
    flags.model.adapters.push_back(lora_module(module));
  if (flags.admin_key.empty())
    if (const char* key = std::getenv("TOKAMAK_ADMIN_KEY"); key != nullptr) flags.admin_key = key;
  if (!flags.lora_dir.empty()) flags.model.enable_adapters = true;
  if (wants_adapters(flags.model) && flags.models.size() > 1)
    fail(ErrorCode::kInvalidArgument, "adapters need a server with one model, not {}",
         flags.models.size());
  if (!flags.lora_dir.empty() && flags.admin_key.empty())
    fail(ErrorCode::kInvalidArgument,
         "--lora-dir lets clients load files: give the key that they need with --admin-key");
}

// Models are loaded when they are needed.
bool on_demand(const ServeFlags& flags) {
  return flags.limits.loaded > 0 || flags.limits.bytes > 0 || flags.limits.idle.count() > 0;
}

// Refuses contradicting flags before anything is loaded.
void check(ServeFlags& flags) {
  check_adapters(flags);
  if (flags.models.size() > 1 && !flags.names.empty() && flags.names.size() != flags.models.size())
    fail(ErrorCode::kInvalidArgument, "--served-model-name: {} names for {} models; give one each",
         flags.names.size(), flags.models.size());
  if (flags.model.kv_cache_bytes > 0 && flags.model.kv_blocks > 0)
    fail(ErrorCode::kInvalidArgument, "give either --kv-cache-memory or --kv-blocks, not both");
  if (flags.model.gpu_memory_utilization > 0 &&
      (flags.model.kv_cache_bytes > 0 || flags.model.kv_blocks > 0))
    fail(ErrorCode::kInvalidArgument,
         "--gpu-memory-utilization sets the size of the KV cache, as --kv-cache-memory and "
         "--kv-blocks do: give one of them");
  flags.limits.idle = std::chrono::milliseconds(static_cast<int64_t>(flags.unload_idle * 1000));
  if (flags.model.enable_adapters && on_demand(flags))
    fail(ErrorCode::kInvalidArgument,
         "adapters need a model that stays loaded: leave out --max-loaded-models, --model-memory "
         "and --unload-idle, or the adapters");
  check_generate_options(flags.sampling);
  SchedPolicy policy = parse_sched_policy(flags.scheduler);
  KvPolicy kv_policy = parse_kv_policy(flags.kv_policy);
  flags.model.tune = [&flags, policy, kv_policy](EngineConfig& config) {
    config.policy = policy;
    config.kv_policy = kv_policy;
    config.max_queue = flags.max_queue;
    config.tpot_target = static_cast<Nanos>(flags.tpot_target_ms * 1e6);
    config.prefix_cache = !flags.no_prefix_cache;
    config.max_in_flight = 2;  // the engine takes as many as its backend can
  };
  flags.http.max_body_bytes = static_cast<size_t>(flags.max_body_mb) << 20;
  if (flags.api_keys.empty() && flags.key_file.empty())
    if (const char* key = std::getenv("TOKAMAK_API_KEY"); key != nullptr && *key != '\0')
      flags.api_keys.push_back(key);
}

std::vector<LoadedModel> load_all(const ServeFlags& flags) {
  std::vector<LoadedModel> models;
  for (const std::string& path : flags.models) {
    OpenOptions one = flags.model;
    one.model = path;
    models.push_back(load_with_progress(one));
    const EmbeddingSpec& embedding = models.back().embedding;
    if (embedding.encoder)
      log::info("{} is an encoder: /v1/{}", models.back().name,
                embedding.classifies() ? "classify, /v1/rerank and /v1/score"
                                       : "embeddings, /v1/rerank and /v1/score");
    else if (models.back().chat_template == nullptr)
      log::warn("{} has no chat template: /v1/chat/completions will refuse, /v1/completions works",
                models.back().name);
  }
  return models;
}

uint64_t file_bytes(const std::filesystem::path& path) {
  std::error_code ec;
  if (!std::filesystem::is_directory(path, ec)) {
    const auto size = std::filesystem::file_size(path, ec);
    return ec ? 0 : size;
  }
  uint64_t sum = 0;
  for (const auto& file : std::filesystem::directory_iterator(path, ec))
    if (file.path().extension() == ".safetensors") sum += file_bytes(file.path());
  return sum;
}

// Names come from the paths: a model's own is not known before it is loaded. The first is loaded
// now.
std::vector<ModelEntry> entries_on_demand(const ServeFlags& flags) {
  std::vector<ModelEntry> entries;
  for (size_t i = 0; i < flags.models.size(); ++i) {
    std::filesystem::path path = flags.models[i];
    if (!path.has_filename()) path = path.parent_path();
    ModelEntry entry;
    entry.name = flags.names.empty() ? path.stem().string() : flags.names[i];
    if (flags.names.empty()) entry.aliases.push_back(flags.models[i]);
    if (flags.models.size() == 1)
      for (size_t n = 1; n < flags.names.size(); ++n) entry.aliases.push_back(flags.names[n]);
    entry.bytes = file_bytes(path);
    entry.load = [&flags, i] {
      OpenOptions one = flags.model;
      one.model = flags.models[i];
      auto loaded = std::make_shared<LoadedModel>(load_model(one));
      release_load_memory(loaded->engine->memory().mapped == 0);
      ServedModel model = served(*loaded, flags, i);
      model.owner = std::move(loaded);
      return model;
    };
    if (std::any_of(entries.begin(), entries.end(),
                    [&](const ModelEntry& other) { return other.name == entry.name; }))
      fail(ErrorCode::kInvalidArgument,
           "two models have the name '{}': give each one with --served-model-name", entry.name);
    entries.push_back(std::move(entry));
  }
  auto first = std::make_shared<ServedModel>(entries[0].load());
  first->name = entries[0].name;
  first->aliases = entries[0].aliases;
  entries[0].model = std::move(first);
  return entries;
}

void serve(ServeFlags& flags) {
  SteadyClock clock;
  Nanos start = clock.now();
  check(flags);
  http::Server server(flags.http);
  std::vector<ModelEntry> entries;
  std::vector<LoadedModel> loaded;
  if (on_demand(flags))
    entries = entries_on_demand(flags);
  else
    loaded = load_all(flags);
  openai::ApiOptions options;
  for (const std::string& key : flags.api_keys) options.api_keys.push_back({key});
  if (!flags.key_file.empty())
    for (openai::ApiKey& key : openai::read_key_file(flags.key_file))
      options.api_keys.push_back(std::move(key));
  options.admin_key = flags.admin_key;
  options.request_timeout_seconds = flags.request_timeout;
  options.version = version();
  options.request_log = flags.request_log;
  options.trace_collector = flags.trace_collector;
  if (const char* name = std::getenv("OTEL_SERVICE_NAME")) options.service_name = name;
  options.seed = flags.seed;
  options.vllm_metrics = flags.metrics_compat == "vllm";
  options.http_stats = &server.stats();
  std::vector<ServedModel> models;
  std::string names;
  for (size_t i = 0; i < loaded.size(); ++i) {
    models.push_back(served(loaded[i], flags, i));
    names += (i > 0 ? ", " : "") + models.back().name;
  }
  for (const ModelEntry& entry : entries) names += (names.empty() ? "" : ", ") + entry.name;
  options.limits = flags.limits;
  auto api = entries.empty() ? std::make_unique<openai::Api>(options, std::move(models))
                             : std::make_unique<openai::Api>(options, std::move(entries));
  http::Router router;
  api->add_routes(router);
  std::optional<openai::BatchApi> batches;
  if (!flags.batches.folder.empty()) {
    batches.emplace(flags.batches, *api, router);
    batches->add_routes(router);
  } else {
    openai::explain_missing_batches(*api, router);
  }
  serve_rag(flags.rag, flags.model.threads, *api, router);
  if (!flags.no_ui) web::add_page(router);
  server.catch_signals();
  server.start(std::move(router));
  bool reads_files = false;  // weights are read from the mapped file
  for (const LoadedModel& m : loaded) reads_files = reads_files || m.engine->memory().mapped > 0;
  release_load_memory(!reads_files);
  print_ledger(loaded);
  fmt::print("tokamak: {} {} ready at {} after {:.1f} s\n", names,
             flags.models.size() > 1 ? "are" : "is", server.url(), seconds(clock.now() - start));
  std::fflush(stdout);
  auto drain = std::chrono::milliseconds(static_cast<int64_t>(flags.shutdown_timeout * 1000));
  server.run_until_signal(drain);
  log::info("stopped");
}

void add_network_flags(CLI::App& verb, ServeFlags& flags) {
  verb.add_option("--host", flags.http.host, "address to listen on; 0.0.0.0 for all")
      ->capture_default_str();
  verb.add_option("--port", flags.http.port, "port to listen on; 0 takes a free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  verb.add_option("--ssl-certfile,--ssl-cert-file", flags.http.tls_certificate,
                  "PEM certificate chain: serve HTTPS (TLS 1.2 and 1.3)");
  verb.add_option("--ssl-keyfile,--ssl-key-file", flags.http.tls_key, "PEM key of the certificate");
  verb.add_option("--api-key", flags.api_keys,
                  "require this key from clients (may be repeated; also $TOKAMAK_API_KEY)");
  verb.add_option("--api-key-file", flags.key_file,
                  "file of such keys, one per line, with limits: KEY running=4 per-minute=60");
  verb.add_option(
          "--allowed-origins", flags.http.allowed_origins,
          "web origins whose pages may use the server besides its own page: "
          "https://app.example.com, http://localhost:* (any port), localhost (any origin on "
          "this computer), * (any)")
      ->delimiter(',')
      ->capture_default_str();
  verb.add_option("--max-connections", flags.http.max_connections, "most open connections")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb.add_option("--max-body-mb", flags.max_body_mb, "largest request body in MiB")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  verb.add_option("--request-timeout", flags.request_timeout,
                  "seconds after which a request is aborted; 0 = never")
      ->check(CLI::Range(0.0, 1e6));
  verb.add_option("--shutdown-timeout", flags.shutdown_timeout,
                  "seconds to wait for running answers when the server stops")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  std::vector<std::string> formats;
  for (const ToolFormat& format : tool_formats()) formats.emplace_back(format.name);
  verb.add_option("--tool-call-parser", flags.tool_format,
                  "the format in which the model calls tools (default: from its chat template)")
      ->check(CLI::IsMember(formats));
  verb.add_flag("--no-ui", flags.no_ui, "do not serve the chat page");
  verb.add_option("--batch-dir", flags.batches.folder,
                  "folder for uploaded files and batches; enables /v1/files and /v1/batches");
  verb.add_option("--batch-concurrency", flags.batches.concurrency,
                  "requests of batches that run at once")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  verb.add_option("--request-log", flags.request_log,
                  "append one JSON line per request to this file");
  verb.add_option("--otlp-traces-endpoint", flags.trace_collector,
                  "send a span per request to this OpenTelemetry collector (OTLP over HTTP), e.g. "
                  "http://localhost:4318")
      ->envname("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
  verb.add_option("--metrics-compat", flags.metrics_compat,
                  "also export /metrics under the names of: vllm")
      ->check(CLI::IsMember({"vllm"}));
}

void add_adapter_flags(CLI::App& verb, ServeFlags& flags) {
  verb.add_option("--lora-modules", flags.lora_modules,
                  "adapters that clients choose by name: NAME=PATH, a PEFT folder or a GGUF file");
  verb.add_flag("--enable-lora", flags.model.enable_adapters,
                "reserve slots for adapters, also without --lora-modules");
  verb.add_option("--max-loras", flags.model.max_adapters,
                  "adapters that run at the same time (default: 4, or as many as --lora-modules); "
                  "further ones wait for a slot");
  verb.add_option("--max-lora-rank", flags.model.max_adapter_rank,
                  "largest rank of an adapter (default: that of --lora-modules, at least 16)");
  verb.add_option("--lora-dir", flags.lora_dir,
                  "folder from which /v1/load_lora_adapter may load adapters")
      ->check(CLI::ExistingDirectory);
  verb.add_option("--admin-key", flags.admin_key,
                  "key for routes that load and unload adapters and models (also "
                  "$TOKAMAK_ADMIN_KEY); it is accepted everywhere");
}

void add_loading_flags(CLI::App& verb, ServeFlags& flags) {
  verb.add_option("--max-loaded-models", flags.limits.loaded,
                  "models that are loaded at the same time; with this, --model-memory or "
                  "--unload-idle, a model is loaded by the first request for it, and the least "
                  "recently used one is unloaded to make room")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  verb.add_option("--model-memory", flags.limits.bytes,
                  "bytes for all loaded models, e.g. 16G (weights, KV cache, arena)")
      ->transform(CLI::AsSizeValue(false));
  verb.add_option("--unload-idle", flags.unload_idle,
                  "seconds without requests after which a model is unloaded")
      ->check(CLI::Range(0.0, 1e9));
}

void add_engine_flags(CLI::App& verb, ServeFlags& flags) {
  verb.add_option("--max-model-len", flags.model.context, "the same as --context");
  add_batch_flags(verb, flags.model);
  verb.add_option(
          "--tpot-target", flags.tpot_target_ms,
          "milliseconds between two tokens of a stream: prompts are cut into chunks small enough "
          "to keep it; 0 = chunks of --max-num-batched-tokens")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  verb.add_option("--max-queue", flags.max_queue,
                  "sequences that may wait; further requests get status 429")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  verb.add_option(
          "--kv-cache-memory", flags.model.kv_cache_bytes,
          "bytes of KV cache, e.g. 512M or 2G (default: two sequences of full length, but at "
          "least 16384 tokens)")
      ->transform(CLI::AsSizeValue(false));
  verb.add_option("--kv-blocks", flags.model.kv_blocks, "blocks of KV cache, instead of bytes");
  verb.add_flag("--no-prefix-cache", flags.no_prefix_cache,
                "do not reuse the KV cache of common prefixes");
  verb.add_flag("--context-shift", flags.context_shift,
                "let answers outgrow the context: when it is full, half of the tokens after --keep "
                "are dropped and the rest is computed again. Lossy: the model forgets what was "
                "dropped");
  verb.add_option("--keep", flags.keep,
                  "tokens at the beginning of a prompt that --context-shift keeps; -1 = all of it")
      ->check(CLI::Range(-1, INT32_MAX))
      ->capture_default_str();
  verb.add_option("--scheduler", flags.scheduler,
                  "which waiting request starts first: fcfs, priority, cache or fair")
      ->capture_default_str();
  verb.add_option("--kv-policy", flags.kv_policy,
                  "max-utilization: start what fits now and preempt when memory runs out; "
                  "guaranteed-no-evict: start only what fits to its last token")
      ->capture_default_str();
}

}  // namespace

void add_serve_verb(CLI::App& app) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* verb = app.add_subcommand("serve", "OpenAI-compatible server and chat page");
  verb->add_option("MODEL", flags->models,
                   ".gguf files, bundles (.tkm), or folders with config.json, tokenizer.json and "
                   "safetensors, or names of pulled models; with several, clients choose by name")
      ->required()
      ->transform(find_model);
  verb->add_option(
      "--served-model-name", flags->names,
      "name(s) that clients may use for the model, the first is listed; one per model when "
      "there are several");
  add_network_flags(*verb, *flags);
  add_engine_flags(*verb, *flags);
  add_adapter_flags(*verb, *flags);
  add_loading_flags(*verb, *flags);
  add_rag_flags(*verb, flags->rag);
  add_model_flags(*verb, flags->model);
  add_sampling_flags(*verb, flags->sampling);
  add_jump_flag(*verb, flags->sampling);
  add_template_flag(*verb, flags->model);
  add_speculative_flags(*verb, flags->model);
  verb->add_flag("--dola", flags->model.layer_logits,
                 "requests may use DoLa (dola_layers); one more function is compiled");
  verb->footer(
      "Examples:\n  tokamak serve SmolLM2-135M-Instruct.Q4_1.gguf\n"
      "  tokamak serve model.gguf --host 0.0.0.0 --port 9000 --api-key secret\n"
      "  tokamak serve small.gguf large.gguf --kv-cache-memory 2G --scheduler cache\n"
      "  curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\\n"
      "       -d '{\"prompt\": \"The capital of France is\", \"max_tokens\": 8}'");
  CLI::Option* seed = verb->get_option("--seed")->default_str("")->description(
      "requests without a seed derive theirs from this one and their number, so that a run can be "
      "repeated (default: different in each run)");
  verb->callback([flags, seed] {
    if (seed->count() > 0) flags->seed = flags->model.seed;
    serve(*flags);
  });
}

}  // namespace tokamak
