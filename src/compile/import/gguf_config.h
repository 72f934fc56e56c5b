#pragma once
// GGUF metadata and tensor names -> ModelConfig.
#include "compile/import/families.h"
#include "compile/import/gguf_file.h"
#include "compile/import/model_config.h"

namespace tokamak {

// Fails with kUnsupported (naming the unsupported architecture or feature), or kCorrupt (naming the
// missing key or tensor, wrong shape or impossible value).
ModelConfig config_from_gguf(const GgufFile& file);

// Adds the weights of the configuration; fails if one is missing or a tensor is not known.
void map_gguf_weights(const GgufFile& file, const Family& family, ModelConfig& config);

// Where converters put a weight; config_from_gguf() also reads the layouts of early files.
WeightPlace gguf_place(const Family& family, const ModelConfig& config, const WeightSlot& slot);

// Layers that slide if no key tells: all but every n-th; 0: all.
int64_t gguf_window_period(std::string_view architecture);

}  // namespace tokamak
