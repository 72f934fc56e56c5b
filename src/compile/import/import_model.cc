#include "compile/import/import_model.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "compile/import/encoder_config.h"
#include "compile/import/gguf_config.h"
#include "compile/import/hf_config.h"
#include "compile/import/safetensors_file.h"
#include "compile/import/sentence_transformers.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxConfigBytes = 16 << 20;

ImportedModel import_gguf(const fs::path& path) {
  ImportedModel model;
  model.gguf = GgufFile::open(path);
  bool encoder = is_encoder_gguf(model.gguf->get_string("general.architecture", ""));
  model.config = encoder ? encoder_from_gguf(*model.gguf) : config_from_gguf(*model.gguf);
  constexpr int64_t kLastToken = 3;  // as llama.cpp counts the ways of pooling
  std::string pooling = model.gguf->get_string("general.architecture", "") + ".pooling_type";
  if (!encoder && model.gguf->get_int(pooling, 0) == kLastToken)
    model.config.embedding.pooling = Pooling::kLast;
  model.metadata = model.gguf->metadata();
  model.weights = model.gguf;
  model.format = "gguf";
  model.path = path;
  return model;
}

// Python writes numbers that JSON does not have (Nemotron-H: "time_step_limit": [0.0, Infinity]);
// they become texts.
std::string quote_infinities(std::string_view text) {
  constexpr std::string_view kWords[] = {"-Infinity", "Infinity", "NaN"};
  std::string out;
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    const auto* word = std::find_if(std::begin(kWords), std::end(kWords), [&](std::string_view w) {
      return text.substr(i, w.size()) == w;
    });
    if (!in_string && word != std::end(kWords)) {
      out += fmt::format("\"{}\"", *word);
      i += word->size();
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    if (text[i] == '\\' && i + 1 < text.size()) out += text[i++];
    out += text[i++];
  }
  return out;
}

Value read_config(const fs::path& path) {
  try {
    return parse_json(quote_infinities(read_text_file(path, kMaxConfigBytes)), path.string(),
                      {.max_depth = 32});
  } catch (const Error& e) {
    fail(ErrorCode::kCorrupt, "{}", e.what());
  }
}

// ModelOpt describes its checkpoints in a file of their own; newer ones also in config.json.
void add_modelopt(const fs::path& folder, Value& config) {
  fs::path path = folder / "hf_quant_config.json";
  std::error_code ec;
  if (!config.is_object() || config.find("quantization_config") || !fs::is_regular_file(path, ec))
    return;
  Value json = read_config(path);
  const Value* quantization = json.is_object() ? json.find("quantization") : nullptr;
  if (!quantization || !quantization->is_object())
    fail(ErrorCode::kCorrupt, "{}: has no object \"quantization\"", path.string());
  Value described = *quantization;
  described.set("quant_method", "modelopt");
  config.set("quantization_config", std::move(described));
}

ImportedModel import_folder(const fs::path& folder) {
  fs::path config = folder / "config.json";
  std::error_code ec;  // an unreadable folder is treated as one without config.json
  if (!fs::is_regular_file(config, ec)) {
    fs::directory_iterator entries(folder, ec);
    if (ec) fail(ErrorCode::kNotFound, "cannot read {}: {}", folder.string(), ec.message());
    for (const auto& entry : entries)
      if (entry.path().extension() == ".gguf")
        fail(ErrorCode::kInvalidArgument, "{} is a folder with GGUF files; name the file, e.g. {}",
             folder.string(), entry.path().string());
    fail(ErrorCode::kNotFound,
         "{}: no config.json; a model folder contains config.json, tokenizer.json and "
         "model.safetensors",
         folder.string());
  }
  ImportedModel model;
  model.metadata = read_config(config);
  add_modelopt(folder, model.metadata);
  model.weights = SafetensorsFolder::open(folder, sentence_transformers_folders(folder));
  std::string where = folder.string();
  model.config = is_encoder_hf(model.metadata)
                     ? encoder_from_hf(model.metadata, *model.weights, where)
                     : config_from_hf(model.metadata, *model.weights, where);
  read_sentence_transformers(folder, model.config.embedding);
  read_dense_modules(folder, *model.weights, model.config);
  model.format = "safetensors";
  model.path = folder;
  return model;
}

}  // namespace

ImportedModel import_model(const fs::path& path) {
  std::error_code error;
  fs::file_status status = fs::status(path, error);
  if (error && status.type() != fs::file_type::not_found)
    fail(ErrorCode::kNotFound, "cannot open {}: {}", path.string(), error.message());
  if (!fs::exists(status))
    fail(ErrorCode::kNotFound,
         "{}: no such file or folder; a model is a .gguf file or a folder with config.json",
         path.string());
  ImportedModel model;
  if (fs::is_directory(status)) {
    model = import_folder(path);
  } else if (path.extension() == ".safetensors" || path.filename() == "config.json") {
    fail(ErrorCode::kInvalidArgument, "{} is one file of a model; name its folder, {}",
         path.string(), (path.has_parent_path() ? path.parent_path() : fs::path(".")).string());
  } else {
    model = import_gguf(path);
  }
  if (model.config.name.empty())
    model.config.name =
        path.filename().empty() ? path.parent_path().filename().string() : path.stem().string();
  return model;
}

}  // namespace tokamak
