#include "api/open.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"

namespace tokamak {
namespace {

void check_choice(const char* option, const std::string& value,
                  std::initializer_list<std::string_view> choices) {
  if (value.empty() || std::find(choices.begin(), choices.end(), value) != choices.end()) return;
  fail(ErrorCode::kInvalidArgument, "{} \"{}\" is unknown; use {}", option, value,
       fmt::join(choices, ", "));
}

void check_range(const char* option, int64_t value, int64_t high) {
  if (value < 0 || value > high)
    fail(ErrorCode::kInvalidArgument, "{} is {}, but must be from 0 to {}", option, value, high);
}

int64_t value_or(int64_t value, int64_t fallback) { return value > 0 ? value : fallback; }

// The size of a file, or of the files in a folder; 0 if they cannot be read.
uint64_t bytes_on_disk(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    uint64_t bytes = std::filesystem::file_size(path, ignored);
    return ignored ? 0 : bytes;
  }
  uint64_t total = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path, ignored))
    if (entry.is_regular_file(ignored)) total += entry.file_size(ignored);
  return total;
}

}  // namespace

void check_options(const OpenOptions& o) {
  check_choice("backend", o.backend, {"cpu", "cuda", "auto", "ref", "null"});
  check_choice("kv_dtype", o.kv_dtype, {"f16", "f32", "int8"});
  check_choice("activations", o.activations, {"auto", "bf16", "f32", "i16", "mixed"});
  check_choice("pooling", o.pooling, {"mean", "cls", "last", "none"});
  check_choice("mode", o.mode, {"compiled", "eager", "max-autotune"});
  check_choice("quantization", o.quantization, {"fp8"});
  if (!o.shapes.empty()) shapes_from_name(o.shapes);
  check_range("threads", o.threads, 1024);
  check_range("context", o.context, int64_t{1} << 24);
  check_range("max_sequences", o.max_sequences, 65536);
  check_range("max_step_tokens", o.max_step_tokens, int64_t{1} << 20);
  check_range("kv_blocks", o.kv_blocks, int64_t{1} << 32);
  check_range("kv_tokens", o.kv_tokens, int64_t{1} << 40);
  check_range("max_adapters", o.max_adapters, 1024);
  check_range("max_adapter_rank", o.max_adapter_rank, 4096);
  check_range("max_logit_rows", o.max_logit_rows, int64_t{1} << 20);
  if (!(o.gpu_memory_utilization >= 0 && o.gpu_memory_utilization <= 1))
    fail(ErrorCode::kInvalidArgument, "gpu_memory_utilization is {}, but must be from 0 to 1",
         o.gpu_memory_utilization);
  for (int64_t size : o.buckets)
    if (size < 1 || size > int64_t{1} << 20)
      fail(ErrorCode::kInvalidArgument, "a bucket is {}, but must be from 1 to {}", size,
           int64_t{1} << 20);
  if (!o.buckets.empty() && o.shapes != "buckets" && o.shapes != "fixed")
    fail(ErrorCode::kInvalidArgument, "buckets have no effect without shapes buckets or fixed");
}

