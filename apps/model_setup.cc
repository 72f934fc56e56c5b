#include "apps/model_setup.h"

#include <unistd.h>

#include <algorithm>

#include "apps/terminal.h"
#include "base/clock.h"
#include "base/error.h"
#include "compile/bundle_compile.h"

namespace tokamak {

namespace {

// What clients call the model: the file's or folder's own name, which is shorter and more telling
// than what most files say of themselves.
std::string served_name(const std::filesystem::path& path) {
  std::filesystem::path last = std::filesystem::absolute(path).lexically_normal();
  if (last.filename().empty()) last = last.parent_path();
  bool file = last.extension() == ".gguf" || last.extension() == ".tkm";
  return file ? last.stem().string() : last.filename().string();
}

uint64_t kv_bytes_of(const PlanSet& plans, const std::vector<int64_t>& blocks) {
  uint64_t bytes = 0;
  for (size_t g = 0; g < blocks.size(); ++g)
    bytes += static_cast<uint64_t>(blocks[g] * plans.groups[g].block_size) *
             static_cast<uint64_t>(kv_bytes_per_token(plans, static_cast<uint32_t>(g)));
  return bytes;
}

std::vector<int64_t> kv_blocks_of(const ModelFlags& flags, const PlanSet& plans,
                                  const EngineConfig& config) {
  auto blocks_for = [&](int64_t tokens) {
    return kv_blocks_for(plans, tokens, config.max_num_seqs, config.max_batched_tokens);
  };
  if (plans.groups.empty()) return {};
  if (flags.kv_blocks > 0) return blocks_for(flags.kv_blocks * plans.groups[0].block_size);
  if (flags.kv_bytes == 0)
    return blocks_for(flags.kv_tokens > 0 ? flags.kv_tokens
                                          : std::max<int64_t>(plans.context * 2, 16384));
  int64_t low = 0, high = int64_t{1} << 40;  // low fits, high does not
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    (kv_bytes_of(plans, blocks_for(middle)) <= flags.kv_bytes ? low : high) = middle;
  }
  if (low == 0)
    fail(ErrorCode::kInvalidArgument, "{} bytes of KV cache do not hold one block: it takes {}",
         flags.kv_bytes, kv_bytes_of(plans, blocks_for(1)));
  return blocks_for(low);
}

}  // namespace

void add_model_argument(CLI::App& verb, ModelFlags& flags) {
  verb.add_option("MODEL", flags.model,
                  "a .gguf file, a folder with config.json, tokenizer.json and safetensors, or a "
                  "bundle made by tokamak compile")
      ->required();
}

bool ModelFlags::given(const std::string& flag) const {
  const CLI::Option* option = verb ? verb->get_option_no_throw(flag) : nullptr;
  return option && option->count() > 0;
}

namespace {

void add_compile_flags(CLI::App& verb, ModelFlags& flags) {
  verb.add_option("--mode", flags.mode,
                  "compiled, or eager: op by op, without fusion, memory plan or reuse; what "
                  "speed-ups are measured against")
      ->check(CLI::IsMember({"compiled", "eager"}))
      ->capture_default_str();
  verb.add_option(
          "--shapes", flags.shapes,
          "auto: plans of a few sizes; dynamic: one plan for every shape; buckets: plans of "
          "fixed sizes, steps are padded to the next; fixed: as buckets, and the numbers of "
          "sequences and outputs are padded too")
      ->check(CLI::IsMember({"auto", "dynamic", "buckets", "fixed"}))
      ->capture_default_str();
  verb.add_option("--buckets", flags.buckets,
                  "sizes for --shapes buckets, e.g. 128,512,2048 (default: 1, 8, 16, 32, 64 and "
                  "multiples of 64)")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  verb.add_flag("--no-compile-cache", flags.no_compile_cache,
                "do not read or write the compile cache (tokamak cache ls)");
  verb.add_flag("--no-verify", flags.no_verify,
                "do not compare the checksums of a bundle's weights");
}

}  // namespace

