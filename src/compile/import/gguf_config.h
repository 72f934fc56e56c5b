#pragma once
// GGUF metadata and tensor names -> ModelConfig.
#include "compile/import/gguf_file.h"
#include "compile/import/model_config.h"

namespace tokamak {

// Fails with kUnsupported (an architecture or feature this build does not have, named), or kCorrupt
// (a missing key or tensor, a wrong shape, numbers no model can have; named).
ModelConfig config_from_gguf(const GgufFile& file);

}  // namespace tokamak
