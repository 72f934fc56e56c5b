// Loads a compiled model: tokenizer, chat template, sampling defaults, weights, engine.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include "api/open.h"
#include "api/speculative.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "compile/adapters.h"
#include "engine/sample_params.h"
#include "text/usual_templates.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

// What clients call the model: the name of its file or folder, which is shorter and says more than
// what most files say about themselves.
std::string served_name(const fs::path& path) {
  fs::path last = fs::absolute(path).lexically_normal();
  if (last.filename().empty()) last = last.parent_path();
  bool file = last.extension() == ".gguf" || last.extension() == ".tkm";
  return file ? last.stem().string() : last.filename().string();
}

uint64_t kv_bytes_of(const PlanSet& plans, const std::vector<int64_t>& blocks) {
  uint64_t bytes = 0;
  for (size_t g = 0; g < blocks.size(); ++g)
    bytes += static_cast<uint64_t>(blocks[g] * block_bytes(plans, static_cast<uint32_t>(g)));
  return bytes;
}

std::vector<int64_t> kv_blocks_of(const OpenOptions& o, const PlanSet& plans,
                                  const EngineConfig& config, Backend& backend) {
  auto blocks_for = [&](int64_t tokens) {
    return kv_blocks_for(plans, tokens, config.max_num_seqs, config.max_batched_tokens);
  };
  if (plans.groups.empty()) return {};
  if (o.kv_blocks > 0) return blocks_for(o.kv_blocks * plans.groups[0].block_size);
  const uint64_t most = o.gpu_memory_utilization > 0
                            ? backend.kv_bytes_within(plans, o.gpu_memory_utilization)
                            : o.kv_cache_bytes;
  if (most == 0)
    return blocks_for(o.kv_tokens > 0 ? o.kv_tokens : std::max<int64_t>(plans.context * 2, 16384));
  int64_t low = 0, high = int64_t{1} << 40;  // low fits, high does not
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    (kv_bytes_of(plans, blocks_for(middle)) <= most ? low : high) = middle;
  }
  if (low == 0)
    fail(ErrorCode::kInvalidArgument,
         "a KV cache of {} bytes is smaller than one block, which has {}", most,
         kv_bytes_of(plans, blocks_for(1)));
  return blocks_for(low);
}

// What the model's makers recommend, where they say so.
std::optional<SampleSpec> model_defaults(const std::string& path, const ModelSource& source) {
  if (const auto* bundle = dynamic_cast<const BundleModel*>(&source)) {
    const Value* config = bundle->meta().find("generation_config");
    if (config && config->is_object()) return sampling_defaults(*config);
  } else if (fs::path file = fs::path(path) / "generation_config.json"; fs::is_regular_file(file)) {
    Value config = parse_json(read_text_file(file, size_t{1} << 20), "generation_config.json");
    return config.is_object() ? sampling_defaults(config) : std::nullopt;
  }
  return source.metadata().is_object() ? gguf_sampling_defaults(source.metadata()) : std::nullopt;
}

std::string named_template(const TokenizerSpec& spec, const std::string& given) {
  try {
    return pick_chat_template(spec, given, false);
  } catch (const Error& e) {
    if (std::string usual = usual_template(given, spec.add_bos); !usual.empty()) return usual;
    fail(ErrorCode::kInvalidArgument, "--chat-template {}: no such file, and {}; in any case: {}",
         given, e.what(), usual_template_names());
  }
}

// The template in a file, or in the option itself; unset: the option is not given or has the name
// of one of the model's own. Errors are found here, before the model is compiled; the file may be a
// pipe, which can be read only once.
std::optional<std::string> given_template(const OpenOptions& o) {
  const std::string& given = o.chat_template_file;
  if (given.empty()) return std::nullopt;
  if (!o.chat_template.empty())
    fail(ErrorCode::kInvalidArgument, "give either --chat-template or --template-name, not both");
  std::optional<std::string> text;
  std::error_code ec;  // a template may be longer than any file name
  const fs::file_status file = fs::status(given, ec);
  if (fs::exists(file) && !fs::is_directory(file))
    text = read_text_file(given, size_t{1} << 20);
  else if (given.find("{{") != std::string::npos || given.find("{%") != std::string::npos)
    text = given;
  else if (given.find('/') != std::string::npos || given.ends_with(".jinja"))
    fail(ErrorCode::kInvalidArgument, "--chat-template {}: no such file", given);
  if (text) ChatTemplate::parse(*text);
  return text;
}