CompileOptions compile_options(const OpenOptions& o) {
  CompileOptions options;
  if (!o.activations.empty()) options.activations = o.activations;
  options.storage = o.storage;
  if (!o.kv_dtype.empty())
    options.kv_dtype = o.kv_dtype == "int8" ? DType::kI8 : dtype_from_name(o.kv_dtype).value();
  options.disabled_passes = {o.disabled_passes.begin(), o.disabled_passes.end()};
  options.dump_after = {o.dump_after.begin(), o.dump_after.end()};
  options.machine = o.machine_file;
  options.max_sequences = value_or(o.max_sequences, kDefaultSequences);
  options.max_tokens = value_or(o.max_step_tokens, kDefaultStepTokens);
  // Every sequence of a step may choose a token.
  options.max_logit_rows =
      value_or(o.max_logit_rows, std::max<int64_t>(kDefaultLogitRows, options.max_sequences));
  options.context = o.context;
  options.exit_layers = o.exit_layers;
  options.tree_mask = o.tree_mask;
  options.layer_logits = o.dola;
  options.materialized_prefill = o.materialized_prefill;
  options.max_context = value_or(o.max_context, kDefaultContext);
  options.longest = o.longest;
  options.merge_adapters = o.merge_adapters;
  if (wants_adapters(o)) {
    options.adapter_slots = value_or(o.max_adapters, kDefaultAdapters);
    options.adapter_rank = value_or(o.max_adapter_rank, options.adapter_rank);
  }
  options.pooling = o.pooling;
  options.eager = o.mode == "eager";
  options.autotune = o.mode == "max-autotune";
  if (!o.shapes.empty()) options.shapes = shapes_from_name(o.shapes);
  options.buckets = o.buckets;
  if (!o.dump_dir.empty()) options.dump = std::make_shared<StageDump>(o.dump_dir);
  return options;
}

std::unique_ptr<Backend> backend_for(const OpenOptions& o, const std::string& name) {
  BackendOptions options;
  options.threads = o.threads;
  options.machine_file = o.machine_file;
  options.null_seed = o.seed;
  options.fp8 = o.quantization == "fp8";
  std::string chosen = name.empty() ? "cpu" : name;
  if (chosen == "auto") {
    AutoBackend choice = auto_backend(bytes_on_disk(o.model));
    log::info("{}", choice.reason);
    chosen = choice.name;
  }
  if (options.fp8 && chosen != "cuda")
    fail(ErrorCode::kInvalidArgument, "--quantization fp8 needs --backend cuda, not {}", chosen);
  return make_backend(chosen, options);
}

std::string machine_file_for(const OpenOptions& o, const Backend& backend) {
  if (!o.machine_file.empty() || !o.compile_cache) return o.machine_file;
  std::filesystem::path file = CompileCache::from_environment().machine_file(backend.name());
  std::error_code ignored;
  if (file.empty() || !std::filesystem::is_regular_file(file, ignored)) return {};
  try {
    bool same = load_machine_file(file).measured_on == backend.measured_on();
    return same ? file.string() : std::string();
  } catch (const Error& e) {
    log::warn("{}; using the built-in description. Run tokamak calibrate again", e.what());
    return {};
  }
}

void check_autotune(const CompileOptions& options, const Backend& backend) {
  if (options.autotune && backend.name() != "cpu")
    fail(ErrorCode::kUnsupported, "--mode max-autotune measures on the backend cpu only, not on {}",
         backend.name());
}

bool shares_embedding(const PlanSet& plans) {
  return std::none_of(plans.weights.begin(), plans.weights.end(),
                      [](const WeightEntry& w) { return w.name.starts_with("output.weight"); });
}

int64_t symbol_limit(const PlanSet& plans, std::string_view symbol) {
  for (const SymbolDecl& s : plans.symbols)
    if (s.name == symbol) return s.hi;
  return 0;
}

CompiledSetup compile_for(const OpenOptions& o, Backend* shared) {
  check_options(o);
  std::optional<CompileCache> cache;
  if (o.compile_cache) cache = CompileCache::from_environment();
  if (o.dola && is_bundle(o.model))
    fail(ErrorCode::kUnsupported,
         "DoLa needs a function that a bundle does not have; open the model file instead");
  if (is_bundle(o.model)) return open_bundle(o, cache ? &*cache : nullptr);
  CompiledSetup setup;
  if (!shared) setup.backend = backend_for(o, o.backend);
  CompileOptions options = compile_options(o);
  setup.eager = options.eager;
  options.machine = machine_file_for(o, shared ? *shared : *setup.backend);
  check_autotune(options, shared ? *shared : *setup.backend);
  setup.source =
      compile_model(o.model, shared ? *shared : *setup.backend, options, cache ? &*cache : nullptr);
  return setup;
}

}  // namespace tokamak
