#pragma once
// The files of a sentence-transformers folder that say how texts become vectors: modules.json,
// 1_Pooling/config.json, sentence_bert_config.json, config_sentence_transformers.json.
#include <filesystem>
#include <string>
#include <vector>

#include "compile/import/model_config.h"
#include "plan/embedding_spec.h"
#include "plan/weight_source.h"

namespace tokamak {

// Changes `spec` as the files say; leaves it alone where there are none. Fails with kUnsupported
// for modules that are not supported, kCorrupt for damaged files.
void read_sentence_transformers(const std::filesystem::path& folder, EmbeddingSpec& spec);

// Folders in it that have tensors: those of Dense modules.
std::vector<std::string> sentence_transformers_folders(const std::filesystem::path& folder);
// Adds them to ModelConfig::dense, and their weights. Fails as above.
void read_dense_modules(const std::filesystem::path& folder, const WeightSource& weights,
                        ModelConfig& config);

}  // namespace tokamak
