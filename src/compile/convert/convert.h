#pragma once
// Writes a model in another format or in other element types: `tokamak convert`.
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace tokamak {

struct ConvertOptions {
  std::filesystem::path in, out;     // out: a .gguf file, or a folder for safetensors
  std::optional<DType> type;         // of matrices; unset: as they are
  std::optional<DType> output_type;  // of the matrix that gives logits; unset: chosen by `type`
  int threads = 0;                   // 0: all cores
  bool overwrite = false;
  // Called after each tensor, with bytes read; false stops with Error(kCancelled).
  std::function<bool(uint64_t done, uint64_t total)> progress;
};

struct ConvertedTensor {
  std::string name;
  DType from, to;
  std::vector<int64_t> dims;
  uint64_t bytes_in = 0, bytes_out = 0;
  double nmse = 0;  // of the values written, relative to those read
};

struct ConvertReport {
  std::string architecture, from, to;  // formats: "gguf" or "safetensors"
  std::vector<ConvertedTensor> tensors;
  uint64_t bytes_in = 0, bytes_out = 0;  // of tensors
};

// Memory: the largest tensor, as read and as written. The output takes its name when it is complete
// and has been read back: it describes the same model. Nothing is left when it fails.
ConvertReport convert_model(const ConvertOptions& options);

// The type for a tensor of a GGUF file; exposed for tests. `head`: the matrix that gives logits.
DType type_for(const ConvertOptions& options, std::string_view name,
               const std::vector<int64_t>& dims, DType from, bool head);

}  // namespace tokamak
