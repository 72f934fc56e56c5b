#include "compile/open_model.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "compile/import/gguf_file.h"
#include "compile/import/tokenizer_gguf.h"
#include "compile/import/tokenizer_json.h"
#include "plan/bundle.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

class CompiledModel final : public ModelSource {
 public:
  CompiledModel(OpenedModel opened, PlanSet plans)
      : opened_(std::move(opened)), plans_(std::move(plans)) {}
  const PlanSet& plans() const override { return plans_; }
  const WeightSource& weights() const override { return *opened_.model.weights; }
  const TokenizerSpec& tokenizer() const override { return opened_.tokenizer; }
  const Value& metadata() const override { return opened_.model.metadata; }
  const EmbeddingSpec& embedding() const override { return opened_.model.config.embedding; }

 private:
  OpenedModel opened_;
  PlanSet plans_;
};

std::string read_if_there(const fs::path& path) {
  std::error_code ec;
  return fs::is_regular_file(path, ec) ? read_text_file(path, size_t{256} << 20) : std::string();
}

TokenizerSpec tokenizer_from_folder(const fs::path& folder) {
  std::string tokenizer = read_if_there(folder / "tokenizer.json");
  if (tokenizer.empty())
    fail(ErrorCode::kNotFound,
         "{0}: no tokenizer.json, which is needed to tokenize text; transformers writes it: "
         "AutoTokenizer.from_pretrained(\"{0}\").save_pretrained(\"{0}\")",
         folder.string());
  std::string config = read_if_there(folder / "tokenizer_config.json");
  std::string generation = read_if_there(folder / "generation_config.json");
  std::string special = read_if_there(folder / "special_tokens_map.json");
  std::string chat = read_if_there(folder / "chat_template.jinja");
  std::string legacy = read_if_there(folder / "chat_template.json");
  TokenizerFiles files{tokenizer, config, generation, special, chat, legacy, {}};
  std::error_code ec;
  for (const char* more : {"chat_templates", "additional_chat_templates"})
    for (const auto& entry : fs::directory_iterator(folder / more, ec))
      if (entry.path().extension() == ".jinja")
        files.named_templates.emplace_back(entry.path().stem().string(),
                                           read_if_there(entry.path()));
  return tokenizer_from_json(files);
}

}  // namespace

TokenizerSpec open_tokenizer(const fs::path& path) {
  std::error_code ec;
  if (fs::is_directory(path, ec)) return tokenizer_from_folder(path);
  if (is_bundle(path)) return parse_tokenizer(BundleFile::open(path)->text(kBundleTokenizer));
  if (path.extension() == ".json")
    return tokenizer_from_json(read_text_file(path, size_t{256} << 20));
  return tokenizer_from_gguf(*GgufFile::open(path));
}

OpenedModel open_model(const fs::path& path) {
  OpenedModel opened{import_model(path), {}};
  opened.tokenizer = open_tokenizer(path);
  return opened;
}

std::unique_ptr<ModelSource> make_source(OpenedModel opened, PlanSet plans) {
  return std::make_unique<CompiledModel>(std::move(opened), std::move(plans));
}

int64_t choose_context(const CompileOptions& options, const ModelConfig& config) {
  // A learned position is a row of a table: there is nothing beyond its end.
  if (config.learned_positions && options.context > config.context)
    fail(ErrorCode::kInvalidArgument,
         "--context {}: the model has {} learned positions; use at most that many", options.context,
         config.context);
  if (options.context > config.context)
    log::warn(
        "a context of {} tokens is longer than the {} that the model was trained for: answers "
        "beyond them may be poor",
        options.context, config.context);
  if (options.context > 0) return options.context;
  int64_t context =
      options.max_context > 0 ? std::min(config.context, options.max_context) : config.context;
  // The context decides which of longrope's two lists of factors is used; short texts get the
  // short one.
  const RopeConfig& rope = config.rope;
  if (rope.scaling == RopeConfig::Scaling::kLongRope && options.longest > 0 &&
      options.longest <= rope.original_context)
    context = std::min(context, rope.original_context);
  return context;
}

void fit_options(CompileOptions& options, ModelConfig& config) {
  if (options.exit_layers != 0 && config.embedding.encoder)
    fail(ErrorCode::kUnsupported, "speculation early_exit needs a model that generates text");
  if (options.layer_logits && config.embedding.encoder)
    fail(ErrorCode::kUnsupported, "DoLa needs a model that generates text");
  if (options.exit_layers < 0) options.exit_layers = std::max<int64_t>(1, config.layers / 3);
  if (options.exit_layers >= config.layers)
    fail(ErrorCode::kInvalidArgument,
         "speculation: early_exit_layers is {}, but must be less than the model's {}",
         options.exit_layers, config.layers);
  options.context = choose_context(options, config);
  EmbeddingSpec& embedding = config.embedding;
  if (!options.pooling.empty()) {
    if (embedding.classifies())
      fail(ErrorCode::kInvalidArgument,
           "--pooling {}: the model is a classifier, which has a pooling of its own; leave the "
           "option out",
           options.pooling);
    embedding.pooling =
        options.pooling == "none" ? Pooling::kTokens : parse_pooling(options.pooling);
  }
  if (embedding.encoder) options.max_tokens = std::max(options.max_tokens, options.context);
  if (embedding.encoder && embedding.per_token())
    options.max_logit_rows = std::max(options.max_logit_rows, options.max_tokens);
  if (!embedding.encoder &&
      (embedding.pooling == Pooling::kMean || embedding.pooling == Pooling::kFirst))
    fail(ErrorCode::kUnsupported,
         "pooling {} of a model whose tokens see only those before them is not supported; use last",
         pooling_name(embedding.pooling));
}

}  // namespace tokamak
