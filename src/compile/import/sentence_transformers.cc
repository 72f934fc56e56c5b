#include "compile/import/sentence_transformers.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "compile/import/families.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

// Null if there is no such file.
Value read_if_there(const fs::path& path) {
  std::error_code ec;
  if (!fs::is_regular_file(path, ec)) return {};
  try {
    return parse_json(read_text_file(path, size_t{1} << 20), path.string(), {.max_depth = 16});
  } catch (const Error& e) {
    fail(ErrorCode::kCorrupt, "{}", e.what());
  }
}

Pooling pooling_of(const Value& config, const fs::path& path) {
  if (const Value* mode = config.find("pooling_mode"); mode && mode->is_string()) {
    if (mode->as_string() == "lasttoken") return Pooling::kLast;
    for (Pooling known : {Pooling::kMean, Pooling::kFirst})
      if (mode->as_string() == pooling_name(known)) return known;
    fail(ErrorCode::kUnsupported,
         "{}: pooling \"{}\" is not supported, only mean, cls and lasttoken", path.string(),
         mode->as_string());
  }
  constexpr std::pair<const char*, Pooling> kModes[] = {
      {"pooling_mode_mean_tokens", Pooling::kMean},
      {"pooling_mode_cls_token", Pooling::kFirst},
      {"pooling_mode_lasttoken", Pooling::kLast}};
  Pooling found = Pooling::kNone;
  int modes = 0;
  for (const auto& [key, value] : config.as_object())
    if (key.starts_with("pooling_mode_") && value.is_bool() && value.as_bool()) {
      ++modes;
      for (const auto& [name, pooling] : kModes)
        if (key == name) found = pooling;
    }
  if (modes != 1 || found == Pooling::kNone)
    fail(ErrorCode::kUnsupported, "{}: only one of mean, cls and last token pooling is supported",
         path.string());
  return found;
}

void check_module_path(const fs::path& folder, const std::string& path) {
  if (fs::path(path).is_absolute() || path.find("..") != std::string::npos)
    fail(ErrorCode::kCorrupt, "{}: modules.json names the path {}", folder.string(), path);
}

void read_module(const fs::path& folder, const Value& module, EmbeddingSpec& spec) {
  std::string type = module.get_string("type", ""), path = module.get_string("path", "");
  auto is = [&](std::string_view name) { return type.ends_with(name); };
  check_module_path(folder, path);
  if (is(".Pooling")) {
    fs::path file = folder / path / "config.json";
    Value config = read_if_there(file);
    if (!config.is_object()) fail(ErrorCode::kCorrupt, "{} is missing", file.string());
    spec.pooling = pooling_of(config, file);
  } else if (is(".Normalize")) {
    spec.normalize = true;
  } else if (is(".Dense") || is(".Dropout")) {
    // Dense: read_dense_modules(); Dropout has no effect.
  } else if (is(".Transformer")) {
    Value config = read_if_there(folder / path / "sentence_bert_config.json");
    if (config.is_object()) spec.max_tokens = config.get_int("max_seq_length", 0);
  } else {
    fail(ErrorCode::kUnsupported, "{}: a module of type {} is not supported", folder.string(),
         type);
  }
}

}  // namespace

// In their order; all follow the pooling.
std::vector<std::string> sentence_transformers_folders(const fs::path& folder) {
  Value modules = read_if_there(folder / "modules.json");
  std::vector<std::string> out;
  bool pooled = false;
  if (!modules.is_array()) return out;
  for (const Value& module : modules.as_array()) {
    if (!module.is_object()) continue;
    std::string type = module.get_string("type", ""), path = module.get_string("path", "");
    pooled = pooled || type.ends_with(".Pooling");
    if (!type.ends_with(".Dense")) continue;
    check_module_path(folder, path);
    if (!pooled)
      fail(ErrorCode::kUnsupported, "{}: a Dense module before the pooling is not supported",
           folder.string());
    std::error_code ec;
    if (!fs::exists(folder / path / "model.safetensors", ec))
      fail(ErrorCode::kNotFound,
           "{}: model.safetensors is missing; save the model again with sentence-transformers",
           (folder / path).string());
    out.push_back(path);
  }
  return out;
}

void read_dense_modules(const fs::path& folder, const WeightSource& weights, ModelConfig& config) {
  if (config.embedding.classifies()) return;
  for (const std::string& path : sentence_transformers_folders(folder)) {
    if (!config.embedding.encoder)
      fail(ErrorCode::kUnsupported, "{}: Dense modules of a decoder are not supported",
           folder.string());
    fs::path file = folder / path / "config.json";
    Value json = read_if_there(file);
    std::string activation = json.is_object() ? json.get_string("activation_function", "") : "";
    bool tanh = activation.ends_with(".Tanh");
    if ((!tanh && !activation.ends_with(".Identity")) ||
        (!config.dense.empty() && tanh != config.dense_tanh))
      fail(ErrorCode::kUnsupported, "{}: activation \"{}\" is not supported, only Identity or Tanh",
           file.string(), activation);
    const TensorView* matrix = weights.find(path + "/linear.weight");
    if (!matrix || matrix->dims.size() != 2)
      fail(ErrorCode::kCorrupt, "{}: tensor linear.weight is {}", (folder / path).string(),
           matrix ? "not a matrix" : "missing");
    config.dense_tanh = tanh;
    WeightSlot slot{
        -1, dense_stem(config.dense.size()), "weight", {matrix->dims[0], config.vector_size()}};
    config.dense.push_back(matrix->dims[0]);
    std::string where = folder.string();
    add_weight(config, weights, where, slot, {path + "/linear.weight"}, {});
    if (!weights.find(path + "/linear.bias")) continue;
    slot.suffix = "bias";
    slot.dims.pop_back();
    add_weight(config, weights, where, slot, {path + "/linear.bias"}, {});
  }
}

void read_sentence_transformers(const fs::path& folder, EmbeddingSpec& spec) {
  Value modules = read_if_there(folder / "modules.json");
  if (modules.is_array() && !spec.classifies()) {
    spec.normalize = false;
    for (const Value& module : modules.as_array())
      if (module.is_object()) read_module(folder, module, spec);
  }
  Value config = read_if_there(folder / "config_sentence_transformers.json");
  if (!config.is_object()) return;
  if (const Value* prompts = config.find("prompts"); prompts && prompts->is_object())
    for (const auto& [name, text] : prompts->as_object())
      if (text.is_string()) spec.prompts.emplace_back(name, text.as_string());
  const Value* name = config.find("default_prompt_name");
  if (name && name->is_string()) spec.default_prompt = name->as_string();
  if (!spec.default_prompt.empty() && !spec.prompt(spec.default_prompt))
    fail(ErrorCode::kCorrupt, "{}: the default prompt {} is not one of its prompts",
         (folder / "config_sentence_transformers.json").string(), spec.default_prompt);
}

}  // namespace tokamak
