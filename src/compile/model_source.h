#pragma once
// Opens a model file and compiles it in memory: what apps/ hand to the engine.
#include <filesystem>
#include <memory>

#include "compile/cache.h"
#include "compile/compiler.h"
#include "compile/import/import_model.h"
#include "plan/model_source.h"

namespace tokamak {

// A model file with everything that is read from it, not yet compiled: `inspect` and `tokenize`
// stop here.
struct OpenedModel {
  ImportedModel model;
  TokenizerSpec tokenizer;
};

OpenedModel open_model(const std::filesystem::path& path);
TokenizerSpec open_tokenizer(
    const std::filesystem::path& path);  // vocabulary-only files and folders too

// The compiled model; keeps the file mapped. `cache` may be null.
std::unique_ptr<ModelSource> compile_model(OpenedModel opened, const Backend& backend,
                                           const CompileOptions& options,
                                           const CompileCache* cache = nullptr);

// The graph's plans, out of the cache where that has them. Compilations that leave something behind
// for people (dumps) always run.
PlanSet compile_cached(Module& module, const ModelConfig& config, const Backend& backend,
                       const CompileOptions& options, const CompileCache* cache);

}  // namespace tokamak
