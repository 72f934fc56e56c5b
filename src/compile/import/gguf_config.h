#pragma once
// GGUF metadata and tensor names -> ModelConfig.
#include "compile/import/gguf_file.h"
#include "compile/import/model_config.h"

namespace tokamak {

// Fails with kUnsupported (naming the unsupported architecture or feature), or kCorrupt (naming the
// missing key or tensor, wrong shape or impossible value).
ModelConfig config_from_gguf(const GgufFile& file);

}  // namespace tokamak
