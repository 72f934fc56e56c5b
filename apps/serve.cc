// tokamak serve: the OpenAI-compatible server and the chat page.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
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
#include "apps/restart.h"
#include "apps/serve_flags.h"
#include "apps/terminal.h"
#include "apps/verbs.h"
#include "backend/cuda/driver.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/context_shift.h"
#include "serve/batch/batch_api.h"
#include "serve/http/server.h"
#include "serve/openai/api.h"
#include "serve/process_memory.h"
#include "serve/web/page.h"

namespace tokamak {
namespace {

void set_names(const LoadedModel& loaded, const ServeFlags& flags, size_t index,
               ServedModel& model) {
  bool alone = flags.models.size() == 1;
  model.name = flags.names.empty() ? loaded.name : flags.names[alone ? 0 : index];
  if (alone)
    for (size_t i = 1; i < flags.names.size(); ++i) model.aliases.push_back(flags.names[i]);
  if (flags.names.empty()) {  // clients may also use the path the server was started with
    const std::string& path = flags.models[index];
    model.aliases.push_back(path);
    model.aliases.push_back(std::filesystem::path(path).stem().string());
  }
}

ServedModel served(const LoadedModel& loaded, const ServeFlags& flags, size_t index) {
  const std::string& path = flags.models[index];
  ServedModel model;
  set_names(loaded, flags, index, model);
  model.client = loaded.engine;
  model.context_shift = flags.context_shift;
  model.shift_keep = flags.keep;
  if (flags.context_shift) model.client = std::make_shared<ContextShift>(loaded.engine);
  model.tokenizer = loaded.tokenizer;
  model.chat_template = loaded.chat_template;
  model.tool_format = find_tool_format(flags.tool_format);
  if (flags.reasoning != "auto") model.thinks = flags.reasoning == "on";
  model.thought_budget = flags.reasoning_budget;
  model.split_thoughts = flags.reasoning_format != "none";
  model.grammars = loaded.grammars;
  model.embedding = loaded.embedding;
  model.embedder = loaded.embedder;
  model.vector_width = loaded.engine->config().vector_width;
  model.max_model_len = loaded.engine->info().max_model_len;
  model.max_sequences = loaded.engine->config().max_num_seqs;
  model.draft_tokens = loaded.drafter ? loaded.engine->config().draft_tokens : 0;
  model.dola_layers = loaded.engine->config().layers;
  model.shares_embedding = shares_embedding(loaded.source->plans());
  model.facts = facts_of(*loaded.source);
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
  model.has_defaults = loaded.has_defaults || sets_sampling(flags.sampling);
  if (loaded.adapters) {
    model.adapters = loaded.adapters->list();
    model.adapter_rank = loaded.adapters->rank();
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
      log::warn(
          "{} has no chat template: /v1/chat/completions will refuse, /v1/completions works; "
          "--chat-template chatml (for example) gives it one",
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

// Clients choose by name.
template <typename M>
void check_unused(const std::string& name, const std::vector<M>& models) {
  if (std::any_of(models.begin(), models.end(), [&](const M& m) { return m.name == name; }))
    fail(ErrorCode::kInvalidArgument,
         "two models have the name '{}': give each one with --served-model-name", name);
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
    check_unused(entry.name, entries);
    entries.push_back(std::move(entry));
  }
  auto first = std::make_shared<ServedModel>(entries[0].load());
  first->name = entries[0].name;
  first->aliases = entries[0].aliases;
  entries[0].model = std::move(first);
  return entries;
}

// Until a signal arrives. If the GPU is lost or an administrator wants it, running answers end, and
// a new process takes the place of this one; connections that arrive meanwhile wait for it.
void run_server(http::Server& server, const ServeFlags& flags, const std::atomic<bool>& asked) {
  auto milliseconds = [](double s) {
    return std::chrono::milliseconds(static_cast<int64_t>(s * 1000));
  };
  const auto drain = milliseconds(flags.shutdown_timeout);
  if (server.run_until_signal(drain)) return log::info("stopped");
  constexpr std::chrono::seconds kToFail{5};  // after a loss every step fails at once
  if (asked)
    log::info("the administrator restarts the server");
  else
    log::error("the GPU is lost to this process: the server starts again");
  // A signal that the server catches while it stops would be lost with this process.
  for (int number : {SIGINT, SIGTERM}) std::signal(number, SIG_DFL);
  const int listener = server.keep_listener();
  server.stop(asked ? drain : std::min<std::chrono::milliseconds>(kToFail, drain));
  if (!server.signalled()) restart_program(listener, !asked);
  log::info("stopped");
}

// The server then ends its run; see run_server().
void watch_device(http::Server& server, const ServeFlags& flags) {
  const bool restarts = flags.lost_device == "restart";
  const std::string why = restarts ? too_many_restarts() : "--lost-device stay";
  cuda::when_device_lost([&server, why] {
    if (why.empty()) return server.end_run();
    log::error("the GPU is lost to this process, and requests fail until it is restarted ({})",
               why);
  });
}

openai::ApiOptions api_options(const ServeFlags& flags) {
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
  options.llama_metrics = flags.metrics_compat == "llamacpp";
  options.limits = flags.limits;
  options.slot_folder = flags.slot_folder;
  return options;
}

void serve(ServeFlags& flags) {
  SteadyClock clock;
  Nanos start = clock.now();
  check_serve_flags(flags);
  flags.http.listener = inherited_listener();
  http::Server server(flags.http);
  std::vector<ModelEntry> entries;
  std::vector<LoadedModel> loaded;
  if (on_demand(flags))
    entries = entries_on_demand(flags);
  else
    loaded = load_all(flags);
  openai::ApiOptions options = api_options(flags);
  options.http_stats = &server.stats();
  std::atomic<bool> restart_asked = false;
  options.restart = [&] {
    restart_asked = true;
    server.end_run();
  };
  std::vector<ServedModel> models;
  std::string names;
  for (size_t i = 0; i < loaded.size(); ++i) {
    ServedModel model = served(loaded[i], flags, i);
    check_unused(model.name, models);
    models.push_back(std::move(model));
    names += (i > 0 ? ", " : "") + models.back().name;
  }
  for (const ModelEntry& entry : entries) names += (names.empty() ? "" : ", ") + entry.name;
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
  watch_device(server, flags);
  server.start(std::move(router));
  bool reads_files = false;  // weights are read from the mapped file
  for (const LoadedModel& m : loaded) reads_files = reads_files || m.engine->memory().mapped > 0;
  release_load_memory(!reads_files);
  print_ledger(loaded);
  fmt::print("tokamak: {} {} ready at {} after {:.1f} s\n", names,
             flags.models.size() > 1 ? "are" : "is", server.url(), seconds(clock.now() - start));
  std::fflush(stdout);
  run_server(server, flags, restart_asked);
  cuda::when_device_lost(nullptr);
}

}  // namespace

void add_serve_verb(CLI::App& app) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* verb = app.add_subcommand("serve", "OpenAI-compatible server and chat page");
  add_serve_flags(*verb, *flags);
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