void add_model_flags(CLI::App& verb, ModelFlags& flags) {
  flags.verb = &verb;
  verb.add_option("--backend", flags.backend,
                  "who computes: cpu, ref (slow, the definition), null (nothing runs)")
      ->check(CLI::IsMember({"cpu", "ref", "null"}))
      ->capture_default_str();
  verb.add_option("--threads", flags.threads, "threads of the cpu backend (default: all cores)")
      ->check(CLI::Range(0, 1024));
  verb.add_option("--context", flags.context,
                  "longest sequence in tokens (default: the model's, at most 8192)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24));
  verb.add_option("--seed", flags.seed, "seed of the sampling noise")->capture_default_str();
  verb.add_option("--activations", flags.activations,
                  "f32, or auto: int8 in front of quantised weights")
      ->check(CLI::IsMember({"f32", "auto"}))
      ->capture_default_str();
  verb.add_option("--storage", flags.storage,
                  "type of values between ops: f32, f16 or bf16, then residual=TYPE, logits=TYPE");
  verb.add_option("--kv-dtype", flags.kv_dtype,
                  "element type of the KV cache; int8 has a scale per token and head")
      ->check(CLI::IsMember({"f16", "f32", "int8"}))
      ->capture_default_str();
  verb.add_option("--disable-pass", flags.disabled_passes,
                  "compile without these passes (tokamak debug passes lists them)")
      ->delimiter(',');
  verb.add_option("--dump-after", flags.dump_after, "print the graph to stderr after these passes")
      ->delimiter(',');
  verb.add_option("--machine", flags.machine_file,
                  "machine file (JSON): for the fusion planner, and the clock of --backend null");
  add_compile_flags(verb, flags);
}

int64_t context_for(const ModelFlags& flags, const ModelConfig& config) {
  // A learned position is a row of a table: there is nothing beyond its end.
  if (config.learned_positions && flags.context > config.context)
    fail(ErrorCode::kInvalidArgument, "a context of {} tokens: the model knows {} positions",
         flags.context, config.context);
  if (flags.context > 0) return flags.context;
  int64_t context = std::min(config.context, kDefaultContext);
  // The context decides which of longrope's two factor lists is used; short texts get the short
  // one.
  const RopeConfig& rope = config.rope;
  if (rope.scaling == RopeConfig::Scaling::kLongRope && flags.longest > 0 &&
      flags.longest <= rope.original_context)
    context = std::min(context, rope.original_context);
  return context;
}

DType kv_dtype_of(const ModelFlags& flags) {
  return flags.kv_dtype == "int8" ? DType::kI8 : dtype_from_name(flags.kv_dtype).value();
}

CompileOptions compile_options(const ModelFlags& flags) {
  CompileOptions options;
  options.activations = flags.activations;
  options.storage = flags.storage;
  options.kv_dtype = kv_dtype_of(flags);
  options.disabled_passes = {flags.disabled_passes.begin(), flags.disabled_passes.end()};
  options.dump_after = {flags.dump_after.begin(), flags.dump_after.end()};
  options.machine = flags.machine_file;
  options.max_sequences = flags.max_sequences;
  options.max_tokens = flags.max_tokens;
  options.max_logit_rows = flags.max_logit_rows;
  options.eager = flags.mode == "eager";
  options.shapes = shapes_from_name(flags.shapes);
  options.buckets = flags.buckets;
  if (!flags.dump_dir.empty()) options.dump = std::make_shared<StageDump>(flags.dump_dir);
  return options;
}

std::unique_ptr<Backend> backend_for(const ModelFlags& flags, const std::string& name) {
  BackendOptions options;
  options.threads = flags.threads;
  options.machine_file = flags.machine_file;
  options.null_seed = flags.seed;
  return make_backend(name, options);
}

int64_t symbol_limit(const PlanSet& plans, std::string_view symbol) {
  for (const SymbolDecl& s : plans.symbols)
    if (s.name == symbol) return s.hi;
  return 0;
}

CompiledSetup compile_for(const ModelFlags& flags) {
  std::optional<CompileCache> cache;
  if (!flags.no_compile_cache) cache = CompileCache::from_environment();
  if (is_bundle(flags.model)) return open_bundle(flags, cache ? &*cache : nullptr);
  CompiledSetup setup;
  setup.backend = backend_for(flags, flags.backend);
  OpenedModel opened = open_model(flags.model);
  CompileOptions options = compile_options(flags);
  options.context = context_for(flags, opened.model.config);
  setup.eager = options.eager;
  setup.source =
      compile_model(std::move(opened), *setup.backend, options, cache ? &*cache : nullptr);
  return setup;
}

void add_template_flag(CLI::App& verb, ModelFlags& flags) {
  verb.add_option("--template-name", flags.template_name,
                  "which of the model's chat templates to use for everything, e.g. tool_use");
}

namespace {

TokenizerSpec with_template(TokenizerSpec spec, const std::string& name) {
  if (name.empty()) return spec;
  spec.chat_template = std::string(pick_chat_template(spec, name, false));
  spec.named_templates.clear();
  return spec;
}

}  // namespace

std::unique_ptr<Executable> load_weights(const CompiledSetup& setup, std::vector<int64_t> kv_blocks,
                                         int64_t max_rows) {
  ProgressBar bar("loading weights");
  LoadOptions options;
  options.blocks = std::move(kv_blocks);
  options.max_rows = max_rows;
  options.eager = setup.eager;
  options.progress = [&](uint64_t done, uint64_t total) { bar.update(done, total); };
  return setup.backend->load(setup.source->plans(), setup.source->weights(), options);
}

LoadedModel load_model(const ModelFlags& flags) {
  static SteadyClock clock;
  Nanos start = clock.now();
  LoadedModel model;
  CompiledSetup setup = compile_for(flags);
  const PlanSet& plans = setup.source->plans();
  model.name = served_name(flags.model);
  model.tokenizer =
      std::make_shared<Tokenizer>(with_template(setup.source->tokenizer(), flags.template_name));
  if (const std::string& text = model.tokenizer->spec().chat_template; !text.empty())
    model.chat_template = std::make_shared<ChatTemplate>(ChatTemplate::parse(text));
  EngineConfig config = default_engine_config(plans);
  if (flags.given("--max-num-seqs"))
    config.max_num_seqs = std::min(config.max_num_seqs, flags.max_sequences);
  if (flags.given("--max-num-batched-tokens"))
    config.max_batched_tokens = std::min(config.max_batched_tokens, flags.max_tokens);
  config.blocks = kv_blocks_of(flags, plans, config);
  if (flags.tune) flags.tune(config);
  check_engine_config(config);
  std::unique_ptr<Executable> executable =
      load_weights(setup, config.blocks, std::max(flags.max_sequences, config.max_num_seqs));
  model.context_hint = bundle_of(setup) ? fmt::format("the bundle was compiled with --max-len {}",
                                                      bundle_of(setup)->compiled_context())
                                        : "--context sets it";
  model.backend = std::move(setup.backend);
  model.source = std::move(setup.source);
  model.engine = std::make_shared<LocalEngine>(plans, std::move(executable), config, clock);
  model.load_seconds = seconds(clock.now() - start);
  return model;
}

std::vector<int32_t> encode_chat(const LoadedModel& model, Value messages,
                                 bool add_generation_prompt) {
  if (!model.chat_template)
    fail(ErrorCode::kUnsupported, "{} has no chat template; leave --chat out to continue raw text",
         model.name);
  const Tokenizer& t = *model.tokenizer;
  Value context = Value::object();
  context.set("messages", std::move(messages));
  context.set("add_generation_prompt", add_generation_prompt);
  context.set("bos_token", t.bos_id() >= 0 ? std::string(t.piece(t.bos_id())) : std::string());
  context.set("eos_token", t.eos_id() >= 0 ? std::string(t.piece(t.eos_id())) : std::string());
  // The template writes the special tokens itself; adding them again is the classic double-BOS bug.
  return t.encode(model.chat_template->render(context),
                  {.add_special = false, .parse_special = true});
}

}  // namespace tokamak
