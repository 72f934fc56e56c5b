#include "apps/serve_flags.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "apps/model_store.h"
#include "apps/step_log.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"

namespace tokamak {
namespace {

// Defaults of EngineConfig::stream_pace and tpot_target.
constexpr double kStreamPace = 2.6, kTpotTargetMs = 250;

// "512M", "1.5G", "2 GiB" or bytes; units are powers of 1024.
std::string size_in_bytes(const std::string& text) {
  char* end = nullptr;
  double size =
      std::isdigit(static_cast<unsigned char>(text[0])) ? std::strtod(text.c_str(), &end) : -1;
  std::string unit;
  for (const char* c = end; c != nullptr && *c != '\0'; ++c)
    if (*c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  constexpr std::string_view kUnits = "bkmgtp";
  size_t power = unit.empty() ? 0 : kUnits.find(unit[0]);
  std::string_view rest = unit.empty() ? "" : std::string_view(unit).substr(1);
  bool known =
      power != kUnits.npos && (rest.empty() || (power > 0 && (rest == "b" || rest == "ib")));
  double bytes = known ? std::ldexp(size, static_cast<int>(10 * power)) : -1;
  if (!(bytes >= 0 && bytes < std::ldexp(1.0, 62)))
    fail(ErrorCode::kInvalidArgument, "{} is not a size; use bytes, or e.g. 512M or 1.5G", text);
  return std::to_string(static_cast<uint64_t>(bytes));
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

void add_batch_api_flags(CLI::App& verb, ServeFlags& flags) {
  CLI::Option* folder =
      verb.add_option("--batch-dir", flags.batches.folder,
                      "folder for uploaded files and batches; enables /v1/files and /v1/batches");
  verb.add_option("--batch-concurrency", flags.batches.concurrency,
                  "requests of batches that run at once")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str()
      ->needs(folder);
  verb.add_option("--batch-retention", flags.batches.retention,
                  "seconds after which files and ended batches are deleted")
      ->check(CLI::Range(int64_t{60}, int64_t{1} << 40))
      ->capture_default_str()
      ->needs(folder);
  verb.add_option("--batch-max-files", flags.batches.max_files,
                  "maximum number of stored files, of all clients together; further uploads and "
                  "batches get status 429")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str()
      ->needs(folder);
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
  verb.add_option("--max-connections", flags.http.max_connections,
                  "maximum number of open connections")
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
  verb.add_flag("--no-ui", flags.no_ui, "do not serve the chat page");
  verb.add_option("--request-log", flags.request_log,
                  "append one JSON line per request to this file");
  verb.add_option("--step-log", flags.step_log,
                  "append one JSON line per step of the engine to this file: what it was predicted "
                  "to take, what it took, what it computed");
  verb.add_option("--log-format", flags.log_format, "lines on standard error: text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  verb.add_option("--otlp-traces-endpoint", flags.trace_collector,
                  "send a span per request to this OpenTelemetry collector (OTLP over HTTP), e.g. "
                  "http://localhost:4318")
      ->envname("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
  verb.add_option("--metrics-compat", flags.metrics_compat,
                  "also export /metrics under the names of: vllm, llamacpp")
      ->check(CLI::IsMember({"vllm", "llamacpp"}));
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
  verb.add_option("--slot-save-path", flags.slot_folder,
                  "folder for the files of /slots/{id}?action=save and restore")
      ->check(CLI::ExistingDirectory);
  verb.add_option("--lost-device", flags.lost_device,
                  "after a kernel has crashed on the GPU: restart = end running answers with an "
                  "error and start the server again, on the same socket; stay = answer errors")
      ->check(CLI::IsMember({"restart", "stay"}))
      ->capture_default_str();
  verb.add_option("--max-loaded-models", flags.limits.loaded,
                  "models that are loaded at the same time; with this, --model-memory or "
                  "--unload-idle, a model is loaded by the first request for it, and the least "
                  "recently used one is unloaded to make room")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  verb.add_option("--model-memory", flags.limits.bytes,
                  "bytes for all loaded models, e.g. 16G (weights, KV cache, arena)")
      ->transform(size_in_bytes);
  verb.add_option("--unload-idle", flags.unload_idle,
                  "seconds without requests after which a model is unloaded")
      ->check(CLI::Range(0.0, 1e9));
}

void add_engine_flags(CLI::App& verb, ServeFlags& flags) {
  verb.add_option("--max-model-len", flags.model.context, "the same as --context");
  add_batch_flags(verb, flags.model);
  verb.add_option(
          "--tpot-target", flags.tpot_target_ms,
          fmt::format("milliseconds between two tokens of an answer: prompts are cut into chunks "
                      "small enough to keep it (default: {} times the pace without prompts, at "
                      "least 10; {} while no answer is streamed); 0 = chunks of "
                      "--max-num-batched-tokens",
                      kStreamPace, kTpotTargetMs))
      ->check(CLI::Range(0.0, 1e6));
  verb.add_option("--max-queue", flags.max_queue,
                  "sequences that may wait; further requests get status 429")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  verb.add_option(
          "--kv-cache-memory", flags.model.kv_cache_bytes,
          "bytes of KV cache, e.g. 512M or 2G (default: two sequences of full length, but at "
          "least 16384 tokens)")
      ->transform(size_in_bytes);
  verb.add_option("--kv-blocks", flags.model.kv_blocks, "blocks of KV cache, instead of bytes");
  verb.add_flag("--no-prefix-cache", flags.no_prefix_cache,
                "do not reuse the KV cache of common prefixes");
  CLI::Option* shift = verb.add_flag(
      "--context-shift", flags.context_shift,
      "let answers outgrow the context: when it is full, half of the tokens after --keep "
      "are dropped and the rest is computed again. Lossy: the model forgets what was "
      "dropped");
  verb.add_option("--keep", flags.keep,
                  "tokens at the beginning of a prompt that --context-shift keeps; -1 = all of it")
      ->check(CLI::Range(-1, INT32_MAX))
      ->capture_default_str()
      ->needs(shift);
  verb.add_option("--scheduler", flags.scheduler,
                  "which waiting request starts first: fcfs, priority, cache or fair")
      ->capture_default_str();
  verb.add_option("--kv-policy", flags.kv_policy,
                  "max-utilization: start what fits now and preempt when memory runs out; "
                  "guaranteed-no-evict: start only what fits to its last token")
      ->capture_default_str();
}

void add_answer_flags(CLI::App& verb, ServeFlags& flags) {
  std::vector<std::string> formats;
  for (const ToolFormat& format : tool_formats()) formats.emplace_back(format.name);
  verb.add_option("--tool-call-parser", flags.tool_format,
                  "the format in which the model calls tools (default: from its chat template)")
      ->check(CLI::IsMember(formats));
  verb.add_option(
          "--reasoning", flags.reasoning,
          "whether the model thinks before it answers, where a request does not say: on, off "
          "or auto (as its chat template does)")
      ->check(CLI::IsMember({"on", "off", "auto"}))
      ->capture_default_str();
  verb.add_option("--reasoning-budget", flags.reasoning_budget,
                  "tokens after which thoughts are ended, where a request does not say; 0 = no "
                  "thoughts, -1 = any number")
      ->check(CLI::Range(-1, INT32_MAX))
      ->capture_default_str();
  verb.add_option(
          "--reasoning-format", flags.reasoning_format,
          "where thoughts are sent: auto or deepseek = as reasoning_content, none = as part "
          "of the answer's text")
      ->check(CLI::IsMember({"auto", "deepseek", "none"}))
      ->capture_default_str();
}

}  // namespace

bool on_demand(const ServeFlags& flags) {
  return flags.limits.loaded > 0 || flags.limits.bytes > 0 || flags.limits.idle.count() > 0;
}

void check_serve_flags(ServeFlags& flags) {
  log::use_json(flags.log_format == "json");
  check_adapters(flags);
  if (flags.models.size() > 1 && !flags.names.empty() && flags.names.size() != flags.models.size())
    fail(ErrorCode::kInvalidArgument, "--served-model-name: {} names for {} models; give one each",
         flags.names.size(), flags.models.size());
  if (std::count(flags.names.begin(), flags.names.end(), "") > 0)
    fail(ErrorCode::kInvalidArgument, "--served-model-name is empty");
  if (std::count(flags.api_keys.begin(), flags.api_keys.end(), "") > 0)
    fail(ErrorCode::kInvalidArgument, "--api-key is empty; leave it out to serve without a key");
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
  std::shared_ptr<StepLog> steps;
  if (!flags.step_log.empty()) steps = std::make_shared<StepLog>(flags.step_log);
  flags.model.tune = [&flags, policy, kv_policy, steps](EngineConfig& config) {
    if (steps)
      config.on_step = [steps, name = config.model](const StepReport& s) { steps->write(name, s); };
    config.policy = policy;
    config.kv_policy = kv_policy;
    config.max_queue = flags.max_queue;
    config.tpot_target = static_cast<Nanos>(flags.tpot_target_ms.value_or(kTpotTargetMs) * 1e6);
    config.stream_pace = flags.tpot_target_ms ? 0 : kStreamPace;
    config.prefix_cache = !flags.no_prefix_cache;
  };
  flags.http.max_body_bytes = static_cast<size_t>(flags.max_body_mb) << 20;
  if (flags.api_keys.empty() && flags.key_file.empty())
    if (const char* key = std::getenv("TOKAMAK_API_KEY"); key != nullptr && *key != '\0')
      flags.api_keys.push_back(key);
}

void add_serve_flags(CLI::App& verb, ServeFlags& flags) {
  verb.add_option("MODEL", flags.models,
                  ".gguf files, bundles (.tkm), or folders with config.json, tokenizer.json and "
                  "safetensors, or names of pulled models; with several, clients choose by name")
      ->required()
      ->transform(find_model);
  verb.add_option(
      "--served-model-name", flags.names,
      "name(s) that clients may use for the model, the first is listed; one per model when "
      "there are several");
  add_network_flags(verb, flags);
  add_batch_api_flags(verb, flags);
  add_answer_flags(verb, flags);
  add_engine_flags(verb, flags);
  add_adapter_flags(verb, flags);
  add_loading_flags(verb, flags);
  add_rag_flags(verb, flags.rag);
  add_model_flags(verb, flags.model);
  verb.get_option("--max-model-len")->excludes("--context");
  add_sampling_flags(verb, flags.sampling);
  add_jump_flag(verb, flags.sampling);
  add_template_flag(verb, flags.model);
  add_speculative_flags(verb, flags.model);
  verb.add_flag("--dola", flags.model.dola,
                "requests may use DoLa (dola_layers); one more function is compiled");
}

}  // namespace tokamak