TokenizerSpec with_template(TokenizerSpec spec, const OpenOptions& o,
                            const std::optional<std::string>& text) {
  const std::string &name = o.chat_template, &given = o.chat_template_file;
  if (text)
    spec.chat_template = *text;
  else if (!given.empty())
    spec.chat_template = named_template(spec, given);
  else if (!name.empty())
    spec.chat_template = std::string(pick_chat_template(spec, name, false));
  else
    return spec;
  spec.named_templates.clear();
  return spec;
}

EngineConfig engine_config(const OpenOptions& o, const SpeculativeOptions& speculative,
                           const PlanSet& plans, Backend& backend, const EmbeddingSpec& embedding) {
  EngineConfig config = default_engine_config(plans);
  config.max_in_flight = 2;  // the engine takes as many as its backend can
  config.pool_first = embedding.pooling == Pooling::kFirst;
  if (o.max_sequences > 0) config.max_num_seqs = std::min(config.max_num_seqs, o.max_sequences);
  if (o.max_step_tokens > 0 && !config.encoder)
    config.max_batched_tokens = std::min(config.max_batched_tokens, o.max_step_tokens);
  config.prefix_cache = o.prefix_cache && !config.encoder;
  config.blocks = kv_blocks_of(o, plans, config, backend);
  set_draft_limits(speculative, config);
  if (o.tune) o.tune(config);
  check_engine_config(config);
  return config;
}

std::unique_ptr<Executable> load_weights(const OpenOptions& o, const CompiledSetup& setup,
                                         const EngineConfig& config) {
  LoadOptions options;
  options.blocks = config.blocks;
  options.max_rows =
      std::max(o.max_sequences > 0 ? o.max_sequences : kDefaultSequences, config.max_num_seqs);
  options.eager = setup.eager;
  options.progress = o.on_progress;
  return setup.backend->load(setup.source->plans(), setup.source->weights(), options);
}

}  // namespace

LoadedModel load_model(const OpenOptions& asked) {
  static SteadyClock clock;
  Nanos start = clock.now();
  LoadedModel model;
  OpenOptions o = asked;
  if (wants_adapters(o)) {
    model.adapters = std::make_shared<AdapterHost>(o);
    o.max_adapters = model.adapters->slots();
    o.max_adapter_rank = model.adapters->rank();
  }
  SpeculativeOptions speculative = parse_speculative(o.speculative, o.draft_model);
  o.exit_layers = exit_layers(speculative, o);
  o.tree_mask = speculative.branches > 1;
  if (o.dola && o.exit_layers != 0)
    fail(ErrorCode::kUnsupported, "DoLa cannot be combined with the speculation early_exit");
  const std::optional<std::string> text = given_template(o);
  CompiledSetup setup = compile_for(o);
  const PlanSet& plans = setup.source->plans();
  model.name = served_name(o.model);
  model.tokenizer = std::make_shared<Tokenizer>(with_template(setup.source->tokenizer(), o, text));
  model.grammars = std::make_shared<grammar::GrammarCache>(model.tokenizer);
  if (const std::string& source = model.tokenizer->spec().chat_template; !source.empty())
    model.chat_template = std::make_shared<ChatTemplate>(ChatTemplate::parse(source));
  std::optional<SampleSpec> defaults = model_defaults(o.model, *setup.source);
  model.has_defaults = defaults.has_value();
  model.defaults = defaults.value_or(SampleSpec{});
  model.defaults.rejection = speculative.rejection;
  model.embedding = setup.source->embedding();
  model.embedder = std::make_shared<EmbeddingEncoder>(model.tokenizer);
  EngineConfig config = engine_config(o, speculative, plans, *setup.backend, model.embedding);
  std::unique_ptr<Executable> executable = load_weights(o, setup, config);
  release_merged(setup.source->weights());
  if (model.adapters) model.adapters->set_plans(plans);
  model.context_hint = bundle_of(setup) ? fmt::format("the bundle was compiled with --max-len {}",
                                                      bundle_of(setup)->compiled_context())
                                        : "the option context (--context) sets it";
  model.backend = std::move(setup.backend);
  model.source = std::move(setup.source);
  open_drafter(speculative, o, config, model);
  if (o.make_drafter) model.drafter = o.make_drafter();
  model.engine = std::make_shared<LocalEngine>(plans, std::move(executable), config, clock,
                                               model.drafter.get());
  model.load_seconds = seconds(clock.now() - start);
  return model;
}

}  // namespace tokamak
