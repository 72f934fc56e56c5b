#pragma once
// Opens a model file: the first stage of the offline path.
#include <filesystem>
#include <memory>

#include "compile/compiler.h"
#include "compile/import/import_model.h"
#include "plan/model_source.h"

namespace tokamak {

// A model file and everything that is read from it, not yet compiled.
struct OpenedModel {
  ImportedModel model;
  TokenizerSpec tokenizer;
};

OpenedModel open_model(const std::filesystem::path& path);
// Also of files and folders that have only a vocabulary.
TokenizerSpec open_tokenizer(const std::filesystem::path& path);

// An opened model with its plans. Keeps the file mapped.
std::unique_ptr<ModelSource> make_source(OpenedModel opened, PlanSet plans);

}  // namespace tokamak
