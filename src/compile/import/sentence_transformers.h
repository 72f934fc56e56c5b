#pragma once
// The files of a sentence-transformers folder that say how texts become vectors: modules.json,
// 1_Pooling/config.json, sentence_bert_config.json, config_sentence_transformers.json.
#include <filesystem>

#include "plan/embedding_spec.h"

namespace tokamak {

// Changes `spec` as the files say; leaves it alone where there are none. Fails with kUnsupported
// for modules that are not supported, kCorrupt for damaged files.
void read_sentence_transformers(const std::filesystem::path& folder, EmbeddingSpec& spec);

}  // namespace tokamak
