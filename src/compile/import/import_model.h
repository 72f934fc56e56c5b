#pragma once
// A model path (a .gguf file, or a folder with safetensors and config.json) -> configuration and
// weights.
#include <filesystem>
#include <memory>
#include <string>

#include "base/value.h"
#include "compile/import/gguf_file.h"
#include "compile/import/model_config.h"
#include "plan/weight_source.h"

namespace tokamak {

struct ImportedModel {
  ModelConfig config;
  std::shared_ptr<const WeightSource> weights;
  Value metadata;      // GGUF metadata (arrays summarised), or config.json
  std::string format;  // "gguf" or "safetensors"
  std::filesystem::path path;
  std::shared_ptr<const GgufFile> gguf;  // the file itself, for its vocabulary; empty for folders
};

// Fails with a one-line message: a missing or unexpected path (the message says what is expected),
// a corrupt file, an unsupported architecture. Reads the headers only; weights are mapped, not
// read.
ImportedModel import_model(const std::filesystem::path& path);

}  // namespace tokamak
