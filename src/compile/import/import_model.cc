#include "compile/import/import_model.h"

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
  std::string text = read_text_file(config, kMaxConfigBytes);
  try {
    model.metadata = parse_json(text, config.string(), {.max_depth = 32});
  } catch (const Error& e) {
    fail(ErrorCode::kCorrupt, "{}", e.what());
  }
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
